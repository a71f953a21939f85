#include "tests/emulation/runtime/emulated_runtime.h"

#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tests/emulation/cuda_emulation.h"

struct CUevent_st {
  std::uint64_t recorded = 0, completed = 0;
};

struct CUstream_st {
  struct Operation {
    std::function<void()> run;
    cudaEvent_t waits_for = nullptr;  // ... to have completed this record
    std::uint64_t record = 0;
    bool fails = false;
  };
  std::deque<Operation> queue;
  bool captured = false;
};

namespace tributary::emulation {
namespace {

constexpr std::uintptr_t kPage = 4096;

class Runtime {
 public:
  using Operation = CUstream_st::Operation;

  void start(const RuntimeOptions& options) {
    if (counts().alive != 0) throw std::logic_error("the runtime is started anew while objects are alive");
    options_ = options;
    random_.seed(options.seed);
    calls_ = 0;
    error_ = last_ = cudaSuccess;
    use_launcher([this](const void* stream, std::function<void()> run) {
      // A launch is not counted as a call: its own failures are those of the work.
      enqueue(stream_of(stream), {.run = std::move(run)});
    });
  }

  RuntimeCounts counts() const {
    std::size_t pending = 0;
    for (const auto& stream : streams_) pending += stream->queue.size();
    return {.calls = calls_,
            .pending = pending,
            .alive = device_.size() + pinned_.size() + streams_.size() - 2 + events_.size(),
            .registered = registered_.size()};
  }

  // Every call of the runtime begins with this; what it returns ends the call unless it is cudaSuccess.
  cudaError_t call() {
    if (in_host_function_) throw std::logic_error("a host function calls CUDA");
    ++calls_;
    if (options_.seed == 1) {
      while (step()) {
      }
    } else if (options_.seed > 1) {
      for (std::size_t steps = random_() % 4; steps > 0 && step(); --steps) {
      }
    }
    if (error_ != cudaSuccess) return error_;
    return cudaSuccess;
  }
  bool fails_now() const { return calls_ == options_.failing_call; }
  cudaError_t keep(cudaError_t error) {
    if (error != cudaSuccess) last_ = error;
    return error;
  }
  // Returns the answer of a call that has given something back.
  cudaError_t gave_back(cudaError_t error) {
    return keep(error == cudaSuccess && fails_now() ? cudaErrorInvalidValue : error);
  }
  cudaError_t take_last() {
    const cudaError_t error = call();
    return error != cudaSuccess ? error : std::exchange(last_, cudaSuccess);
  }

  cudaError_t enqueue(cudaStream_t stream, Operation operation) {
    operation.fails = fails_now();
    stream->queue.push_back(std::move(operation));
    return cudaSuccess;
  }

  // Runs operations until `done`.
  cudaError_t wait(const std::function<bool()>& done) {
    while (!done()) {
      if (error_ != cudaSuccess) return error_;
      if (!step()) throw std::logic_error("the host waits for what no stream will do");
    }
    return error_;
  }

  cudaStream_t stream_of(const void* stream) {
    if (stream == cudaStreamLegacy) return legacy_;
    if (stream == cudaStreamPerThread) return per_thread_;
    for (const auto& known : streams_) {
      if (known.get() == stream) return known.get();
    }
    throw std::logic_error("work on a stream that does not exist");
  }
  cudaEvent_t known(cudaEvent_t event) {
    if (!events_.contains(event)) throw std::logic_error("an event that does not exist");
    return event;
  }

  cudaError_t copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
    const bool in = kind == cudaMemcpyHostToDevice || (kind == cudaMemcpyDefault && is_device(to, bytes));
    const void* host = in ? from : to;
    require_device(in ? to : from, bytes);
    if (is_pinned(host, bytes)) {
      return enqueue(stream, {.run = [=] { std::memcpy(to, from, bytes); }});
    }
    if (in) {
      const auto* begin = static_cast<const std::byte*>(from);
      auto staged = std::make_shared<std::vector<std::byte>>(begin, begin + bytes);
      return enqueue(stream, {.run = [=] { std::memcpy(to, staged->data(), bytes); }});
    }
    enqueue(stream, {.run = [=] { std::memcpy(to, from, bytes); }});
    return wait([=] { return stream->queue.empty(); });
  }

  cudaError_t copy_now(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
    const auto idle = [this] { return legacy_->queue.empty(); };
    if (const cudaError_t error = wait(idle); error != cudaSuccess) return error;
    const cudaError_t error = copy(to, from, bytes, kind, legacy_);
    return error != cudaSuccess || (is_device(to, bytes) && !is_pinned(from, bytes)) ? error : wait(idle);
  }

  bool is_device(const void* at, std::size_t bytes) const { return within(device_, at, bytes); }
  void require_device(const void* at, std::size_t bytes) const {
    if (!is_device(at, bytes)) throw std::logic_error("an access outside of device memory");
  }

  cudaError_t allocate(std::map<const std::byte*, std::size_t>& blocks, void** memory, std::size_t bytes) {
    if (fails_now()) return keep(cudaErrorMemoryAllocation);
    *memory = std::malloc(bytes);
    std::memset(*memory, 0xff, bytes);
    blocks[static_cast<const std::byte*>(*memory)] = bytes;
    return cudaSuccess;
  }
  // Waits for everything first, as CUDA does.
  cudaError_t release(std::map<const std::byte*, std::size_t>& blocks, void* memory) {
    while (error_ == cudaSuccess && step()) {
    }
    if (blocks.erase(static_cast<const std::byte*>(memory)) == 0) throw std::logic_error("freed what is not there");
    std::free(memory);
    return cudaSuccess;
  }

  cudaError_t register_host(void* memory, std::size_t bytes) {
    const auto* begin = static_cast<const std::byte*>(memory);
    if (fails_now()) return keep(cudaErrorNotPermitted);
    if (reinterpret_cast<std::uintptr_t>(memory) % kPage != 0 || bytes % kPage != 0) return keep(cudaErrorInvalidValue);
    for (const auto& [other, size] : registered_) {
      if (begin < other + size && other < begin + bytes) return keep(cudaErrorHostMemoryAlreadyRegistered);
    }
    registered_[begin] = bytes;
    return cudaSuccess;
  }
  cudaError_t unregister_host(void* memory) {
    if (counts().pending != 0) throw std::logic_error("host memory is given up while work is under way");
    return gave_back(registered_.erase(static_cast<const std::byte*>(memory)) == 1 ? cudaSuccess
                                                                                   : cudaErrorHostMemoryNotRegistered);
  }

  cudaStream_t make_stream() { return streams_.emplace_back(std::make_unique<CUstream_st>()).get(); }
  void destroy_stream(cudaStream_t stream) {
    wait([=, this] { return error_ != cudaSuccess || stream->queue.empty(); });
    std::erase_if(streams_, [=](const auto& known) { return known.get() == stream; });
  }
  cudaEvent_t make_event() { return *events_.insert(new CUevent_st).first; }
  void destroy_event(cudaEvent_t event) {
    events_.erase(known(event));
    delete event;
  }
  void run_host_function(cudaHostFn_t function, void* argument) {
    in_host_function_ = true;
    function(argument);
    in_host_function_ = false;
  }
  bool fails_at_once(cudaError_t& error) {
    if (fails_now()) error = keep(cudaErrorInvalidValue);
    return fails_now();
  }

  std::map<const std::byte*, std::size_t> device_, pinned_;

 private:
  // Runs one operation that may run; false if there is none.
  bool step() {
    if (error_ != cudaSuccess) return false;
    std::vector<cudaStream_t> able;
    for (const auto& stream : streams_) {
      if (stream->queue.empty()) continue;
      const Operation& head = stream->queue.front();
      if (head.waits_for == nullptr || head.waits_for->completed >= head.record) able.push_back(stream.get());
    }
    if (able.empty()) return false;
    cudaStream_t stream = able[options_.seed > 1 ? random_() % able.size() : 0];
    Operation operation = std::move(stream->queue.front());
    stream->queue.pop_front();
    if (operation.fails) {
      error_ = cudaErrorIllegalAddress;
      for (const auto& each : streams_) each->queue.clear();
      return true;
    }
    if (operation.run) operation.run();
    return true;
  }

  template <class Blocks>
  static bool within(const Blocks& blocks, const void* at, std::size_t bytes) {
    const auto* begin = static_cast<const std::byte*>(at);
    auto after = blocks.upper_bound(begin);
    if (after == blocks.begin()) return false;
    const auto& [first, size] = *std::prev(after);
    return begin + bytes <= first + size;
  }
  bool is_pinned(const void* at, std::size_t bytes) const {
    return within(pinned_, at, bytes) || within(registered_, at, bytes);
  }

  RuntimeOptions options_;
  std::mt19937 random_;
  std::size_t calls_ = 0;
  cudaError_t error_ = cudaSuccess;  // of an operation: it stays
  cudaError_t last_ = cudaSuccess;   // of a call, until it is asked for
  bool in_host_function_ = false;
  std::map<const std::byte*, std::size_t> registered_;
  std::vector<std::unique_ptr<CUstream_st>> streams_;
  const cudaStream_t legacy_ = make_stream(), per_thread_ = make_stream();
  std::set<cudaEvent_t> events_;
};

Runtime& runtime() {
  static Runtime instance;
  return instance;
}

}  // namespace

void start_runtime(const RuntimeOptions& options) {
  runtime().start(options);
}
RuntimeCounts runtime_counts() {
  return runtime().counts();
}
void capture(cudaStream_t stream, bool captured) {
  runtime().stream_of(stream)->captured = captured;
}

}  // namespace tributary::emulation

using tributary::emulation::runtime;

// A call that enqueues nothing fails at once when its turn to fail has come.
#define CALL \
  if (const cudaError_t error = runtime().call(); error != cudaSuccess) return error
#define CALL_THAT_FAILS_AT_ONCE \
  CALL;                         \
  if (cudaError_t failure; runtime().fails_at_once(failure)) return failure

cudaError_t cudaGetLastError() {
  return runtime().take_last();
}
const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorIllegalAddress ? "an illegal memory access was encountered" : "emulated failure";
}
const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaErrorIllegalAddress ? "cudaErrorIllegalAddress" : "cudaErrorEmulated";
}
cudaError_t cudaSetDevice(int) {
  CALL_THAT_FAILS_AT_ONCE;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  CALL_THAT_FAILS_AT_ONCE;
  std::strcpy(properties->name, "Emulated GPU");
  return cudaSuccess;
}
cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  CALL;
  return runtime().allocate(runtime().device_, memory, bytes);
}
// Freeing works after an error, too: destructors do it.
cudaError_t cudaFree(void* memory) {
  const cudaError_t error = runtime().call();
  runtime().release(runtime().device_, memory);
  return runtime().gave_back(error);
}
cudaError_t cudaHostAlloc(void** memory, std::size_t bytes, unsigned) {
  CALL;
  return runtime().allocate(runtime().pinned_, memory, bytes);
}
cudaError_t cudaFreeHost(void* memory) {
  const cudaError_t error = runtime().call();
  runtime().release(runtime().pinned_, memory);
  return runtime().gave_back(error);
}
cudaError_t cudaHostRegister(void* memory, std::size_t bytes, unsigned) {
  CALL;
  return runtime().register_host(memory, bytes);
}
cudaError_t cudaHostUnregister(void* memory) {
  runtime().call();
  return runtime().unregister_host(memory);
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  CALL_THAT_FAILS_AT_ONCE;
  *stream = runtime().make_stream();
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  CALL_THAT_FAILS_AT_ONCE;
  *least = *greatest = 0;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  return cudaStreamCreateWithFlags(stream, flags);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const cudaError_t error = runtime().call();
  runtime().destroy_stream(stream);
  return runtime().gave_back(error);
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  CALL_THAT_FAILS_AT_ONCE;
  return runtime().stream_of(stream)->queue.empty() ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  CALL_THAT_FAILS_AT_ONCE;
  const bool captured = runtime().stream_of(stream)->captured;
  *status = captured ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  CALL_THAT_FAILS_AT_ONCE;
  stream = runtime().stream_of(stream);
  return runtime().wait([=] { return stream->queue.empty(); });
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  CALL_THAT_FAILS_AT_ONCE;
  return runtime().enqueue(runtime().stream_of(stream),
                           {.run = {}, .waits_for = runtime().known(event), .record = event->recorded});
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  CALL_THAT_FAILS_AT_ONCE;
  *event = runtime().make_event();
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const cudaError_t error = runtime().call();
  runtime().destroy_event(event);
  return runtime().gave_back(error);
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  CALL_THAT_FAILS_AT_ONCE;
  return runtime().known(event)->completed == event->recorded ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  CALL_THAT_FAILS_AT_ONCE;
  const std::uint64_t record = ++runtime().known(event)->recorded;
  return runtime().enqueue(runtime().stream_of(stream), {.run = [=] { event->completed = record; }});
}
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  CALL;
  return runtime().copy_now(to, from, bytes, kind);
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  CALL;
  return runtime().copy(to, from, bytes, kind, runtime().stream_of(stream));
}
cudaError_t cudaMemsetAsync(void* memory, int value, std::size_t bytes, cudaStream_t stream) {
  CALL;
  runtime().require_device(memory, bytes);
  return runtime().enqueue(runtime().stream_of(stream), {.run = [=] { std::memset(memory, value, bytes); }});
}
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* memory) {
  CALL_THAT_FAILS_AT_ONCE;
  std::memcpy(handle, &memory, sizeof memory);
  return cudaSuccess;
}
cudaError_t cudaIpcOpenMemHandle(void** memory, cudaIpcMemHandle_t handle, unsigned) {
  CALL_THAT_FAILS_AT_ONCE;
  std::memcpy(memory, &handle, sizeof *memory);
  return cudaSuccess;
}
cudaError_t cudaIpcCloseMemHandle(void*) {
  return runtime().gave_back(runtime().call());
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* argument) {
  CALL;
  return runtime().enqueue(runtime().stream_of(stream),
                           {.run = [=] { runtime().run_host_function(function, argument); }});
}
