#include "bench/gloo_ring_rank.h"

#include <gloo/rendezvous/file_store.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <memory>
#include <vector>

#include "bench/gloo_rank.h"
#include "bench/timing.h"
#include "common/clock.h"
#include "common/digest.h"
#include "lab/gate.h"

namespace tributary::bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::chrono::seconds kTimeout{120};

// Small whole numbers: their sums are exact in any order.
float value_of(std::uint32_t rank, std::size_t i) {
  return static_cast<float>((i + rank) % 17);
}

// Gloo reports by exception; nothing above this function sees one.
Json run(const GlooRingOptions& options) {
  gloo::rendezvous::FileStore store(options.store);
  GlooRank gloo(options.address, options.rank, options.size, store, kTimeout);

  const std::size_t elements = std::max<std::size_t>(options.model_bytes / sizeof(float), 1);
  std::vector<float> gradient(elements), sum(elements);
  for (std::size_t i = 0; i < elements; ++i) gradient[i] = value_of(options.rank, i);
  std::vector<std::uint64_t> begin_ns, end_ns;
  std::vector<double> seconds;
  for (std::uint32_t round = 0; round < options.warmup + options.rounds; ++round) {
    if (round == options.warmup) {
      if (auto ok = lab::pass_gate(options.gate, lab::kGateBefore, options.rank); !ok)
        throw std::runtime_error(ok.error().message);
    }
    const std::uint64_t begin = steady_ns();
    gloo.sum(gradient.data(), sum.data(), elements);
    const std::uint64_t end = steady_ns();
    if (round < options.warmup) continue;
    begin_ns.push_back(begin);
    end_ns.push_back(end);
    seconds.push_back(1e-9 * static_cast<double>(end - begin));
  }
  if (auto ok = lab::pass_gate(options.gate, lab::kGateAfter, options.rank); !ok)
    throw std::runtime_error(ok.error().message);
  for (std::size_t i = 0; i < elements; ++i) {
    float expected = 0.0f;
    for (std::uint32_t rank = 0; rank < options.size; ++rank) expected += value_of(rank, i);
    if (sum[i] != expected) throw std::runtime_error("element " + std::to_string(i) + " has a wrong sum");
  }
  ParameterDigest digest;
  digest.add({"sum", {elements}}, sum);
  return {{"rank", options.rank},  {"rounds", options.rounds}, {"model_bytes", elements * sizeof(float)},
          {"begin_ns", begin_ns},  {"end_ns", end_ns},         {"median_seconds", median(seconds)},
          {"digest", digest.hex()}};
}

}  // namespace

Result<Json> run_gloo_ring_rank(const GlooRingOptions& options) {
  if (options.rounds == 0 || options.size == 0 || options.rank >= options.size)
    return fail(ErrorCode::kInvalidArgument, "give at least one round, and a rank below the number of ranks");
  try {
    return run(options);
  } catch (const std::exception& e) {
    return fail(ErrorCode::kUnavailable, std::string("Gloo: ") + e.what());
  }
}

}  // namespace tributary::bench
