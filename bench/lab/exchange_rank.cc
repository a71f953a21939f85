// `tributary bench exchange-rank`: one rank of a job that computes nothing. It attaches to its host's worker as a
// trainer does, declares all gradients ready at once, waits for all parameters, and notes when each round began and
// ended. `tributary lab run --exchange` starts it on every host.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "bench/measurements.h"
#include "bench/sample_model.h"
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
  std::string gate;  // folder (tools/lab/gate.h); empty: no gates
};

// {rank, rounds, model_bytes, begin_ns[], end_ns[] (of the monotonic clock, which all processes of a machine share; of
// the measured rounds), chunk_bytes, digest}
Result<nlohmann::ordered_json> run_exchange_rank(const ExchangeRankOptions& options) {
  if (options.rounds == 0) return fail(ErrorCode::kInvalidArgument, "rounds = 0: at least one must be measured");
  auto job = load_job_config(options.job_file, options.overrides);
  if (!job) return tl::unexpected(job.error());
  const auto topology = Topology::from_environment();
  if (!topology) return tl::unexpected(topology.error());
  const std::vector<TensorSpec> tensors = sample_tensors(options.model_bytes);
  const auto attached =
      Session::attach({.socket = options.socket, .job = std::move(*job), .topology = *topology}, tensors);
  if (!attached) return tl::unexpected(attached.error());
  Session& session = **attached;
  if (topology->rank == 0 && session.fresh()) {
    for (std::size_t t = 0; t < tensors.size(); ++t) std::ranges::fill(session.initial(t), 1.0f);
  }
  if (auto ok = session.start(); !ok) return tl::unexpected(ok.error());
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    float value = 1e-3f * static_cast<float>(topology->rank + 1);
    for (float& g : session.gradient(t)) g = value = -value;
  }

  std::vector<std::uint64_t> begin_ns, end_ns;
  for (std::uint32_t round = 0; round < options.warmup + options.rounds; ++round) {
    if (round == options.warmup) {
      if (auto ok = lab::pass_gate(options.gate, lab::kGateBefore, topology->rank); !ok)
        return tl::unexpected(ok.error());
    }
    const std::uint64_t begin = steady_ns();
    for (std::size_t t = 0; t < tensors.size(); ++t) session.ready(t, 1);
    const auto state = session.wait();
    if (!state) return tl::unexpected(state.error());
    if (*state != StepState::kContinue) return fail(ErrorCode::kStopped, "stopped: " + session.stop_reason());
    if (round < options.warmup) continue;
    begin_ns.push_back(begin);
    end_ns.push_back(steady_ns());
  }
  if (auto ok = lab::pass_gate(options.gate, lab::kGateAfter, topology->rank); !ok) return tl::unexpected(ok.error());

  ParameterDigest digest;
  std::uint64_t model_bytes = 0;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    const auto parameters = session.parameters(t);
    if (!std::ranges::all_of(parameters, [](float p) { return std::isfinite(p); }))
      return fail(ErrorCode::kInternal, "a parameter of " + tensors[t].name + " is not finite after the exchange");
    digest.add(tensors[t], parameters);
    model_bytes += parameters.size_bytes();
  }
  const nlohmann::ordered_json result = {
      {"rank", topology->rank},     {"rounds", options.rounds},
      {"model_bytes", model_bytes}, {"begin_ns", begin_ns},
      {"end_ns", end_ns},           {"chunk_bytes", session.layout().chunk_elements() * sizeof(float)},
      {"digest", digest.hex()}};
  if (auto ok = session.finish(LeaveKind::kFinished); !ok) return tl::unexpected(ok.error());
  return result;
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
    command.add_option("--gate", o.gate);
  };
  return {.name = "exchange-rank",
          .words = "a rank that computes nothing",
          .add = measures<ExchangeRankOptions>(add, run_exchange_rank)};
}

}  // namespace tributary::bench
