#include "bench/kernel_bench.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "bench/measurements.h"
#include "bench/sample_gradients.h"
#include "bench/timing.h"
#include "common/config/choice.h"
#include "common/math/fused_step.h"
#include "kernels/cast.h"
#include "kernels/facts.h"
#include "kernels/int8.h"
#include "kernels/onebit.h"
#include "kernels/topk.h"
#include "kernels/tree_sum.h"

namespace tributary {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMinRepetitions = 5;
constexpr std::size_t kMaxRepetitions = 10000;
constexpr std::size_t kMaxElements = std::size_t{1} << 32;
constexpr double kMaxSeconds = 3600.0;

// The arrays that the kernels read and write. Frames of a chunk lie one after another.
struct Arrays {
  KernelBenchOptions options;
  std::size_t k;  // of a whole chunk
  std::unique_ptr<kernels::Optimizer> optimizer;
  std::array<std::vector<float>, 4> gradients_in;
  std::array<std::vector<float>, 1 + kernels::kMaxSlots> stepped;  // parameters, then the optimizer's state
  std::vector<float> out, residual, estimate;
  std::vector<std::uint16_t> bf16, fp16;
  std::vector<float> scales8, scales1;
  std::vector<std::int8_t> q;
  std::vector<std::uint8_t> signs;
  std::vector<std::uint32_t> counts, scratch;
  std::vector<float> top_values;
  std::vector<std::uint16_t> top_offsets;
  std::vector<float> residual1, residual_top;
  double sink = 0.0;  // uses all results, so that none is optimized away

  std::size_t chunks() const { return (options.elements + options.chunk_elements - 1) / options.chunk_elements; }

  explicit Arrays(const KernelBenchOptions& o) : options(o) {
    const std::size_t n = o.elements, c = o.chunk_elements;
    optimizer = kernels::make_optimizer(o.optimizer,
                                        kernels::options_of(o.optimizer, {{"weight_decay", 0.01}, {"momentum", 0.9}}));
    k = std::max<std::size_t>(1, static_cast<std::size_t>(std::ceil(o.top_k * static_cast<double>(c))));
    for (std::uint32_t i = 0; i < 4; ++i) gradients_in[i] = bench::sample_gradients(n, i + 1);
    for (auto* array : {&out, &residual, &estimate, &residual1, &residual_top}) array->resize(n);
    for (int i = 0; i <= optimizer->slots(); ++i) stepped[i].resize(n);
    for (auto* array : {&bf16, &fp16}) array->resize(n);
    scales8.resize(chunks() * kernels::int8_blocks(c));
    q.resize(n);
    scales1.resize(chunks() * kernels::onebit_blocks(c));
    signs.resize(chunks() * ((c + 7) / 8));
    counts.resize(chunks() * kernels::topk_groups(c));
    top_values.resize(chunks() * k);
    top_offsets.resize(chunks() * k);
    scratch.resize(c);
  }
};

// One chunk: its number, its first value and how many it has.
struct Chunk {
  std::size_t index, first, count;
};

struct Case {
  const char* name;
  double bytes_per_value;
  std::function<void(Arrays&, const Chunk&)> run;
};

const std::byte* bytes_of(const void* at) {
  return static_cast<const std::byte*>(at);
}

std::size_t k_of(const Arrays& a, const Chunk& c) {
  return std::min(a.k, c.count);
}

// In this order: a decoder reads what its encoder has just written.
std::vector<Case> all_cases(const Arrays& arrays) {
  using namespace kernels;
  const double sent = arrays.options.top_k;
  const auto gradient = [](Arrays& a, const Chunk& c) { return a.gradients_in[0].data() + c.first; };
  const auto scales8 = [](Arrays& a, const Chunk& c) {
    return a.scales8.data() + c.index * int8_blocks(a.options.chunk_elements);
  };
  const auto scales1 = [](Arrays& a, const Chunk& c) {
    return a.scales1.data() + c.index * onebit_blocks(a.options.chunk_elements);
  };
  const auto signs = [](Arrays& a, const Chunk& c) {
    return a.signs.data() + c.index * ((a.options.chunk_elements + 7) / 8);
  };
  const auto counts = [](Arrays& a, const Chunk& c) {
    return a.counts.data() + c.index * topk_groups(a.options.chunk_elements);
  };
  // The values join the residual, then the largest leave it.
  const auto select = [=](Arrays& a, const Chunk& c) {
    float* residual = a.residual_top.data() + c.first;
    const std::array<const float*, 2> both = {residual, gradient(a, c)};
    tree_sum(both, c.count, residual);
    topk_select(residual, c.count, k_of(a, c), counts(a, c), a.top_values.data() + c.index * a.k,
                a.top_offsets.data() + c.index * a.k, a.scratch.data());
  };
  const auto sum = [](Arrays& a, const Chunk& c, std::size_t inputs) {
    std::array<const float*, 4> in;
    for (std::size_t i = 0; i < inputs; ++i) in[i] = a.gradients_in[i].data() + c.first;
    tree_sum({in.data(), inputs}, c.count, a.out.data() + c.first);
  };
  // In place, as servers do where nobody reads the parameters of before.
  const auto step = [](Arrays& a, const Chunk& c, std::size_t inputs) {
    std::array<PushFrame, 4> frames;
    for (std::size_t i = 0; i < inputs; ++i) frames[i] = {bytes_of(a.gradients_in[i].data() + c.first)};
    FusedArgs args;
    args.elements = c.count;
    args.frames = {frames.data(), inputs};
    args.push = &encoding_for(EncodingId::kFp32);
    args.scale = 1.0f / static_cast<float>(inputs);
    args.param_in = args.param_out = a.stepped[0].data() + c.first;
    for (int slot = 0; slot < a.optimizer->slots(); ++slot) {
      args.state_in[slot] = args.state_out[slot] = a.stepped[1 + slot].data() + c.first;
    }
    fused_step(*a.optimizer, a.optimizer->scalars(1000, 1e-3), args);
  };
  const double stepped = 8.0 * (1 + arrays.optimizer->slots());  // read and written
  return {
      {"memcpy", 8,
       [=](Arrays& a, const Chunk& c) {
         std::memcpy(a.out.data() + c.first, gradient(a, c), c.count * sizeof(float));
       }},
      {"fp32 to bf16", 6, [=](Arrays& a, const Chunk& c) { fp32_to_bf16(gradient(a, c), c.count, &a.bf16[c.first]); }},
      {"bf16 to fp32", 6, [](Arrays& a, const Chunk& c) { bf16_to_fp32(&a.bf16[c.first], c.count, &a.out[c.first]); }},
      {"fp32 to fp16", 6, [=](Arrays& a, const Chunk& c) { fp32_to_fp16(gradient(a, c), c.count, &a.fp16[c.first]); }},
      {"fp16 to fp32", 6, [](Arrays& a, const Chunk& c) { fp16_to_fp32(&a.fp16[c.first], c.count, &a.out[c.first]); }},
      {"facts", 4, [=](Arrays& a, const Chunk& c) { a.sink += gradient_facts(gradient(a, c), c.count).sum_squares; }},
      {"fp32 to bf16 with facts", 6,
       [=](Arrays& a, const Chunk& c) {
         a.sink += fp32_to_bf16_facts(gradient(a, c), c.count, &a.bf16[c.first]).sum_squares;
       }},
      {"fp32 to fp16 with facts", 6,
       [=](Arrays& a, const Chunk& c) {
         a.sink += fp32_to_fp16_facts(gradient(a, c), c.count, &a.fp16[c.first]).sum_squares;
       }},
      {"int8 encode", 13,
       [=](Arrays& a, const Chunk& c) {
         int8_encode(gradient(a, c), c.count, &a.residual[c.first], scales8(a, c), &a.q[c.first]);
       }},
      {"int8 encode without residual", 5,
       [=](Arrays& a, const Chunk& c) { int8_encode(gradient(a, c), c.count, nullptr, scales8(a, c), &a.q[c.first]); }},
      {"int8 encode delta", 13,
       [=](Arrays& a, const Chunk& c) {
         int8_encode_delta(gradient(a, c), c.count, &a.estimate[c.first], scales8(a, c), &a.q[c.first]);
       }},
      {"int8 decode", 5,
       [=](Arrays& a, const Chunk& c) {
         int8_decode(bytes_of(scales8(a, c)), &a.q[c.first], 0, c.count, &a.out[c.first]);
       }},
      {"int8 decode add", 9,
       [=](Arrays& a, const Chunk& c) {
         int8_decode_add(bytes_of(scales8(a, c)), &a.q[c.first], 0, c.count, &a.out[c.first]);
       }},
      {"onebit encode", 12.125,
       [=](Arrays& a, const Chunk& c) {
         onebit_encode(gradient(a, c), c.count, &a.residual1[c.first], scales1(a, c), signs(a, c));
       }},
      {"onebit decode", 4.125,
       [=](Arrays& a, const Chunk& c) {
         onebit_decode(bytes_of(scales1(a, c)), signs(a, c), 0, c.count, &a.out[c.first]);
       }},
      {"topk encode", 12 + 6 * sent, select},
      {"topk decode", 4 + 6 * sent,
       [=](Arrays& a, const Chunk& c) {
         topk_decode(bytes_of(counts(a, c)), bytes_of(&a.top_values[c.index * a.k]),
                     bytes_of(&a.top_offsets[c.index * a.k]), k_of(a, c), 0, c.count, &a.out[c.first]);
       }},
      {"sum of 2", 12, [=](Arrays& a, const Chunk& c) { sum(a, c, 2); }},
      {"sum of 4", 20, [=](Arrays& a, const Chunk& c) { sum(a, c, 4); }},
      {"step of 1", stepped + 4, [=](Arrays& a, const Chunk& c) { step(a, c, 1); }},
      {"step of 2", stepped + 8, [=](Arrays& a, const Chunk& c) { step(a, c, 2); }},
      {"step of 4", stepped + 16, [=](Arrays& a, const Chunk& c) { step(a, c, 4); }},
  };
}

double timed(Arrays& arrays, const Case& one) {
  const double start = bench::thread_cpu_seconds();
  for (std::size_t index = 0; index < arrays.chunks(); ++index) {
    const std::size_t first = index * arrays.options.chunk_elements;
    one.run(arrays, {index, first, std::min(arrays.options.chunk_elements, arrays.options.elements - first)});
  }
  return bench::thread_cpu_seconds() - start;
}

Status check(const KernelBenchOptions& options) {
  const auto bad = [](std::string message) { return fail(ErrorCode::kInvalidArgument, std::move(message)); };
  if (options.elements == 0 || options.elements > kMaxElements) {
    return bad("elements = " + std::to_string(options.elements) + "; give 1 to 2^32");
  }
  if (options.chunk_elements == 0 || options.chunk_elements > options.elements) {
    return bad("chunk_elements = " + std::to_string(options.chunk_elements) + "; give 1 to the number of elements, " +
               std::to_string(options.elements));
  }
  if (!(options.top_k > 0.0 && options.top_k <= 1.0)) {
    return bad("top_k = " + std::to_string(options.top_k) + "; give more than 0, up to 1");
  }
  if (!(options.seconds > 0.0 && options.seconds <= kMaxSeconds)) {
    return bad("seconds = " + std::to_string(options.seconds) + "; give more than 0, up to 3600");
  }
  if (!kernels::optimizer_kind(options.optimizer)) {
    return bad("optimizer '" + options.optimizer + "' " + must_be_one_of(kernels::optimizer_names()));
  }
  return {};
}

nlohmann::json measure(const KernelBenchOptions& options) {
  Arrays arrays(options);
  const std::vector<Case> cases = all_cases(arrays);
  std::vector<std::vector<double>> seconds(cases.size()), ratios(cases.size());
  const auto once = [&](bool record) {
    double copy = 0.0;
    for (std::size_t i = 0; i < cases.size(); ++i) {
      const double taken = timed(arrays, cases[i]);
      if (i == 0) copy = taken;
      if (!record) continue;
      seconds[i].push_back(taken);
      ratios[i].push_back(copy / taken);
    }
  };
  once(false);
  const Clock::time_point start = Clock::now();
  do {
    once(true);
  } while (seconds[0].size() < kMinRepetitions ||
           (seconds[0].size() < kMaxRepetitions &&
            std::chrono::duration<double>(Clock::now() - start).count() < options.seconds));

  const double gigabytes = static_cast<double>(options.elements) * sizeof(float) * 1e-9;
  nlohmann::json out = {{"elements", options.elements},
                        {"chunk_elements", options.chunk_elements},
                        {"top_k", options.top_k},
                        {"optimizer", options.optimizer},
                        {"clock", "thread_cpu"},
                        {"repetitions", seconds[0].size()},
                        {"memcpy_gb_per_s", gigabytes / bench::median(seconds[0])},
                        {"results", nlohmann::json::array()}};
  for (std::size_t i = 1; i < cases.size(); ++i) {
    out["results"].push_back({{"kernel", cases[i].name},
                              {"gb_per_s", gigabytes / bench::median(seconds[i])},
                              {"bytes_per_value", cases[i].bytes_per_value},
                              {"ratio", bench::median(ratios[i])}});
  }
  return out;
}

}  // namespace

Result<nlohmann::json> run_kernel_bench(const KernelBenchOptions& options) {
  if (Status status = check(options); !status) return tl::unexpected(status.error());
  try {
    return measure(options);
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::kLimit,
                "no memory for the arrays of " + std::to_string(options.elements) + " values; give fewer elements");
  }
}

namespace bench {

Measurement kernels() {
  const auto add = [](CliCommand command, KernelBenchOptions& o) {
    add_bytes(command, "--elements", o.elements, "values")->capture_default_str();
    add_bytes(command, "--chunk-elements", o.chunk_elements, "values that one call handles")->capture_default_str();
    command.add_option("--top-k", o.top_k, "share of the values that top-k sends")
        ->check(in_range(1e-6, 1.0))
        ->capture_default_str();
    add_optimizer(command, o.optimizer);
    command.add_option("--seconds", o.seconds, "of measuring")->check(in_range(0.1, 3600.0))->capture_default_str();
  };
  return {.name = "kernels",
          .summary = "the CPU kernels, and the servers' step, on one core beside memcpy",
          .words = "Fields: bench/kernel_bench.h",
          .columns = "kernel,gb_per_s,ratio",
          .add = measures<KernelBenchOptions>(add, run_kernel_bench)};
}

}  // namespace bench

}  // namespace tributary
