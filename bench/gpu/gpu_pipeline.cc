#include "bench/gpu/gpu_pipeline.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "bench/gpu/gpu_costs.h"
#include "common/devices/cuda_devices.h"
#include "common/devices/cuda_error.h"
#include "kernels/cuda_copy.h"
#include "session/trainer_device.h"

namespace tributary::bench {
namespace {

using Json = nlohmann::ordered_json;

// Synchronous copies on the ranks' device, from any thread.
RankDevice rank_device(std::shared_ptr<TrainerDevice> opener, int device, std::string name) {
  const auto copy = [device, name](void* to, const void* from, std::size_t bytes) -> Status {
    if (Status selected = cuda_status(cudaSetDevice(device), name, "cudaSetDevice"); !selected) return selected;
    return cuda_status(kernels::cuda::copy_and_wait(to, from, bytes), name, "copying");
  };
  return {std::move(opener), copy, copy};
}

// A chunk is always somewhere on its way: as soon as its parameters are there its next gradient is ready. So a round's
// time is what it spends on the devices, up and down, and the rest: in the window's queue, on the wire, at the server.
Json time_split(const Json& result) {
  const Json& times = result.at("device_times");
  const auto mean_us = [&](const char* seconds, const char* groups) {
    return 1e6 * times.at(seconds).get<double>() / std::max(times.at(groups).get<double>(), 1.0);
  };
  const double round_us = 1e6 / std::max(result.at("rounds_per_s").get<double>(), 1e-9);
  const double up = mean_us("reduce_seconds", "groups_reduced");
  const double down = mean_us("deliver_seconds", "groups_delivered");
  return {{"round_us", round_us},
          {"device_to_host_us", up},
          {"host_to_device_us", down},
          {"push_server_pull_us", std::max(round_us - up - down, 0.0)}};
}

}  // namespace

Result<Json> run_gpu_pipeline(const GpuPipelineOptions& options) {
  auto opener = make_cuda_trainer_device(options.device);
  if (!opener) return tl::unexpected(opener.error());
  std::string name = "cuda:" + std::to_string(options.device);
  for (const CudaDevice& device : inspect_cuda().devices) {
    if (device.index == options.device) name = device.describe();
  }
  PushPullOptions exchange = options.exchange;
  exchange.nodes = 1;
  exchange.device = rank_device(std::move(*opener), options.device, name);
  if (options.nccl) exchange.worker_toml = "[device]\nnccl = \"always\"\n";
  auto result = run_pushpull(exchange);
  if (!result) return result;

  const auto chunk = result->at("chunk_bytes").get<std::size_t>();
  const auto costs = run_gpu_costs({.device = options.device, .repetitions = 3, .sizes = {chunk}});
  if (!costs) return costs;
  (*result)["device"] = name;
  (*result)["nccl"] = options.nccl;
  (*result)["time_split"] = time_split(*result);
  for (const auto& row : costs->at("links")) {
    if (row.at("memory") != "pinned" || row.at("callbacks") == true || row.at("direction") == "both") continue;
    const bool up = row.at("direction") == "to_host";
    (*result)["link"][up ? "device_to_host_gb_per_s" : "host_to_device_gb_per_s"] = row.at("gb_per_s");
  }
  return result;
}

}  // namespace tributary::bench
