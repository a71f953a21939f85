#include "bench/gpu_pipeline.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "common/cuda_devices.h"
#include "kernels/cuda_copy.h"
#include "worker/cuda_error.h"
#include "worker/device_memory_opener.h"

namespace tributary::bench {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

// Copies at a time and in all, for the link's rate.
constexpr std::size_t kCopies = 256, kCopyRepeats = 3;

// Synchronous copies on the ranks' device, from any thread.
RankDevice rank_device(std::shared_ptr<DeviceMemoryOpener> opener, int device, std::string name) {
  const auto copy = [device, name](void* to, const void* from, std::size_t bytes) -> Status {
    if (Status selected = cuda_status(cudaSetDevice(device), name, "cudaSetDevice"); !selected) return selected;
    return cuda_status(kernels::cuda::copy_and_wait(to, from, bytes), name, "copying");
  };
  return {std::move(opener), copy, copy};
}

// The link alone: what copies of chunks between pinned memory and the device reach, GB/s.
Result<double> link_rate(const std::string& name, std::size_t chunk_bytes, bool to_host) {
  void *device = nullptr, *host = nullptr;
  cudaStream_t stream = nullptr;
  Status status = cuda_status(cudaMalloc(&device, chunk_bytes), name, "cudaMalloc");
  if (status) status = cuda_status(cudaHostAlloc(&host, chunk_bytes, 0), name, "cudaHostAlloc");
  if (status) status = cuda_status(cudaStreamCreate(&stream), name, "cudaStreamCreate");
  double best = 0.0;
  for (std::size_t repeat = 0; repeat < kCopyRepeats && status; ++repeat) {
    const auto begin = Clock::now();
    for (std::size_t i = 0; i < kCopies && status; ++i) {
      const cudaError_t copied = to_host ? cudaMemcpyAsync(host, device, chunk_bytes, cudaMemcpyDeviceToHost, stream)
                                         : cudaMemcpyAsync(device, host, chunk_bytes, cudaMemcpyHostToDevice, stream);
      status = cuda_status(copied, name, "cudaMemcpyAsync");
    }
    if (status) status = cuda_status(cudaStreamSynchronize(stream), name, "cudaStreamSynchronize");
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    best = std::max(best, 1e-9 * static_cast<double>(kCopies * chunk_bytes) / seconds);
  }
  if (stream) cudaStreamDestroy(stream);
  cudaFreeHost(host);
  cudaFree(device);
  if (!status) return tl::unexpected(status.error());
  return best;
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
  auto opener = make_cuda_memory_opener(options.device);
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
  Status selected = cuda_status(cudaSetDevice(options.device), name, "cudaSetDevice");
  if (!selected) return tl::unexpected(selected.error());
  const auto to_host = link_rate(name, chunk, true);
  if (!to_host) return tl::unexpected(to_host.error());
  const auto to_device = link_rate(name, chunk, false);
  if (!to_device) return tl::unexpected(to_device.error());
  (*result)["device"] = name;
  (*result)["nccl"] = options.nccl;
  (*result)["time_split"] = time_split(*result);
  (*result)["link"] = {{"device_to_host_gb_per_s", *to_host}, {"host_to_device_gb_per_s", *to_device}};
  return result;
}

}  // namespace tributary::bench
