#include "bench/gpu/gpu_costs.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/gpu/gpu_scope.h"
#include "bench/timing.h"
#include "kernels/tree_sum.h"

namespace tributary::bench {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kCalls = 200;              // of a kind in a row; far fewer than a stream's queue holds
constexpr std::size_t kSmall = 1024;             // floats of a launch that costs nothing but itself
constexpr std::size_t kGapBytes = 256u << 10;    // of the copies between host functions
constexpr std::size_t kMaxCopyBytes = 1u << 30;  // of one copy
constexpr std::size_t kPage = 4096;
constexpr unsigned kMaxRepetitions = 1000;

double us_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

// After the first failure nothing more is asked of the device, and figures are worth nothing.
class Costs {
 public:
  explicit Costs(const GpuCostsOptions& options) : options_(options) {}

  Result<Json> run() {
    std::size_t most = kGapBytes;
    for (const std::size_t bytes : options_.sizes) most = std::max(most, bytes);
    scope_.select(options_.device);
    for (cudaStream_t* stream : {&stream_, &other_}) *stream = scope_.stream();
    event_ = scope_.event();
    device_ = scope_.memory(2 * most);
    pinned_ = scope_.pinned(2 * most);
    // Whole pages: that is what is pinned.
    const std::size_t bytes = (2 * most + kPage - 1) / kPage * kPage;
    registered_.reset(static_cast<std::byte*>(std::aligned_alloc(kPage, bytes)));
    if (!registered_) return fail(ErrorCode::kLimit, "no " + std::to_string(bytes) + " bytes of memory");
    std::memset(registered_.get(), 0, bytes);
    scope_.register_memory(registered_.get(), bytes);
    half_ = most;
    if (!scope_.status()) return tl::unexpected(scope_.status().error());
    Json out = {{"device", scope_.name()}, {"repetitions", options_.repetitions}};
    out["calls_us"] = calls();
    out["host_function_gap_us"] = gap();
    out["links"] = links();
    if (!scope_.status()) return tl::unexpected(scope_.status().error());
    return out;
  }

 private:
  // The median over the repetitions, after one that warms up.
  double median_of(const std::function<double()>& once) {
    std::vector<double> values;
    for (unsigned i = 0; i <= options_.repetitions && scope_.status(); ++i) {
      const double value = once();
      if (i != 0) values.push_back(value);
    }
    return values.empty() ? 0.0 : median(std::move(values));
  }

  void launch() {
    kernels::cuda::scale(static_cast<float*>(device_), kSmall, 1.0f, stream_);
    scope_.check(cudaGetLastError(), "a launch");
  }
  void wait() { scope_.check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }
  void copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
    scope_.check(cudaMemcpyAsync(to, from, bytes, kind, stream), "cudaMemcpyAsync");
  }
  void host_function(cudaStream_t stream) {
    scope_.check(cudaLaunchHostFunc(
                     stream, [](void*) {}, nullptr),
                 "cudaLaunchHostFunc");
  }

  Json calls() {
    const auto each = [this](const std::function<void()>& call) {
      return median_of([&] {
        const auto begin = Clock::now();
        for (std::size_t i = 0; i < kCalls; ++i) call();
        const double us = us_since(begin) / static_cast<double>(kCalls);
        wait();
        return us;
      });
    };
    Json out;
    out["launch"] = each([this] { launch(); });
    out["copy"] = each([this] { copy(pinned_, device_, 64, cudaMemcpyDeviceToHost, stream_); });
    out["record"] = each([this] { scope_.check(cudaEventRecord(event_, stream_), "cudaEventRecord"); });
    out["wait"] = each([this] { scope_.check(cudaStreamWaitEvent(stream_, event_, 0), "cudaStreamWaitEvent"); });
    out["host_function"] = each([this] { host_function(stream_); });
    out["launch_and_wait"] = median_of([this] {
      const auto begin = Clock::now();
      launch();
      wait();
      return us_since(begin);
    });
    return out;
  }

  double gap() {
    const auto pass = [this](bool functions) {
      const auto begin = Clock::now();
      for (std::size_t i = 0; i < kCalls; ++i) {
        copy(pinned_, device_, kGapBytes, cudaMemcpyDeviceToHost, stream_);
        if (functions) host_function(stream_);
      }
      wait();
      return us_since(begin) / static_cast<double>(kCalls);
    };
    return median_of([&] { return pass(true) - pass(false); });
  }

  Json links() {
    Json rows = Json::array();
    for (const std::size_t bytes : options_.sizes) {
      for (const bool registered : {false, true}) {
        for (const char* direction : {"to_host", "to_device", "both"}) {
          for (const bool callbacks : {false, true}) {
            if (callbacks && registered) continue;  // pinned memory has shown it
            const std::string way = direction;
            const double rate =
                median_of([&] { return link(bytes, registered, way != "to_device", way != "to_host", callbacks); });
            rows.push_back({{"bytes", bytes},
                            {"memory", registered ? "registered" : "pinned"},
                            {"direction", direction},
                            {"callbacks", callbacks},
                            {"gb_per_s", rate}});
          }
        }
      }
    }
    return rows;
  }

  double link(std::size_t bytes, bool registered, bool up, bool down, bool callbacks) {
    std::byte* host = registered ? registered_.get() : static_cast<std::byte*>(pinned_);
    auto* device = static_cast<std::byte*>(device_);
    const std::size_t copies = std::max<std::size_t>(options_.link_bytes / bytes, 4);
    const auto begin = Clock::now();
    for (std::size_t i = 0; i < copies && scope_.status(); ++i) {
      if (up) copy(host, device, bytes, cudaMemcpyDeviceToHost, stream_);
      if (up && callbacks) host_function(stream_);
      if (down) copy(device + half_, host + half_, bytes, cudaMemcpyHostToDevice, other_);
      if (down && callbacks) host_function(other_);
    }
    wait();
    scope_.check(cudaStreamSynchronize(other_), "cudaStreamSynchronize");
    return 1e-3 * static_cast<double>(copies * bytes * (up && down ? 2 : 1)) / us_since(begin);
  }

  const GpuCostsOptions& options_;
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::unique_ptr<std::byte, Free> registered_;
  GpuScope scope_{"CUDA"};
  cudaStream_t stream_ = nullptr, other_ = nullptr;
  cudaEvent_t event_ = nullptr;
  void *device_ = nullptr, *pinned_ = nullptr;
  std::size_t half_ = 0;  // where the way down has its memory
};

Status check(const GpuCostsOptions& options) {
  const auto bad = [](const std::string& what) { return fail(ErrorCode::kInvalidArgument, what); };
  if (options.repetitions == 0 || options.repetitions > kMaxRepetitions) {
    return bad("repetitions = " + std::to_string(options.repetitions) + "; give 1 to " +
               std::to_string(kMaxRepetitions));
  }
  for (const std::size_t bytes : options.sizes) {
    if (bytes == 0 || bytes > kMaxCopyBytes) {
      return bad("a copy of " + std::to_string(bytes) + " bytes; give 1 byte to 1 GiB");
    }
  }
  return {};
}

}  // namespace

Result<Json> run_gpu_costs(const GpuCostsOptions& options) {
  if (Status status = check(options); !status) return tl::unexpected(status.error());
  return Costs(options).run();
}

}  // namespace tributary::bench
