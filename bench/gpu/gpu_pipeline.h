// `tributary bench gpu-pipeline`: device -> host -> push -> server -> pull -> device, with real daemons on this machine
// and ranks that share one GPU. As `tributary bench pushpull`, but for where the gradients and parameters are.
#pragma once

#include <nlohmann/json.hpp>

#include "bench/pushpull/pushpull.h"

namespace tributary::bench {

struct GpuPipelineOptions {
  PushPullOptions exchange;  // one node; device and worker_toml are set here
  int device = 0;            // as the CUDA runtime counts
  bool nccl = false;         // run the collectives with a communicator of one
};

// kNotFound with the reason without a device or in a build without CUDA. The fields are explained by
// `tributary bench gpu-pipeline --help`.
Result<nlohmann::ordered_json> run_gpu_pipeline(const GpuPipelineOptions& options);

}  // namespace tributary::bench
