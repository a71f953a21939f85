#include "bench/optimizer_bench.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <functional>
#include <latch>
#include <memory>
#include <new>
#include <span>
#include <thread>

#include "bench/measurements.h"
#include "bench/timing.h"
#include "common/config/choice.h"
#include "common/math/fused_step.h"
#include "common/system/buffer_pool.h"
#include "kernels/dispatch.h"

namespace tributary {
namespace {

using bench::median;
using bench::thread_cpu_seconds;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kMaxInputs = 8;
constexpr std::size_t kStepMinRepetitions = 5;
constexpr std::size_t kStepMaxRepetitions = 10000;
constexpr std::size_t kStepMaxElements = std::size_t{1} << 33;
constexpr std::size_t kStepMaxChunkBytes = std::size_t{1} << 30;
constexpr unsigned kMaxThreads = 256;
constexpr double kStepMaxSeconds = 3600.0;

// The arrays of one chunk as a server holds them, each in a buffer of its own.
struct BenchChunk {
  std::size_t elements = 0;
  std::array<BufferRef, 1 + kernels::kMaxSlots> arrays;  // parameters, then the optimizer's state
  std::array<BufferRef, kMaxInputs> frames;
};

// The bound: reads every frame, reads and writes every array. It adds a square, so that second moments stay what they
// must be, not negative. Plain SSE code reaches the memory's rate, as wider code does.
template <std::size_t kInputs, std::size_t kArrays>
void stream(const BenchChunk& chunk) {
  std::array<const float*, kInputs> in;
  std::array<float*, kArrays> out;
  for (std::size_t k = 0; k < kInputs; ++k) in[k] = chunk.frames[k].floats().data();
  for (std::size_t k = 0; k < kArrays; ++k) out[k] = chunk.arrays[k].floats().data();
  TRIBUTARY_ELEMENTWISE
  for (std::size_t i = 0; i < chunk.elements; ++i) {
    float sum = in[0][i];
    for (std::size_t k = 1; k < kInputs; ++k) sum += in[k][i];
    for (std::size_t k = 0; k < kArrays; ++k) out[k][i] += sum * sum;
  }
}

template <std::size_t kInputs>
void stream_arrays(const BenchChunk& chunk, std::size_t arrays) {
  if (arrays == 3) return stream<kInputs, 3>(chunk);
  if (arrays == 2) return stream<kInputs, 2>(chunk);
  return stream<kInputs, 1>(chunk);
}

void stream_chunk(const BenchChunk& chunk, std::size_t inputs, std::size_t arrays) {
  if (inputs == 8) return stream_arrays<8>(chunk, arrays);
  if (inputs == 4) return stream_arrays<4>(chunk, arrays);
  if (inputs == 2) return stream_arrays<2>(chunk, arrays);
  return stream_arrays<1>(chunk, arrays);
}

void fused_chunk(const BenchChunk& chunk, std::size_t inputs, const kernels::Optimizer& optimizer,
                 const kernels::StepScalars& scalars) {
  std::array<PushFrame, kMaxInputs> frames;
  for (std::size_t k = 0; k < inputs; ++k) frames[k] = {chunk.frames[k].data()};
  FusedArgs args;
  args.elements = chunk.elements;
  args.frames = {frames.data(), inputs};
  args.push = &encoding_for(EncodingId::kFp32);
  args.scale = static_cast<float>(1.0 / (64.0 * static_cast<double>(inputs)));  // 64 samples a node
  args.param_in = args.param_out = chunk.arrays[0].floats().data();
  for (int slot = 0; slot < optimizer.slots(); ++slot) {
    args.state_in[slot] = args.state_out[slot] = chunk.arrays[1 + slot].floats().data();
  }
  fused_step(optimizer, scalars, args);
}

// Does `work` on every chunk, on `threads` threads at once; returns the CPU seconds of the slowest one. On free cores
// that is the time that passed; on shared ones, other processes' turns do not count, while waiting for memory does.
double timed_pass(std::span<const BenchChunk> chunks, unsigned threads,
                  const std::function<void(const BenchChunk&)>& work) {
  std::latch ready(threads);
  std::vector<double> seconds(threads);
  const auto share = [&](unsigned thread) {
    const std::size_t begin = chunks.size() * thread / threads, end = chunks.size() * (thread + 1) / threads;
    ready.arrive_and_wait();
    const double start = thread_cpu_seconds();
    for (const BenchChunk& chunk : chunks.subspan(begin, end - begin)) work(chunk);
    seconds[thread] = thread_cpu_seconds() - start;
  };
  {
    std::vector<std::jthread> others;
    for (unsigned thread = 1; thread < threads; ++thread) others.emplace_back(share, thread);
    share(0);
  }
  return *std::max_element(seconds.begin(), seconds.end());
}

Status check(const OptimizerBenchOptions& options) {
  const auto bad = [](std::string message) { return fail(ErrorCode::kInvalidArgument, std::move(message)); };
  if (options.elements == 0 || options.elements > kStepMaxElements) {
    return bad("elements = " + std::to_string(options.elements) + "; give 1 to 2^33");
  }
  if (options.chunk_bytes == 0 || options.chunk_bytes > kStepMaxChunkBytes ||
      options.chunk_bytes % sizeof(float) != 0) {
    return bad("chunk_bytes = " + std::to_string(options.chunk_bytes) + "; give a multiple of 4 up to 1 GiB");
  }
  if (!(options.seconds > 0.0 && options.seconds <= kStepMaxSeconds)) {
    return bad("seconds = " + std::to_string(options.seconds) + "; give more than 0, up to 3600");
  }
  if (options.threads == 0 || options.threads > kMaxThreads) {
    return bad("threads = " + std::to_string(options.threads) + "; give 1 to 256");
  }
  if (options.inputs.empty()) return bad("no number of inputs; give some of 1, 2, 4, 8");
  for (unsigned inputs : options.inputs) {
    if (inputs != 1 && inputs != 2 && inputs != 4 && inputs != 8) {
      return bad("inputs = " + std::to_string(inputs) + "; give some of 1, 2, 4, 8");
    }
  }
  return {};
}

std::vector<BenchChunk> make_chunks(BufferPool& pool, const OptimizerBenchOptions& options, std::size_t frames,
                                    const kernels::Optimizer& optimizer) {
  const std::size_t chunk_elements = options.chunk_bytes / sizeof(float);
  std::vector<BenchChunk> chunks;
  std::uint32_t random = 1;
  const auto acquire = [&](std::size_t elements) {
    BufferRef buffer = pool.acquire(elements * sizeof(float));
    for (float& value : buffer.floats()) {
      random = random * 1664525u + 1013904223u;
      value = static_cast<float>(random >> 8) * 0x1p-24f + 0x1p-24f;  // in (0, 1]: valid for every array
    }
    return buffer;
  };
  for (std::size_t first = 0; first < options.elements; first += chunk_elements) {
    BenchChunk& chunk = chunks.emplace_back();
    chunk.elements = std::min(chunk_elements, options.elements - first);
    for (int k = 0; k <= optimizer.slots(); ++k) chunk.arrays[k] = acquire(chunk.elements);
    for (std::size_t k = 0; k < frames; ++k) chunk.frames[k] = acquire(chunk.elements);
  }
  return chunks;
}

nlohmann::json measure(const OptimizerBenchOptions& options, const kernels::Optimizer& optimizer) {
  const std::size_t frames = *std::max_element(options.inputs.begin(), options.inputs.end());
  const std::size_t arrays = 1 + static_cast<std::size_t>(optimizer.slots());
  const std::size_t chunk_elements = options.chunk_bytes / sizeof(float);
  const std::size_t chunk_count = (options.elements + chunk_elements - 1) / chunk_elements;
  BufferPool pool(options.chunk_bytes, chunk_count * (arrays + frames));
  const std::vector<BenchChunk> chunks = make_chunks(pool, options, frames, optimizer);
  const kernels::StepScalars scalars = optimizer.scalars(1000, 1e-3);

  struct Samples {
    std::vector<double> fused_s, stream_s, ratio;
  };
  std::vector<Samples> samples(options.inputs.size());
  std::vector<double> memcpy_s;
  const auto once = [&](bool record) {
    const double copy = timed_pass(chunks, options.threads, [](const BenchChunk& chunk) {
      std::memcpy(chunk.arrays[0].data(), chunk.frames[0].data(), chunk.elements * sizeof(float));
    });
    if (record) memcpy_s.push_back(copy);
    for (std::size_t k = 0; k < options.inputs.size(); ++k) {
      const std::size_t inputs = options.inputs[k];
      const double bound =
          timed_pass(chunks, options.threads, [&](const BenchChunk& chunk) { stream_chunk(chunk, inputs, arrays); });
      const double fused = timed_pass(chunks, options.threads,
                                      [&](const BenchChunk& chunk) { fused_chunk(chunk, inputs, optimizer, scalars); });
      if (!record) continue;
      samples[k].stream_s.push_back(bound);
      samples[k].fused_s.push_back(fused);
      samples[k].ratio.push_back(bound / fused);
    }
  };
  once(false);
  const Clock::time_point start = Clock::now();
  do {
    once(true);
  } while (memcpy_s.size() < kStepMinRepetitions ||
           (memcpy_s.size() < kStepMaxRepetitions &&
            std::chrono::duration<double>(Clock::now() - start).count() < options.seconds));

  const double elements = static_cast<double>(options.elements);
  nlohmann::json out = {{"optimizer", options.optimizer},
                        {"elements", options.elements},
                        {"chunk_bytes", options.chunk_bytes},
                        {"threads", options.threads},
                        {"clock", "thread_cpu"},
                        {"repetitions", memcpy_s.size()},
                        {"memcpy_gb_per_s", elements * sizeof(float) / median(memcpy_s) / 1e9},
                        {"results", nlohmann::json::array()}};
  for (std::size_t k = 0; k < options.inputs.size(); ++k) {
    const double bytes = static_cast<double>((options.inputs[k] + 2 * arrays) * sizeof(float));
    const double fused = median(samples[k].fused_s);
    out["results"].push_back({{"inputs", options.inputs[k]},
                              {"parameters_per_s", elements / fused},
                              {"bytes_per_parameter", bytes},
                              {"gb_per_s", bytes * elements / fused / 1e9},
                              {"stream_gb_per_s", bytes * elements / median(samples[k].stream_s) / 1e9},
                              {"ratio", median(samples[k].ratio)}});
  }
  return out;
}

}  // namespace

Result<nlohmann::json> run_optimizer_bench(const OptimizerBenchOptions& options) {
  if (Status status = check(options); !status) return tl::unexpected(status.error());
  if (!kernels::optimizer_kind(options.optimizer)) {
    return fail(ErrorCode::kInvalidArgument,
                "optimizer '" + options.optimizer + "' " + must_be_one_of(kernels::optimizer_names()));
  }
  const auto values = kernels::options_of(options.optimizer, {{"weight_decay", 0.01}, {"momentum", 0.9}});
  try {
    return measure(options, *kernels::make_optimizer(options.optimizer, values));
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::kLimit,
                "no memory for the arrays of " + std::to_string(options.elements) + " parameters; give fewer elements");
  }
}

namespace bench {

Measurement optimizer() {
  const auto add = [](CliCommand command, OptimizerBenchOptions& o) {
    add_optimizer(command, o.optimizer);
    add_bytes(command, "--elements", o.elements, "parameters")->capture_default_str();
    add_bytes(command, "--chunk-bytes", o.chunk_bytes, "fp32 bytes of a chunk")->capture_default_str();
    command.add_option("--seconds", o.seconds, "of measuring")->check(in_range(0.1, 3600.0))->capture_default_str();
    command.add_option("--threads", o.threads)->capture_default_str();
    command.add_option("--inputs", o.inputs, "numbers of gradient frames")->delimiter(',')->capture_default_str();
  };
  return {.name = "optimizer",
          .summary = "the servers' fused sum and step beside the memory's bandwidth",
          .words = "Fields: bench/optimizer_bench.h",
          .columns = "inputs,parameters_per_s,gb_per_s,ratio",
          .add = measures<OptimizerBenchOptions>(add, run_optimizer_bench)};
}

}  // namespace bench

}  // namespace tributary
