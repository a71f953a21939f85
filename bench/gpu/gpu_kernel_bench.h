// `tributary bench gpu-kernels`: the speed of the CUDA kernels (kernels/) on a device, compared with the bandwidth of a
// copy from device memory to device memory in the same run.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>

#include "common/base/result.h"

namespace tributary {

struct GpuKernelBenchOptions {
  std::size_t elements = std::size_t{1} << 28;  // fp32 values of each array: 1 GiB, far beyond every cache
  double top_k = 0.01;                          // the share of values that top-k sends
  unsigned repetitions = 20;
  int device = 0;  // as the CUDA runtime counts
};

// Runs the measurement and returns
//
//   device           name of it
//   elements, top_k, repetitions
//   clock            "cuda_events": the time that passed on the stream around the launches of one call
//   copy_gb_per_s    of the copy, bytes read and bytes written (as below)
//   results[]        one object for each kernel:
//     kernel
//     bytes_per_value  read and written, by the kernel's definition: each input once, each output once. Top-k reads
//     values
//                      more often (kernels/topk.cu); that is counted here
//     gb_per_s         bytes_per_value times elements per second
//     ratio            gb_per_s / copy_gb_per_s
//     one_pass         whether the kernel is bound by memory in one pass
//
// All figures are medians over the repetitions, each of which measures everything once; `ratio` is the median of the
// repetitions' ratios. Takes about 16 arrays of `elements` floats. Errors: kInvalidArgument for an impossible number;
// kUnavailable without a device, or in a build without CUDA; kLimit if the device has not the memory; kInternal if a
// kernel fails.
Result<nlohmann::json> run_gpu_kernel_bench(const GpuKernelBenchOptions& options);

}  // namespace tributary
