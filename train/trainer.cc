#include "train/trainer.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/files/digest.h"
#include "train/finite.h"
#include "train/rank_compute.h"

namespace tributary::train {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kHeldRound{10};  // at least, of a test that holds back the last round

std::uint64_t ns_since(Clock::time_point begin) {
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begin).count());
}

// How a view (the time between an attach and its end) ended.
enum class ViewEnd { kFinished, kStopped, kRestart };

class Trainer {
 public:
  Trainer(const TrainerOptions& options, RankCompute compute, const ImageSet* test, ProgressBar& bar,
          const ProgressSender* progress, StopSignal& stop_signal)
      : topology_(options.topology),
        compute_(std::move(compute)),
        test_(test),
        bar_(bar),
        progress_(progress),
        stop_signal_(stop_signal),
        last_(last_round(options.job.train, compute_.sampler())),
        last_round_after_(options.last_round_after) {
    session_options_.socket = options.socket;
    session_options_.attach_timeout = options.attach_timeout;
    session_options_.note = [this](const std::string& text) { note(text); };
    session_options_.stops = [this] { return answers_stop(); };
    session_options_.job = options.job;
    session_options_.topology = options.topology;
    session_options_.recovery = std::make_shared<RecoveryHandle>();
    session_options_.gradients_move = true;
    session_options_.computes_with = kComputesWith;
    summary_.job = options.job.name;
    summary_.clocks = has_clocks(options.job);
    summary_.partial = has_deadline(options.job);
    summary_.rank = options.topology.rank;
    summary_.world_size = options.topology.world_size;
    summary_.nodes = options.topology.world_size / options.topology.local_world_size;
    summary_.last_round = last_.value;
    for (const TensorSpec& t : compute_.shape().tensors()) summary_.model_bytes += t.elements() * sizeof(float);
  }

  Result<RunSummary> run() {
    stop_signal_.arm();
    Result<RunSummary> summary = run_views();
    stop_signal_.suspend();
    return summary;
  }

 private:
  Result<RunSummary> run_views() {
    const Clock::time_point first_end = Clock::now() + session_options_.attach_timeout;
    for (;;) {
      resumed_ = complete_;
      const Result<ViewEnd> end = run_view();
      close_view();
      if (end && *end != ViewEnd::kRestart) {
        summary_.stopped = *end == ViewEnd::kStopped;
        return summary_;
      }
      const std::string why = end ? reason_ : end.error().message;
      const bool stopped_before_start = !end && end.error().code == ErrorCode::kStopped;
      if (stopped_before_start || (attached_once_ && stop_signal_.requested())) {
        // The parameters are unknown: this rank has no complete round.
        summary_.stopped = true;
        summary_.stop_reason = why;
        summary_.digest.clear();
        summary_.test.reset();
        note("stopped: " + why);
        return summary_;
      }
      // Daemons may be about to come back. The first attach must work within its time-out, whatever its tries.
      const bool in_time = !no_worker_ && (attached_once_ || Clock::now() < first_end);
      if (!end && (!in_time || !may_come_back(end.error()))) return tl::unexpected(end.error());
      AttachRetries& retries = session_options_.recovery->retries;
      const std::optional<milliseconds> pause = retries.next(complete_ > resumed_, Clock::now());
      if (!pause) return fail(ErrorCode::kUnavailable, retries.gave_up(why));
      summary_.restarts += 1;
      note("attaching again in " + std::to_string(pause->count()) + " ms: " + why);
      stop_signal_.sleep(*pause);
    }
  }

  // Asked while the session waits. A signal is answered at once, because a round may take its time; an attach ends.
  bool answers_stop() {
    if (session_ != nullptr && stop_signal_.unanswered()) {
      note(stop_signal_.name() + ": stops when " +
           (leaving_ ? std::string("the job's state is saved")
                     : "the parameters of round " + std::to_string(pushed_.value) +
                           " are there (`tributary status` says why they are not)") +
           "; a second Ctrl-C ends this rank at once");
    }
    return stop_signal_.requested();
  }

  // Attaches, trains, detaches. Errors are the session's.
  Result<ViewEnd> run_view() {
    const Clock::time_point asked = Clock::now();
    auto attached = Session::attach(session_options_, compute_.shape().tensors());
    if (!attached) {
      // One that is to be started, or started again, is waited for within the attach.
      no_worker_ =
          attached.error().code == ErrorCode::kUnavailable && Clock::now() >= asked + session_options_.attach_timeout;
      return tl::unexpected(attached.error());
    }
    session_ = std::move(*attached);
    take_place(session_->topology());
    pushed_ = session_->resume_round();  // whose parameters start() waits for
    const std::size_t tensors = compute_.shape().tensors().size();
    if (session_->fresh() && topology_.rank == 0) {
      for (std::size_t t = 0; t < tensors; ++t) {
        compute_.shape().initialise(session_options_.job.train.seed, t, session_->initial(t));
      }
    }
    if (Status status = session_->start(); !status) {
      // With a reason of the worker, the view ended because a member was lost; else the worker itself is gone.
      if (status.error().code != ErrorCode::kUnavailable || session_->stop_reason().empty()) {
        return tl::unexpected(status.error());
      }
      reason_ = status.error().message;
      return ViewEnd::kRestart;
    }
    session_->last_round(last_);
    resumed_ = complete_ = pushed_ = gated_ = session_->resume_round();
    if (!attached_once_) summary_.resumed_from = complete_.value;
    attached_once_ = true;
    note(complete_.value > 0 ? "going on after round " + std::to_string(complete_.value)
                             : "starting at round 0: no state of this job is saved");
    if (complete_ < last_ && compute_.lost_inner_state(complete_.next())) {
      note("the inner optimizer's state begins anew: it is kept from round to round, but not on disk");
    }
    for (std::size_t t = 0; t < tensors; ++t) parameters_.push_back(session_->parameters(t).data());
    gradients_.resize(tensors);
    compute_.bind({.parameters = parameters_, .gradients = gradients_});
    summary_.train = {};

    Result<StepState> state = StepState::kContinue;
    while (pushed_ < last_ && state && *state == StepState::kContinue) {
      const Clock::time_point begin = Clock::now();
      blocked_ns_ = 0;
      if (stop_signal_.requested()) {
        state = await_answers(StepState::kStopRequested);
      } else if (pushed_.next() == last_ && held_back()) {
        state = hold_back();
      } else {
        if (2 * pushed_.value > last_.value && held_back()) stop_signal_.sleep(kHeldRound);
        state = train_round(pushed_.next(), begin);
      }
    }
    if (!state) return tl::unexpected(state.error());
    return end_view(*state);
  }

  // One round up to its last ready(). Its answers are waited for in the next round's forward pass, tensor by tensor, so
  // that the first layers compute while the last ones are still on their way. A stop is only ever taken between two
  // rounds: as long as something is still needed, nothing of this round has been given away.
  // begin: of its time; blocked_ns_ counts from there.
  Result<StepState> train_round(Round round, Clock::time_point begin) {
    const Sampler& sampler = compute_.sampler();
    if ((round.value - 1) % sampler.rounds_per_epoch() == 0) summary_.train = {};
    Result<StepState> needed = StepState::kContinue;
    const auto need = [&](std::size_t tensor) {
      if (pushed_ == complete_) return true;  // the first round of the view
      const Clock::time_point asked = Clock::now();
      needed = session_->wait(tensor);
      blocked_ns_ += ns_since(asked);
      return needed && *needed == StepState::kContinue;
    };
    const auto ready = [this](std::size_t tensor, std::uint64_t weight) { session_->ready(tensor, weight); };
    for (std::size_t t = 0; t < gradients_.size(); ++t) gradients_[t] = session_->gradient(t).data();
    std::function<float()> loss_scale;
    if (has_gate(session_options_.job)) {
      loss_scale = [this, before = Round(round.value - 1)] { return session_->gate(before).loss_scale; };
    }
    const std::optional<BatchStats> computed = compute_.gradient(round, rank(), need, ready, 0, std::move(loss_scale));
    if (!computed) {
      if (needed && *needed == StepState::kStopRequested) return await_answers(*needed);
      return needed;
    }
    const BatchStats& stats = *computed;
    look_at(round, stats);
    complete_ = Round(round.value - 1);  // every tensor was waited for
    count_gate();
    pushed_ = round;
    if (!has_local_steps(session_options_.job)) {
      summary_.samples_left += sampler.share_size(round, rank()) - stats.samples;
    }

    Result<StepState> state = StepState::kContinue;
    RoundReport report{.rank = topology_.rank,
                       .world_size = topology_.world_size,
                       .restarts = summary_.restarts,
                       .resumed = session_->resume_round().value,
                       .round = round.value,
                       .rounds = last_.value,
                       .stats = stats};
    std::uint64_t evaluating_ns = 0;
    const bool last = round == last_;
    const bool evaluates = tests() && (last || evaluates_after(session_options_.job.train, sampler, round));
    if (last || evaluates) {
      state = await_answers(StepState::kContinue);
      if (evaluates && complete_ == round) {
        const Clock::time_point evaluating = Clock::now();
        report.test = summary_.test = compute_.evaluate(*test_);
        evaluated_ = round;
        evaluating_ns = ns_since(evaluating);
      }
    }
    const SessionStats totals = session_->stats();
    const std::uint64_t reducing_ns = totals.reduce_ns - view_stats_.reduce_ns;
    view_stats_ = totals;
    report.split.reduce_ns = std::min(blocked_ns_, reducing_ns);
    report.split.wait_ns = blocked_ns_ - report.split.reduce_ns;
    report.split.compute_ns = ns_since(begin) - evaluating_ns - blocked_ns_;
    report.global_samples = summary_.partial ? stats.samples : sampler.batch_size(round);
    report.gate = session_->gate(complete_);
    report.complete = complete_.value;
    report.samples_sum = compute_.computed_sum();
    tell(report);
    return state;
  }

  bool held_back() const { return !last_round_after_.empty() && !std::filesystem::exists(last_round_after_); }
  // Waits a moment in a state in which views end and stops are answered.
  Result<StepState> hold_back() {
    const Result<StepState> state = await_answers(StepState::kContinue);
    if (!state || *state != StepState::kContinue) return state;
    stop_signal_.sleep(milliseconds(5));
    return session_->wait();
  }

  // Waits for all answers of the current round. Returns `otherwise` unless the session reports another state.
  Result<StepState> await_answers(StepState otherwise) {
    if (pushed_ == complete_) return otherwise;
    const Clock::time_point asked = Clock::now();
    const Result<StepState> state = session_->wait();
    blocked_ns_ += ns_since(asked);
    if (!state) return state;
    if (*state == StepState::kContinue || *state == StepState::kStopRequested) complete_ = pushed_;
    count_gate();
    return *state == StepState::kContinue ? otherwise : *state;
  }

  void count_gate() {
    if (complete_ == gated_) return;
    gated_ = complete_;
    summary_.gate.add(session_->gate(complete_));
  }

  Result<ViewEnd> end_view(StepState state) {
    view_stats_ = session_->stats();
    if (state == StepState::kRestart) {
      reason_ = session_->stop_reason();
      return ViewEnd::kRestart;
    }
    // After kStopped, too, the parameters are those of complete_: no rank completes a round that another has left.
    const bool finished = complete_ >= last_;
    summary_.rounds = complete_.value;
    summary_.digest.clear();
    // Where nodes have clocks of their own, each has other parameters until all are at the last round.
    if (finished || !has_clocks(session_options_.job)) {
      const std::vector<TensorSpec>& tensors = compute_.shape().tensors();
      if (summary_.not_finite.empty()) summary_.not_finite = not_finite(tensors, parameters_);
      summary_.digest = parameters_digest(tensors, parameters_);
    }
    if (evaluated_ != complete_) {
      summary_.test.reset();
      if (finished && tests()) summary_.test = compute_.evaluate(*test_);
    }
    const std::string told =
        finished || !stop_signal_.requested()
            ? std::string()
            : "rank " + std::to_string(topology_.rank) + " was told to stop (" + stop_signal_.name() + ")";
    leaving_ = true;
    Status saved = session_->finish(finished ? LeaveKind::kFinished : LeaveKind::kStopped, told);
    // A worker that is gone before it acknowledged may know this rank's last round, or not: the job then decides.
    if (finished && !saved) return tl::unexpected(saved.error());
    if (saved) saved = session_->saved();
    if (finished && !saved && may_come_back(saved.error())) return tl::unexpected(saved.error());
    summary_.not_saved = saved ? std::string() : saved.error().message;
    if (!finished) {
      summary_.stop_reason = session_->stop_reason().empty() ? told : session_->stop_reason();
      note("stopped after round " + std::to_string(complete_.value) +
           (summary_.stop_reason.empty() ? "" : ": " + summary_.stop_reason));
    }
    if (!saved) note("not saved: " + summary_.not_saved);
    return finished ? ViewEnd::kFinished : ViewEnd::kStopped;
  }

  // Prints it once. With a gate such a round is not applied, and the next one may be finite again.
  void look_at(Round round, const BatchStats& stats) {
    const std::string what = not_finite(round, stats.loss_sum);
    if (what.empty() || told_not_finite_) return;
    told_not_finite_ = true;
    const bool gated = has_gate(session_options_.job);
    if (!gated) summary_.not_finite = what;
    note("NOT FINITE: " + what + (gated ? "; the gate does not apply such a round" : kNotFiniteAdvice));
  }

  // Whatever happened: no session, totals added up.
  void close_view() {
    leaving_ = false;
    compute_.unbind();  // before its memory goes with the session
    parameters_.clear();
    gradients_.clear();
    session_.reset();
    summary_.rounds = complete_.value;
    summary_.bytes_pushed += view_stats_.bytes_pushed;
    summary_.bytes_pulled += view_stats_.bytes_pulled;
    summary_.pulls += view_stats_.pulls;
    summary_.staleness_sum += view_stats_.staleness_sum;
    summary_.staleness_max = std::max(summary_.staleness_max, view_stats_.staleness_max);
    view_stats_ = {};
  }

  void tell(const RoundReport& report) {
    summary_.rounds_here += 1;
    summary_.samples_here += report.global_samples;
    summary_.train += report.stats;
    summary_.split += report.split;
    bar_.round(report, compute_.sampler().rounds_per_epoch());
    if (progress_ != nullptr) progress_->send(report);
    const auto log = [&](const char* name, double mean, std::uint64_t samples) {
      [[maybe_unused]] const Status logged = session_->log(Round(report.complete), name, mean, samples);
    };
    if (report.stats.samples > 0) {
      log("loss", report.stats.mean_loss(), report.stats.samples);
      log("accuracy", report.stats.accuracy(), report.stats.samples);
    }
    if (report.test) {
      log("test_loss", report.test->mean_loss(), report.test->samples);
      log("test_accuracy", report.test->accuracy(), report.test->samples);
    }
  }

  void note(const std::string& text) { bar_.note("rank " + std::to_string(topology_.rank) + ": " + text); }

  // In an elastic job each view assigns the ranks, and with them the samples, again.
  void take_place(const Topology& place) {
    const bool moved = place.rank != topology_.rank || place.world_size != topology_.world_size;
    topology_ = place;
    compute_.set_world_size(place.world_size);
    summary_.rank = place.rank;
    summary_.world_size = place.world_size;
    summary_.nodes = place.world_size / place.local_world_size;
    if (moved)
      note("this view has " + std::to_string(summary_.nodes) + " nodes and world size " +
           std::to_string(place.world_size));
  }
  Rank rank() const { return Rank(topology_.rank); }
  // One rank evaluates for all.
  bool tests() const { return test_ != nullptr && topology_.rank == 0; }

  Topology topology_;  // of this view
  RankCompute compute_;
  const ImageSet* const test_;
  ProgressBar& bar_;
  const ProgressSender* const progress_;
  StopSignal& stop_signal_;
  const Round last_;
  const std::string last_round_after_;  // a file, or empty
  SessionOptions session_options_;
  RunSummary summary_;
  bool attached_once_ = false;
  bool no_worker_ = false;  // the last attach waited for one in vain
  bool told_not_finite_ = false;
  Round evaluated_;  // round that summary_.test is about
  std::string reason_;

  // The view's.
  std::unique_ptr<Session> session_;
  bool leaving_ = false;                  // finish() has been called
  std::vector<const float*> parameters_;  // by tensor, in the session's memory
  std::vector<float*> gradients_;         // of the round
  Round complete_;                        // newest round whose answers have all come
  Round resumed_;                         // where the newest view began
  Round pushed_;                          // newest round whose gradient was given away: complete_, or the one after it
  Round gated_;                           // newest round in summary_.gate
  SessionStats view_stats_;
  std::uint64_t blocked_ns_ = 0;  // of the current round
};

}  // namespace

Result<RunSummary> train_rank(const TrainerOptions& options, const ImageSet& training, const ImageSet* test,
                              ProgressBar& bar, const ProgressSender* progress, StopSignal& stop_signal) {
  if (Status status = options.topology.validate(); !status) return tl::unexpected(status.error());
  // In an elastic job few nodes have large shares.
  const std::uint32_t fewest = is_elastic(options.job)
                                   ? options.job.membership.min_nodes * options.topology.local_world_size
                                   : options.topology.world_size;
  Result<RankCompute> compute = RankCompute::make(options.job, training, fewest);
  if (!compute) return tl::unexpected(compute.error());
  compute->slow_down(options.us_per_sample);
  return Trainer(options, std::move(*compute), test, bar, progress, stop_signal).run();
}

}  // namespace tributary::train
