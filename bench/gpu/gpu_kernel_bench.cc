#include "bench/gpu/gpu_kernel_bench.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/gpu/gpu_scope.h"
#include "bench/sample_gradients.h"
#include "bench/timing.h"
#include "kernels/cast.h"
#include "kernels/cuda_copy.h"
#include "kernels/facts.h"
#include "kernels/int8.h"
#include "kernels/onebit.h"
#include "kernels/step/cuda_optimizer.h"
#include "kernels/topk.h"
#include "kernels/tree_sum.h"

namespace tributary {
namespace {

namespace cuda = kernels::cuda;

constexpr std::size_t kMaxElements = (std::size_t{1} << 32) - 1;  // what top-k can count
constexpr unsigned kMaxRepetitions = 10000;
constexpr std::size_t kInputs = 8;

// Fills an array by repeating what fits into a few megabytes.
void fill(bench::GpuScope& scope, float* array, std::size_t count, std::uint32_t seed) {
  const std::vector<float> part = bench::sample_gradients(std::min<std::size_t>(count, 1u << 22), seed);
  for (std::size_t first = 0; first < count; first += part.size()) {
    const std::size_t here = std::min(part.size(), count - first);
    if (!scope.status()) return;
    scope.check(kernels::cuda::copy_and_wait(array + first, part.data(), here * sizeof(float)),
                "copying to the device");
  }
}

struct Arrays {
  bench::GpuScope& scope;
  std::size_t n, k;
  std::array<const float*, kInputs> inputs;
  float *out, *residual, *estimate, *state[kernels::kMaxSlots], *scales, *top_values;
  std::uint16_t *halves, *top_offsets;
  std::int8_t* q;
  std::uint8_t* signs;
  std::uint32_t* counts;
  void* scratch;
  kernels::GradientFacts *facts, *block_facts;

  template <class T>
  T* array(std::size_t count) {
    const std::size_t bytes = std::max<std::size_t>(count * sizeof(T), 16);
    void* at = scope.memory(bytes);
    if (scope.status()) scope.check(cudaMemset(at, 0, bytes), "cudaMemset");
    return static_cast<T*>(at);
  }

  Arrays(bench::GpuScope& around, const GpuKernelBenchOptions& options) : scope(around), n(options.elements) {
    k = std::clamp<std::size_t>(static_cast<std::size_t>(std::ceil(options.top_k * static_cast<double>(n))), 1, n);
    for (const float*& input : inputs) input = array<float>(n);
    for (float** one : {&out, &residual, &estimate}) *one = array<float>(n);
    for (float*& one : state) one = array<float>(n);
    scales = array<float>(kernels::int8_blocks(n));
    top_values = array<float>(k);
    halves = array<std::uint16_t>(n);
    top_offsets = array<std::uint16_t>(k);
    q = array<std::int8_t>(n);
    signs = array<std::uint8_t>((n + 7) / 8);
    counts = array<std::uint32_t>(kernels::topk_groups(n));
    scratch = array<std::byte>(cuda::kTopKScratchBytes);
    facts = array<kernels::GradientFacts>(1);
    block_facts = array<kernels::GradientFacts>(cuda::facts_scratch_elements(n));
  }

  cuda::SumInputs first(std::size_t count) const {
    return cuda::SumInputs(std::span<const float* const>(inputs.data(), count));
  }
};

struct Case {
  std::string name;
  double bytes_per_value;
  bool one_pass;
  std::function<void(const Arrays&, cudaStream_t)> run;
};

// The copy first. A decoder comes behind its encoder, whose frame it reads; parameters are `out`.
std::vector<Case> all_cases(const GpuKernelBenchOptions& options) {
  constexpr double kScales8 = 4.0 / kernels::kInt8Block, kScales1 = 4.0 / kernels::kOneBitBlock;
  const double sent = options.top_k;
  std::vector<Case> cases = {
      {"copy", 8, true,
       [](const Arrays& a, cudaStream_t s) {
         (void)cudaMemcpyAsync(a.out, a.inputs[0], a.n * sizeof(float), cudaMemcpyDeviceToDevice, s);
       }},
      {"scale", 8, true, [](const Arrays& a, cudaStream_t s) { cuda::scale(a.out, a.n, 0.999f, s); }},
      {"bf16 to fp32", 6, true, [](const Arrays& a, cudaStream_t s) { cuda::bf16_to_fp32(a.halves, a.n, a.out, s); }},
      {"fp16 to fp32", 6, true, [](const Arrays& a, cudaStream_t s) { cuda::fp16_to_fp32(a.halves, a.n, a.out, s); }},
  };
  for (std::size_t inputs : {2, 4, 8}) {
    cases.push_back({"sum of " + std::to_string(inputs), 4.0 * static_cast<double>(inputs + 1), true,
                     [inputs](const Arrays& a, cudaStream_t s) {
                       cuda::tree_sum({a.inputs.data(), inputs}, a.n, a.out, s);
                     }});
  }
  // Cases with one input, and with those of the four ranks of a shared device.
  for (std::size_t inputs : {1, 4}) {
    const std::string of = inputs == 1 ? "" : " of a sum of " + std::to_string(inputs);
    const double in = 4.0 * static_cast<double>(inputs);
    const auto add = [&](const char* name, double out_bytes, bool one_pass, auto run) {
      cases.push_back({name + of, in + out_bytes, one_pass,
                       [run, inputs](const Arrays& a, cudaStream_t s) { run(a, a.first(inputs), s); }});
    };
    add("fp32 to bf16", 2, true, [](const Arrays& a, const cuda::SumInputs& values, cudaStream_t s) {
      cuda::fp32_to_bf16(values, a.n, a.halves, s);
    });
    add("fp32 to fp16", 2, true, [](const Arrays& a, const cuda::SumInputs& values, cudaStream_t s) {
      cuda::fp32_to_fp16(values, a.n, 0x1p-7f, a.halves, s);
    });
    add("facts", 0, true, [](const Arrays& a, const cuda::SumInputs& values, cudaStream_t s) {
      cuda::gradient_facts(values, a.n, a.facts, a.block_facts, s);
    });
    add("fp32 to bf16 with facts", 2, true, [](const Arrays& a, const cuda::SumInputs& values, cudaStream_t s) {
      cuda::fp32_to_bf16_facts(values, a.n, a.halves, a.facts, a.block_facts, s);
    });
    add("int8 encode", 9 + kScales8, true, [](const Arrays& a, const cuda::SumInputs& values, cudaStream_t s) {
      cuda::int8_encode(values, a.n, a.residual, a.scales, a.q, s);
    });
    add("int8 encode without residual", 1 + kScales8, true,
        [](const Arrays& a, const cuda::SumInputs& values, cudaStream_t s) {
          cuda::int8_encode(values, a.n, nullptr, a.scales, a.q, s);
        });
    add("onebit encode", 8.125 + kScales1, true, [](const Arrays& a, const cuda::SumInputs& values, cudaStream_t s) {
      cuda::onebit_encode(values, a.n, a.residual, a.scales, a.signs, s);
    });
    // The values, the residual read five times and written once, and what is sent.
    add("topk encode", 24 + 10 * sent, false, [](const Arrays& a, const cuda::SumInputs& values, cudaStream_t s) {
      cuda::topk_select(values, a.residual, a.n, a.k, a.counts, a.top_values, a.top_offsets, a.scratch, s);
    });
  }
  cases.push_back({"int8 encode delta", 13 + kScales8, true, [](const Arrays& a, cudaStream_t s) {
                     cuda::int8_encode_delta(a.inputs[0], a.n, a.estimate, a.scales, a.q, s);
                   }});
  cases.push_back({"int8 decode", 5 + kScales8, true,
                   [](const Arrays& a, cudaStream_t s) { cuda::int8_decode(a.scales, a.q, a.n, a.out, s); }});
  cases.push_back({"int8 decode add", 9 + kScales8, true,
                   [](const Arrays& a, cudaStream_t s) { cuda::int8_decode_add(a.scales, a.q, a.n, a.out, s); }});
  cases.push_back({"onebit decode", 4.125 + kScales1, true,
                   [](const Arrays& a, cudaStream_t s) { cuda::onebit_decode(a.scales, a.signs, a.n, a.out, s); }});
  cases.push_back({"topk decode", 4 + 6 * sent, true, [](const Arrays& a, cudaStream_t s) {
                     cuda::topk_decode(a.counts, a.top_values, a.top_offsets, a.k, a.n, a.out, s);
                   }});
  for (const kernels::OptimizerKind& kind : kernels::optimizer_kinds()) {
    const std::shared_ptr<const kernels::Optimizer> optimizer =
        kernels::make_optimizer(kind.name, kernels::options_of(kind.name, {{"weight_decay", 0.01}, {"momentum", 0.9}}));
    cases.push_back({"step of " + std::string(kind.name), 4.0 * (3 + 2 * optimizer->slots()), true,
                     [optimizer](const Arrays& a, cudaStream_t s) {
                       kernels::BlockArgs block;
                       block.count = a.n;
                       block.grad = a.inputs[0];
                       block.param_in = block.param_out = a.out;
                       for (int slot = 0; slot < optimizer->slots(); ++slot) {
                         block.state_in[slot] = block.state_out[slot] = a.state[slot];
                       }
                       cuda::optimizer_step(*optimizer, optimizer->scalars(1000, 1e-3), block, s);
                     }});
  }
  return cases;
}

Status check(const GpuKernelBenchOptions& options) {
  const auto bad = [](std::string message) { return fail(ErrorCode::kInvalidArgument, std::move(message)); };
  if (options.elements == 0 || options.elements > kMaxElements) {
    return bad("elements = " + std::to_string(options.elements) + "; give 1 to 2^32 - 1");
  }
  if (!(options.top_k > 0.0 && options.top_k <= 1.0)) {
    return bad("top_k = " + std::to_string(options.top_k) + "; give more than 0, up to 1");
  }
  if (options.repetitions == 0 || options.repetitions > kMaxRepetitions) {
    return bad("repetitions = " + std::to_string(options.repetitions) + "; give 1 to 10000");
  }
  return {};
}

}  // namespace

Result<nlohmann::json> run_gpu_kernel_bench(const GpuKernelBenchOptions& options) {
  if (Status status = check(options); !status) return tl::unexpected(status.error());
  bench::GpuScope scope("CUDA");
  scope.select(options.device);
  const cudaStream_t stream = scope.stream();
  const cudaEvent_t start = scope.event(true), stop = scope.event(true);
  const Arrays arrays(scope, options);
  for (std::size_t i = 0; i < kInputs; ++i)
    fill(scope, const_cast<float*>(arrays.inputs[i]), arrays.n, static_cast<std::uint32_t>(i + 1));
  const auto seconds_of = [&](const Case& one) {
    // As they begin, whichever optimizer had them: another's momenta are no sums of squares.
    for (float* state : arrays.state) {
      if (scope.status()) scope.check(cudaMemsetAsync(state, 0, arrays.n * sizeof(float), stream), "cudaMemsetAsync");
    }
    if (scope.status()) scope.check(cudaEventRecord(start, stream), "cudaEventRecord");
    if (scope.status()) one.run(arrays, stream);
    scope.check(cudaGetLastError(), one.name.c_str());
    if (scope.status()) scope.check(cudaEventRecord(stop, stream), "cudaEventRecord");
    if (scope.status()) scope.check(cudaEventSynchronize(stop), one.name.c_str());
    float milliseconds = 0.0f;
    if (scope.status()) scope.check(cudaEventElapsedTime(&milliseconds, start, stop), "cudaEventElapsedTime");
    return static_cast<double>(milliseconds) * 1e-3;
  };
  const std::vector<Case> cases = all_cases(options);
  std::vector<std::vector<double>> seconds(cases.size()), ratios(cases.size());
  for (unsigned repetition = 0; repetition <= options.repetitions; ++repetition) {
    double copy_rate = 0.0;
    for (std::size_t i = 0; i < cases.size(); ++i) {
      const double taken = seconds_of(cases[i]);
      if (!scope.status()) return tl::unexpected(scope.status().error());
      const double rate = cases[i].bytes_per_value / taken;
      if (i == 0) copy_rate = rate;
      if (repetition == 0) continue;  // the first one warms up
      seconds[i].push_back(taken);
      ratios[i].push_back(rate / copy_rate);
    }
  }
  const auto gb_per_s = [&](std::size_t i) {
    return cases[i].bytes_per_value * static_cast<double>(arrays.n) / bench::median(seconds[i]) * 1e-9;
  };
  nlohmann::json out = {{"device", scope.name()},
                        {"elements", options.elements},
                        {"top_k", options.top_k},
                        {"repetitions", options.repetitions},
                        {"clock", "cuda_events"},
                        {"copy_gb_per_s", gb_per_s(0)},
                        {"results", nlohmann::json::array()}};
  for (std::size_t i = 1; i < cases.size(); ++i) {
    out["results"].push_back({{"kernel", cases[i].name},
                              {"bytes_per_value", cases[i].bytes_per_value},
                              {"gb_per_s", gb_per_s(i)},
                              {"ratio", bench::median(ratios[i])},
                              {"one_pass", cases[i].one_pass}});
  }
  return out;
}

}  // namespace tributary
