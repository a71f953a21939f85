// bench gpu-costs: what other processes on a device change. This process never makes a kernel fail: that is a peer's.
#include <cuda_runtime_api.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bench/gpu/gpu_costs.h"
#include "bench/gpu/gpu_scope.h"
#include "bench/scratch_folder.h"
#include "bench/timing.h"
#include "common/config/json_text.h"
#include "kernels/cuda_copy.h"
#include "kernels/tree_sum.h"
#include "session/trainer_device.h"
#include "tools/cluster/process.h"

namespace tributary::bench {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr const char* kWho = "CUDA";
constexpr std::size_t kShared = 256u << 20;  // bytes that are lent: enough to be seen when they come back
constexpr std::size_t kFew = 1024;           // floats of a launch that costs nothing but itself
constexpr unsigned kLaunches = 200;
constexpr milliseconds kPeerBegins{20'000};  // to set up its context, and to say so
constexpr milliseconds kFaultTold{5'000};    // for the report of a fault

double ms_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

std::string in_words(cudaError_t error) {
  return error == cudaSuccess ? "works" : std::string(cudaGetErrorName(error)) + ": " + cudaGetErrorString(error);
}

std::string to_hex(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte byte : bytes) {
    constexpr const char* kDigits = "0123456789abcdef";
    text += kDigits[std::to_integer<unsigned>(byte) >> 4];
    text += kDigits[std::to_integer<unsigned>(byte) & 15];
  }
  return text;
}

std::vector<std::byte> from_hex(const std::string& text) {
  std::vector<std::byte> bytes;
  for (std::size_t i = 0; i + 1 < text.size(); i += 2) {
    bytes.push_back(static_cast<std::byte>(std::stoul(text.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

Result<std::string> lend(void* memory) {
  cudaIpcMemHandle_t handle{};
  const cudaError_t error = cudaIpcGetMemHandle(&handle, memory);
  if (error != cudaSuccess) return fail(ErrorCode::kDevice, "cudaIpcGetMemHandle: " + in_words(error));
  return to_hex(std::as_bytes(std::span(&handle, 1)));
}

// ---- A peer ----

void say(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

[[noreturn]] void wait_to_be_killed() {
  while (true) ::pause();
}

int busy(GpuScope& scope) {
  const std::size_t bytes = kShared;
  auto* values = static_cast<float*>(scope.memory(bytes));
  const cudaStream_t stream = scope.stream();
  bool told = false;
  while (scope.status()) {
    for (int i = 0; i < 32; ++i) kernels::cuda::scale(values, bytes / sizeof(float), 0.999f, stream);
    scope.check(cudaGetLastError(), "a launch");
    scope.check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    if (!std::exchange(told, true)) say("busy");
  }
  return 1;
}

int fault(GpuScope& scope, int device) {
  const cudaStream_t stream = scope.stream(), other = scope.stream();
  if (!scope.status()) return 1;
  static std::atomic<bool> ran{false};  // a late host function may still come when this returns
  // An address without memory.
  auto* nowhere = reinterpret_cast<float*>(std::uintptr_t{1} << 46);
  const auto begin = Clock::now();
  kernels::cuda::scale(nowhere, kFew, 1.0f, stream);
  (void)cudaLaunchHostFunc(
      stream, [](void*) { ran = true; }, nullptr);
  cudaError_t error = cudaErrorNotReady;
  while (error == cudaErrorNotReady && ms_since(begin) < static_cast<double>(kFaultTold.count())) {
    error = cudaStreamQuery(stream);
  }
  const double told = ms_since(begin);
  std::this_thread::sleep_for(milliseconds(200));  // a host function is called on a thread of CUDA's
  void* memory = nullptr;
  Json out = {{"error", in_words(error)}, {"told_after_ms", told}, {"host_function_ran", ran.load()}};
  out["later_calls"] = {{"cudaStreamQuery of another stream", in_words(cudaStreamQuery(other))},
                        {"cudaMalloc", in_words(cudaMalloc(&memory, 256))},
                        {"cudaSetDevice", in_words(cudaSetDevice(device))}};
  say(out.dump());
  return 0;
}

int import(const std::string& handle, int device) {
  const auto opener = make_cuda_trainer_device(device);
  if (!opener) {
    std::fprintf(stderr, "%s: %s\n", kWho, opener.error().message.c_str());
    return 1;
  }
  const std::vector<std::byte> bytes = from_hex(handle);
  const auto first = (*opener)->open(bytes), second = (*opener)->open(bytes);
  if (!first) {
    say("not opened: " + first.error().message);
  } else if (!second) {
    say("refused the second time: " + second.error().message);
  } else {
    say(*first == *second ? "opened, at the same place" : "opened, at two places");
  }
  wait_to_be_killed();
}

int lend_and_wait(GpuScope& scope) {
  void* memory = scope.memory(kShared);
  if (!scope.status()) return 1;
  const Result<std::string> handle = lend(memory);
  if (!handle) {
    std::fprintf(stderr, "%s: %s\n", kWho, handle.error().message.c_str());
    return 1;
  }
  say(*handle);
  wait_to_be_killed();
}

// ---- Here ----

class Peers {
 public:
  Peers(int device, std::string program) : device_(device), program_(std::move(program)) {}

  Result<Json> run() {
    scope_.select(device_);
    stream_ = scope_.stream();
    values_ = static_cast<float*>(scope_.memory(kFew * sizeof(float)));
    Json out;
    out["time_slicing"] = time_slicing();
    out["ipc"] = ipc();
    out["fault"] = fault();
    if (!scope_.status()) return tl::unexpected(scope_.status().error());
    return out;
  }

 private:
  struct Peer {
    Process process;
    std::string said;     // its first line
    std::string problem;  // why there is none
  };

  // Until it has said its first line.
  Peer start(const char* role, const std::string& handle = {}) {
    Peer peer;
    const std::string log = folder_.path + "/" + role + ".out";
    std::vector<std::string> argv = {program_, "bench", "gpu-peer", role, "--device", std::to_string(device_)};
    if (!handle.empty()) argv.insert(argv.end(), {"--handle", handle});
    auto process = Process::spawn({.argv = std::move(argv), .log_file = log});
    if (!process) {
      peer.problem = process.error().message;
      return peer;
    }
    peer.process = std::move(*process);
    const auto begin = Clock::now();
    while (peer.said.empty() && Clock::now() - begin < kPeerBegins) {
      const bool running = peer.process.running();
      peer.said = first_line(log);
      if (!running) break;
      std::this_thread::sleep_for(milliseconds(10));
    }
    const auto ended = peer.process.poll();
    if (ended && !ended->ok()) {
      peer.problem = ended->describe() + (peer.said.empty() ? "" : ": " + std::exchange(peer.said, {}));
    } else if (peer.said.empty()) {
      peer.problem = "said nothing for " + std::to_string(kPeerBegins.count()) + " ms";
    }
    return peer;
  }
  static std::string first_line(const std::string& file) {
    std::ifstream in(file);
    std::string line;
    return std::getline(in, line) && !in.eof() ? line : "";
  }

  double launch_and_wait_us() {
    std::vector<double> times;
    for (unsigned i = 0; i < kLaunches && scope_.status(); ++i) {
      const auto begin = Clock::now();
      kernels::cuda::scale(values_, kFew, 1.0f, stream_);
      scope_.check(cudaGetLastError(), "a launch");
      scope_.check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
      times.push_back(1e3 * ms_since(begin));
    }
    return times.empty() ? 0.0 : median(std::move(times));
  }

  Json time_slicing() {
    Json out = {{"alone_us", launch_and_wait_us()}};
    Peer peer = start("busy");
    if (!peer.problem.empty()) {
      out["problem"] = peer.problem;
      return out;
    }
    out["beside_another_us"] = launch_and_wait_us();
    peer.process.terminate(milliseconds(0));
    return out;
  }

  std::size_t free_memory() {
    std::size_t free = 0, total = 0;
    scope_.check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    return free;
  }

  Json ipc() {
    Json out;
    void* memory = nullptr;
    const std::size_t before = free_memory();
    scope_.check(cudaMalloc(&memory, kShared), "cudaMalloc");
    if (!scope_.status()) return out;
    if (const auto handle = lend(memory); !handle) {
      out["problem"] = handle.error().message;
    } else {
      Peer peer = start("import", *handle);
      out["opened_twice"] = peer.problem.empty() ? peer.said : peer.problem;
      if (peer.process) peer.process.terminate(milliseconds(0));
    }
    const cudaError_t freed = cudaFree(memory);
    const std::size_t after = free_memory();
    out["importer_killed"] = {{"cudaFree", in_words(freed)}, {"bytes_not_back", before > after ? before - after : 0}};

    Peer peer = start("export");
    if (!peer.problem.empty()) {
      out["problem"] = peer.problem;
      return out;
    }
    const auto opener = make_cuda_trainer_device(device_);
    const auto opened = opener ? (*opener)->open(from_hex(peer.said)) : tl::unexpected(opener.error());
    peer.process.terminate(milliseconds(0));
    if (!opened) {
      out["exporter_killed"] = {{"open", opened.error().message}};
      return out;
    }
    std::array<float, 16> values{};
    const cudaError_t read = kernels::cuda::copy_and_wait(values.data(), *opened, sizeof values);
    out["exporter_killed"] = {{"a copy from its memory", in_words(read)}};
    (*opener)->close(*opened);
    return out;
  }

  Json fault() {
    Peer peer = start("fault");
    if (!peer.problem.empty()) return {{"problem", peer.problem}};
    Json out = ordered_json_in(peer.said);
    if (out.is_discarded()) out = {{"problem", "it said: " + peer.said}};
    kernels::cuda::scale(values_, kFew, 1.0f, stream_);
    cudaError_t here = cudaGetLastError();
    if (here == cudaSuccess) here = cudaStreamSynchronize(stream_);
    out["here"] = in_words(here);
    return out;
  }

  const int device_;
  const std::string program_;
  ScratchFolder folder_;
  GpuScope scope_{kWho};
  cudaStream_t stream_ = nullptr;
  float* values_ = nullptr;
};

}  // namespace

Result<Json> run_gpu_peers(int device, const std::string& program) {
  return Peers(device, program).run();
}

int run_gpu_peer(GpuPeer peer, int device, const std::string& handle) {
  GpuScope scope(kWho);
  scope.select(device);
  int status = 1;
  if (scope.status()) {
    switch (peer) {
      case GpuPeer::kBusy:
        status = busy(scope);
        break;
      case GpuPeer::kFault:
        status = fault(scope, device);
        break;
      case GpuPeer::kImport:
        status = import(handle, device);
        break;
      case GpuPeer::kExport:
        status = lend_and_wait(scope);
        break;
    }
  }
  if (!scope.status()) std::fprintf(stderr, "%s\n", scope.status().error().message.c_str());
  return status;
}

}  // namespace tributary::bench
