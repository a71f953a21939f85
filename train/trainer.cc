#include "train/trainer.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "common/digest.h"
#include "train/rank_compute.h"

namespace tributary::train {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kFirstBackoff{100};
constexpr milliseconds kMaxBackoff{5'000};

std::uint64_t ns_since(Clock::time_point begin) {
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begin).count());
}

// How a view (the time between an attach and its end) ended.
enum class ViewEnd { kFinished, kStopped, kRestart };

// Whether attaching again may help: somebody is gone or was gone, and may be back.
bool may_come_back(const Error& error) {
  return error.code == ErrorCode::kUnavailable || error.code == ErrorCode::kTimeout || error.code == ErrorCode::kStaleView;
}

class Trainer {
 public:
  Trainer(const TrainerOptions& options, RankCompute compute, const ImageSet* test, ProgressBar& bar,
          const ProgressSender* progress, StopSignal& stop_signal)
      : rank_(options.topology.rank),
        compute_(std::move(compute)),
        test_(test),
        bar_(bar),
        progress_(progress),
        stop_signal_(stop_signal),
        last_(last_round(options.job.train, compute_.sampler())) {
    session_options_.socket = options.socket;
    session_options_.job = with_schedule_end(options.job, compute_.sampler());
    session_options_.topology = options.topology;
    summary_.job = options.job.name;
    summary_.rank = options.topology.rank;
    summary_.world_size = options.topology.world_size;
    summary_.nodes = options.topology.world_size / options.topology.local_world_size;
    summary_.last_round = last_.value;
  }

  Result<RunSummary> run() {
    std::uint32_t fruitless = 0;
    for (;;) {
      const Round best_before = best_;
      const Result<ViewEnd> end = run_view();
      close_view();
      if (end && *end != ViewEnd::kRestart) {
        summary_.stopped = *end == ViewEnd::kStopped;
        return summary_;
      }
      // The first attach must work; later ones may find daemons that are about to come back.
      if (!end && (!attached_once_ || !may_come_back(end.error()))) return tl::unexpected(end.error());
      const std::string why = end ? reason_ : end.error().message;
      if (stop_signal_.requested()) {
        return fail(ErrorCode::kUnavailable, "asked to stop while the job was interrupted (" + why + "); run again to continue");
      }
      fruitless = best_ > best_before ? 1 : fruitless + 1;
      if (fruitless > kMaxFruitlessRestarts) {
        return fail(ErrorCode::kUnavailable, "gave up after attaching " + std::to_string(kMaxFruitlessRestarts) +
                                                 " times again without completing a round; the last reason: " + why);
      }
      summary_.restarts += 1;
      const milliseconds pause = std::min(kFirstBackoff * (1 << std::min(fruitless - 1, 10u)), kMaxBackoff);
      bar_.note(label() + "attaching again in " + std::to_string(pause.count()) + " ms: " + why);
      std::this_thread::sleep_for(pause);
    }
  }

 private:
  // Attaches, trains, detaches. Errors of the session, as they are.
  Result<ViewEnd> run_view() {
    Result<std::unique_ptr<Session>> attached = Session::attach(session_options_, compute_.mlp().tensors());
    if (!attached) return tl::unexpected(attached.error());
    session_ = std::move(*attached);
    if (session_->fresh() && rank_.value == 0) {
      for (std::size_t t = 0; t < tensors().size(); ++t) {
        compute_.mlp().initialise(session_options_.job.train.seed, t, session_->initial(t));
      }
    }
    if (Status status = session_->start(); !status) return tl::unexpected(status.error());
    complete_ = session_->resume_round();
    if (!attached_once_) summary_.resumed_from = complete_.value;
    attached_once_ = true;
    stop_signal_.arm();
    if (complete_.value > 0) bar_.note(label() + "going on after round " + std::to_string(complete_.value));
    parameters_.clear();
    gradients_.clear();
    for (std::size_t t = 0; t < tensors().size(); ++t) {
      parameters_.push_back(session_->parameters(t).data());
      gradients_.push_back(session_->gradient(t).data());
    }
    summary_.train = {};
    seen_stats_ = {};

    open_ = false;
    for (Round round = complete_.next(); round <= last_; round = round.next()) {
      const Result<StepState> state = stop_signal_.requested() ? ask_to_stop() : train_round(round);
      if (!state) return tl::unexpected(state.error());
      if (*state != StepState::kContinue) return end_view(*state);
    }
    const Result<StepState> state = settle();
    if (!state) return tl::unexpected(state.error());
    return end_view(*state);
  }

  // One round up to its last ready(). Its answers are waited for in the next round's forward pass, tensor by tensor, so that the
  // first layers compute while the last ones are still on their way. A stop is only ever taken between two rounds: nothing of this
  // round has been given away while `need` still abandons it.
  Result<StepState> train_round(Round round) {
    const Clock::time_point begin = Clock::now();
    blocked_ns_ = 0;
    std::optional<Error> error;
    const auto need = [&](std::size_t tensor) {
      if (!open_) return true;
      const Clock::time_point asked = Clock::now();
      const Result<StepState> state = session_->wait(tensor);
      blocked_ns_ += ns_since(asked);
      if (!state) error = state.error();
      return state && *state == StepState::kContinue;
    };
    if (compute_.sampler().epoch_of(round) != compute_.sampler().epoch_of(Round(std::max<std::uint64_t>(complete_.value, 1))) ||
        open_epoch_start(round)) {
      summary_.train = {};
    }
    const std::uint32_t share = compute_.sampler().share_size(round, rank_);
    bool first_ready = true;
    const auto ready = [&](std::size_t tensor) {
      if (std::exchange(first_ready, false)) {
        // Everything was waited for: the round before is complete.
        complete_ = Round(round.value - 1);
        open_ = true;
      }
      session_->ready(tensor, share);
    };
    const std::optional<BatchStats> stats = compute_.gradient(round, rank_, parameters_, gradients_, need, ready);
    if (error) return tl::unexpected(*error);
    if (!stats) return settle();
    RoundReport report{.rank = rank_.value, .round = round.value, .rounds = last_.value, .stats = *stats};
    report.global_samples = compute_.sampler().batch_size(round);
    return StepState::kContinue;
  }

  RankCompute compute_;
};

}  // namespace

}  // namespace tributary::train
