// `tributary bench gloo-ring-rank`: one rank of Gloo's own ring all-reduce, without anything of ours: the rival that
// `tributary lab run --baseline gloo` measures on the same hosts.
#include <gloo/allreduce.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "bench/measurements.h"
#include "common/base/clock.h"
#include "common/base/result.h"
#include "common/files/digest.h"
#include "tools/lab/gate.h"

namespace tributary::bench {
namespace {

struct GlooRingOptions {
  std::uint32_t rank = 0, size = 1;
  std::string address;  // of this host, which the others connect to
  std::string store;    // folder, the same for all ranks, in which they find each other; new for every run
  std::uint64_t model_bytes = 16u << 20;
  std::uint32_t rounds = 10;
  std::uint32_t warmup = 3;
  std::string gate;  // folder (tools/lab/gate.h); empty: no gates
};

using Json = nlohmann::ordered_json;

constexpr std::chrono::seconds kRingTimeout{120};

// Small whole numbers: their sums are exact in any order.
float value_of(std::uint32_t rank, std::size_t i) {
  return static_cast<float>((i + rank) % 17);
}

// All connected with all, and a call of the ring over the whole buffer. Gloo reports by exception; nothing above this function sees one.
Json run(const GlooRingOptions& options) {
  gloo::rendezvous::FileStore store(options.store);
  const auto context =
      std::make_shared<gloo::rendezvous::Context>(static_cast<int>(options.rank), static_cast<int>(options.size));
  gloo::transport::tcp::attr address(options.address.c_str());
  auto device = gloo::transport::tcp::CreateDevice(address);
  context->setTimeout(kRingTimeout);
  context->connectFullMesh(store, device);

  const std::size_t elements = std::max<std::size_t>(options.model_bytes / sizeof(float), 1);
  std::vector<float> gradient(elements), sum(elements);
  for (std::size_t i = 0; i < elements; ++i) gradient[i] = value_of(options.rank, i);
  gloo::AllreduceOptions call(context);
  call.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
  call.setInput(gradient.data(), elements);
  call.setOutput(sum.data(), elements);
  using Sum = void (*)(void*, const void*, const void*, std::size_t);
  call.setReduceFunction(static_cast<Sum>(&gloo::sum<float>));
  std::vector<std::uint64_t> begin_ns, end_ns;
  for (std::uint32_t round = 0; round < options.warmup + options.rounds; ++round) {
    if (round == options.warmup) {
      if (auto ok = lab::pass_gate(options.gate, lab::kGateBefore, options.rank); !ok)
        throw std::runtime_error(ok.error().message);
    }
    const std::uint64_t begin = steady_ns();
    gloo::allreduce(call);
    const std::uint64_t end = steady_ns();
    if (round < options.warmup) continue;
    begin_ns.push_back(begin);
    end_ns.push_back(end);
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
  return {{"rank", options.rank}, {"rounds", options.rounds}, {"model_bytes", elements * sizeof(float)},
          {"begin_ns", begin_ns}, {"end_ns", end_ns},         {"digest", digest.hex()}};
}

// The fields of run_exchange_rank, but for those of our daemons. The digest is of the sums, which are checked.
Result<Json> run_gloo_ring_rank(const GlooRingOptions& options) {
  if (options.rounds == 0 || options.size == 0 || options.rank >= options.size)
    return fail(ErrorCode::kInvalidArgument, "give at least one round, and a rank below the number of ranks");
  try {
    return run(options);
  } catch (const std::exception& e) {
    return fail(ErrorCode::kUnavailable, std::string("Gloo: ") + e.what());
  }
}

}  // namespace

Measurement gloo_ring_rank() {
  const auto add = [](CliCommand command, GlooRingOptions& o) {
    command.add_option("--rank", o.rank)->required();
    command.add_option("--size", o.size)->required();
    command.add_option("--address", o.address)->required();
    command.add_option("--store", o.store)->required();
    command.add_option("--model-bytes", o.model_bytes);
    command.add_option("--rounds", o.rounds);
    command.add_option("--warmup", o.warmup);
    command.add_option("--gate", o.gate);
  };
  return {.name = "gloo-ring-rank",
          .words = "a rank of Gloo's own ring",
          .add = measures<GlooRingOptions>(add, run_gloo_ring_rank)};
}

}  // namespace tributary::bench
