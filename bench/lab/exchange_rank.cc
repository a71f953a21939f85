// `tributary bench exchange-rank`: one rank of a job that computes nothing. It attaches to its host's worker as a
// trainer does, declares all gradients ready at once, waits for all parameters, and notes when each round began and
// ended. `tributary lab run --exchange` starts it on every host.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/measurements.h"
#include "bench/sample_model.h"
#include "bench/timing.h"
#include "common/base/clock.h"
#include "common/base/result.h"
#include "common/config/config_toml.h"
#include "common/files/digest.h"
#include "session/session.h"
#include "tools/lab/gate.h"

namespace tributary::bench {
namespace {

struct ExchangeRankOptions {
  std::string job_file;
  std::vector<std::string> overrides;
  std::string socket;  // the worker's
  std::uint64_t model_bytes = 16u << 20;
  std::uint32_t rounds = 10;
  std::uint32_t warmup = 3;
  // A tensor's next gradient is ready as soon as its parameters came, without waiting for the other tensors.
  bool flowing = false;
  std::string gate;  // folder (tools/lab/gate.h); empty: no gates
};

using Json = nlohmann::ordered_json;

constexpr float kInitial = 1.0f;

class ExchangeRank {
 public:
  ExchangeRank(const ExchangeRankOptions& options, std::uint32_t rank, std::vector<TensorSpec> tensors,
               std::unique_ptr<Session> session)
      : options_(options), rank_(rank), tensors_(std::move(tensors)), session_(std::move(session)) {}

  Result<Json> run() {
    if (auto ok = prepare(); !ok) return tl::unexpected(ok.error());
    if (auto ok = options_.flowing ? flow() : separate(); !ok) return tl::unexpected(ok.error());
    const auto digest = examine();
    if (!digest) return tl::unexpected(digest.error());
    const Json result = report(*digest);
    if (auto ok = session_->finish(LeaveKind::kFinished); !ok) return tl::unexpected(ok.error());
    return result;
  }

 private:
  Status prepare() {
    if (rank_ == 0 && session_->fresh()) {
      for (std::size_t t = 0; t < tensors_.size(); ++t) std::ranges::fill(session_->initial(t), kInitial);
    }
    if (auto ok = session_->start(); !ok) return ok;
    for (std::size_t t = 0; t < tensors_.size(); ++t) {
      float value = 1e-3f * static_cast<float>(rank_ + 1);
      for (float& g : session_->gradient(t)) g = value = -value;
    }
    return {};
  }

  Status next(const Result<StepState>& state) const {
    if (!state) return tl::unexpected(state.error());
    if (*state == StepState::kContinue) return {};
    return fail(ErrorCode::kStopped, "stopped: " + session_->stop_reason());
  }

  Status begin_measuring() {
    if (auto ok = lab::pass_gate(options_.gate, lab::kGateBefore, rank_); !ok) return ok;
    before_ = session_->stats();
    return {};
  }

  Status end_measuring() {
    after_ = session_->stats();
    return lab::pass_gate(options_.gate, lab::kGateAfter, rank_);
  }

  Status separate() {
    for (std::uint32_t round = 0; round < options_.warmup + options_.rounds; ++round) {
      if (round == options_.warmup) {
        if (auto ok = begin_measuring(); !ok) return ok;
      }
      const std::uint64_t begin = steady_ns();
      for (std::size_t t = 0; t < tensors_.size(); ++t) session_->ready(t, 1);
      if (auto ok = next(session_->wait()); !ok) return ok;
      if (round >= options_.warmup) note(begin, steady_ns());
    }
    return end_measuring();
  }

  // A round begins when the one before it is complete here, so that the times add up to the whole.
  Status flow() {
    for (std::uint32_t round = 0; round < options_.warmup; ++round) {
      for (std::size_t t = 0; t < tensors_.size(); ++t) session_->ready(t, 1);
      if (auto ok = next(session_->wait()); !ok) return ok;
    }
    if (auto ok = begin_measuring(); !ok) return ok;
    std::uint64_t begin = steady_ns();
    for (std::size_t t = 0; t < tensors_.size(); ++t) session_->ready(t, 1);
    for (std::uint32_t round = 1; round <= options_.rounds; ++round) {
      for (std::size_t t = 0; t < tensors_.size(); ++t) {
        if (auto ok = next(session_->wait(t)); !ok) return ok;
        if (round < options_.rounds) session_->ready(t, 1);
      }
      const std::uint64_t end = steady_ns();
      note(begin, end);
      begin = end;
    }
    return end_measuring();
  }

  void note(std::uint64_t begin, std::uint64_t end) {
    begin_ns_.push_back(begin);
    end_ns_.push_back(end);
  }

  Result<std::string> examine() const {
    ParameterDigest digest;
    for (std::size_t t = 0; t < tensors_.size(); ++t) {
      const auto parameters = session_->parameters(t);
      if (!std::ranges::all_of(parameters, [](float p) { return std::isfinite(p); }))
        return fail(ErrorCode::kInternal, "a parameter of " + tensors_[t].name + " is not finite after the exchange");
      digest.add(tensors_[t], parameters);
    }
    return digest.hex();
  }

  Json report(const std::string& digest) const {
    std::vector<double> seconds;
    for (std::size_t i = 0; i < begin_ns_.size(); ++i)
      seconds.push_back(1e-9 * static_cast<double>(end_ns_[i] - begin_ns_[i]));
    std::uint64_t model_bytes = 0;
    for (const TensorSpec& t : tensors_) model_bytes += t.elements() * sizeof(float);
    return {{"rank", rank_},
            {"rounds", options_.rounds},
            {"model_bytes", model_bytes},
            {"begin_ns", begin_ns_},
            {"end_ns", end_ns_},
            {"median_seconds", median(seconds)},
            {"bytes_pushed", after_.bytes_pushed - before_.bytes_pushed},
            {"bytes_pulled", after_.bytes_pulled - before_.bytes_pulled},
            {"chunk_bytes", session_->layout().chunk_elements() * sizeof(float)},
            {"digest", digest}};
  }

  const ExchangeRankOptions& options_;
  const std::uint32_t rank_;
  const std::vector<TensorSpec> tensors_;
  const std::unique_ptr<Session> session_;
  SessionStats before_, after_;
  std::vector<std::uint64_t> begin_ns_, end_ns_;
};

// {rank, rounds, model_bytes, begin_ns[], end_ns[] (of the monotonic clock, which all processes of a machine share; of
// the measured rounds), median_seconds, bytes_pushed, bytes_pulled (of this node, in the measured rounds), chunk_bytes,
// digest}
Result<Json> run_exchange_rank(const ExchangeRankOptions& options) {
  if (options.rounds == 0) return fail(ErrorCode::kInvalidArgument, "rounds = 0: at least one must be measured");
  auto job = load_job_config(options.job_file, options.overrides);
  if (!job) return tl::unexpected(job.error());
  const auto topology = Topology::from_environment();
  if (!topology) return tl::unexpected(topology.error());
  std::vector<TensorSpec> tensors = sample_tensors(options.model_bytes);
  auto session = Session::attach({.socket = options.socket, .job = std::move(*job), .topology = *topology}, tensors);
  if (!session) return tl::unexpected(session.error());
  return ExchangeRank(options, topology->rank, std::move(tensors), std::move(*session)).run();
}

}  // namespace

Measurement exchange_rank() {
  const auto add = [](CliCommand command, ExchangeRankOptions& o) {
    command.add_option("--job", o.job_file)->required();
    add_overrides(command, o.overrides);
    command.add_option("--worker", o.socket)->envname("TRIBUTARY_SOCKET")->required();
    command.add_option("--model-bytes", o.model_bytes);
    command.add_option("--rounds", o.rounds);
    command.add_option("--warmup", o.warmup);
    command.add_flag("--flowing", o.flowing);
    command.add_option("--gate", o.gate);
  };
  return {.name = "exchange-rank",
          .words = "a rank that computes nothing",
          .add = measures<ExchangeRankOptions>(add, [](ExchangeRankOptions& options, MeasurementRun& run) {
            return yield(run, run_exchange_rank(options));
          })};
}

}  // namespace tributary::bench
