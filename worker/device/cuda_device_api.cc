#include "worker/device/cuda_device_api.h"

#include <cuda_runtime_api.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <string_view>

#include "common/base/assert.h"
#include "common/devices/cuda_devices.h"
#include "common/devices/cuda_error.h"
#include "common/math/encoding_frames.h"
#include "kernels/cast.h"
#include "kernels/step/cuda_optimizer.h"
#include "worker/device/nccl_collectives.h"
#include "worker/device/nvtx.h"

extern char** environ;

namespace tributary {
namespace {

namespace gpu = kernels::cuda;

// The driver puts small allocations into shared blocks of this size, and IPC hands out whole blocks: lent memory must
// not share a block with other memory.
constexpr std::size_t kBlock = 2u << 20;

struct CudaStream {
  cudaStream_t stream = nullptr;
  std::uint32_t device = 0;
  const char* label = "";
};
struct CudaEvent {
  cudaEvent_t event = nullptr;
  std::uint32_t device = 0;
};

// Ids are the objects' addresses.
template <class Id, class Object>
Id id_of(Object* object) {
  return Id(reinterpret_cast<std::uintptr_t>(object));
}
template <class Object, class Id>
Object& object_of(Id id) {
  TRIB_ASSERT(id.value != 0);
  return *reinterpret_cast<Object*>(static_cast<std::uintptr_t>(id.value));
}

class CudaDeviceApi final : public DeviceApi {
 public:
  explicit CudaDeviceApi(std::vector<CudaDevice> devices) {
    for (CudaDevice& device : devices) {
      infos_.push_back({device.describe(), device.uuid, device.numa_node, device.memory});
      cuda_index_.push_back(device.index);
    }
  }
  const std::vector<DeviceInfo>& devices() const override { return infos_; }

  // ---- Memory ----
  Result<void*> allocate(DeviceIndex device, std::size_t bytes, const char* purpose) override {
    const std::size_t size = (std::max<std::size_t>(bytes, 1) + kBlock - 1) / kBlock * kBlock;
    void* memory = nullptr;
    Status done = select(device.value);
    if (done) done = status(cudaMalloc(&memory, size), device.value, "cudaMalloc");
    if (!done) {
      return fail(done.error().code, done.error().message + " (" + std::to_string(size) + " bytes for " + purpose +
                                         "); use a smaller model or chunk, or end what else uses the device");
    }
    done = status(cudaMemsetAsync(memory, 0, size, cudaStreamPerThread), device.value, "cudaMemsetAsync");
    if (done) done = status(cudaStreamSynchronize(cudaStreamPerThread), device.value, "cudaStreamSynchronize");
    if (done) return memory;
    given_back(cudaFree(memory));
    return tl::unexpected(done.error());
  }
  void free(DeviceIndex device, void* memory) override {
    if (select(device.value)) given_back(cudaFree(memory));
  }

  Status pin(DeviceIndex near, std::span<std::byte> memory, const char* purpose) override {
    Status done = select(near.value);
    if (done) {
      done = status(cudaHostRegister(memory.data(), memory.size(), cudaHostRegisterPortable), near.value,
                    "cudaHostRegister");
    }
    if (done) return done;
    return fail(done.error().code,
                done.error().message + " (" + std::to_string(memory.size()) + " bytes of " + purpose + ")");
  }
  void unpin(std::span<std::byte> memory) override { given_back(cudaHostUnregister(memory.data())); }

  Result<IpcHandle> export_memory(DeviceIndex device, void* memory) override {
    static_assert(sizeof(cudaIpcMemHandle_t) == sizeof(IpcHandle));
    cudaIpcMemHandle_t handle;
    Status done = select(device.value);
    if (done) done = status(cudaIpcGetMemHandle(&handle, memory), device.value, "cudaIpcGetMemHandle");
    if (!done) return tl::unexpected(done.error());
    IpcHandle out;
    std::memcpy(out.bytes.data(), &handle, sizeof handle);
    return out;
  }

  // ---- Streams and events ----
  Result<StreamId> create_stream(DeviceIndex device, const char* label) override {
    auto made = std::make_unique<CudaStream>(CudaStream{nullptr, device.value, label});
    Status done = select(device.value);
    if (done) {
      // Trainers' kernels can wait for a chunk's: peers and the wire wait for these.
      int least = 0, greatest = 0;
      done =
          status(cudaDeviceGetStreamPriorityRange(&least, &greatest), device.value, "cudaDeviceGetStreamPriorityRange");
      if (done) {
        done = status(cudaStreamCreateWithPriority(&made->stream, cudaStreamNonBlocking, greatest), device.value,
                      "cudaStreamCreateWithPriority");
      }
    }
    if (!done) return tl::unexpected(done.error());
    return id_of<StreamId>(made.release());
  }
  void destroy_stream(StreamId id) override {
    const std::unique_ptr<CudaStream> stream(&object_of<CudaStream>(id));
    if (select(stream->device)) given_back(cudaStreamDestroy(stream->stream));
  }
  Result<bool> idle(StreamId id) override {
    const CudaStream& stream = object_of<CudaStream>(id);
    const cudaError_t code = cudaStreamQuery(stream.stream);
    if (code == cudaErrorNotReady) return false;
    if (Status done = status(code, stream, "cudaStreamQuery"); !done) return tl::unexpected(done.error());
    return true;
  }
  Result<EventId> create_event(DeviceIndex device, const char*) override {
    auto made = std::make_unique<CudaEvent>(CudaEvent{nullptr, device.value});
    Status done = select(device.value);
    if (done) {
      done = status(cudaEventCreateWithFlags(&made->event, cudaEventDisableTiming), device.value,
                    "cudaEventCreateWithFlags");
    }
    if (!done) return tl::unexpected(done.error());
    return id_of<EventId>(made.release());
  }
  void destroy_event(EventId id) override {
    const std::unique_ptr<CudaEvent> event(&object_of<CudaEvent>(id));
    if (select(event->device)) given_back(cudaEventDestroy(event->event));
  }
  Status record(EventId event, StreamId id) override {
    const CudaStream& stream = object_of<CudaStream>(id);
    return on(stream, "cudaEventRecord",
              [&] { return cudaEventRecord(object_of<CudaEvent>(event).event, stream.stream); });
  }
  Status wait(StreamId id, EventId event) override {
    const CudaStream& stream = object_of<CudaStream>(id);
    return on(stream, "cudaStreamWaitEvent",
              [&] { return cudaStreamWaitEvent(stream.stream, object_of<CudaEvent>(event).event, 0); });
  }
  Result<bool> reached(EventId id) override {
    const CudaEvent& event = object_of<CudaEvent>(id);
    const cudaError_t code = cudaEventQuery(event.event);
    if (code == cudaErrorNotReady) return false;
    if (Status done = status(code, event.device, "cudaEventQuery"); !done) return tl::unexpected(done.error());
    return true;
  }

  // ---- Work ----
  Status copy_to_host(StreamId id, std::byte* pinned, const void* device, std::size_t bytes) override {
    const NvtxRange range("copy to host");
    const CudaStream& stream = object_of<CudaStream>(id);
    return on(stream, "cudaMemcpyAsync to the host",
              [&] { return cudaMemcpyAsync(pinned, device, bytes, cudaMemcpyDeviceToHost, stream.stream); });
  }
  Status copy_to_device(StreamId id, void* device, const std::byte* pinned, std::size_t bytes) override {
    const NvtxRange range("copy to device");
    const CudaStream& stream = object_of<CudaStream>(id);
    return on(stream, "cudaMemcpyAsync to the device",
              [&] { return cudaMemcpyAsync(device, pinned, bytes, cudaMemcpyHostToDevice, stream.stream); });
  }
  Status call_host(StreamId id, HostCallback callback, void* context) override {
    const CudaStream& stream = object_of<CudaStream>(id);
    return on(stream, "cudaLaunchHostFunc", [&] { return cudaLaunchHostFunc(stream.stream, callback, context); });
  }
  Status sum(StreamId id, std::span<const float* const> inputs, std::size_t count, float* out) override {
    const NvtxRange range("sum of ranks");
    const CudaStream& stream = object_of<CudaStream>(id);
    return on(stream, "the sum of ranks", [&] {
      gpu::tree_sum(inputs, count, out, stream.stream);
      return cudaGetLastError();
    });
  }
  Status encode(StreamId id, const Encode& work) override {
    const NvtxRange range("encode");
    const CudaStream& stream = object_of<CudaStream>(id);
    return on(stream, "encoding", [&] { return encode_on(stream.stream, work); });
  }
  std::size_t encode_scratch_bytes(EncodingSpec encoding, std::size_t elements, std::size_t inputs) const override {
    const std::size_t select = encoding.id == EncodingId::kTopK ? gpu::kTopKScratchBytes : 0;
    return select + (fuses(inputs) ? 0 : elements * sizeof(float));
  }
  Status apply(StreamId id, EncodingSpec encoding, const std::byte* frame, std::size_t elements,
               float* parameters) override {
    const NvtxRange range("apply");
    const CudaStream& stream = object_of<CudaStream>(id);
    return on(stream, "decoding", [&] {
      const auto* halves = reinterpret_cast<const std::uint16_t*>(frame);
      switch (encoding.id) {
        case EncodingId::kBf16:
          gpu::bf16_to_fp32(halves, elements, parameters, stream.stream);
          break;
        case EncodingId::kFp16:
          gpu::fp16_to_fp32(halves, elements, parameters, stream.stream);
          break;
        case EncodingId::kInt8Delta:
          gpu::int8_decode_add(reinterpret_cast<const float*>(frame),
                               reinterpret_cast<const std::int8_t*>(frame + Int8Frame::values_at(elements)), elements,
                               parameters, stream.stream);
          break;
        default:
          TRIB_ASSERT(false && "not an encoding of answers that needs decoding");
      }
      return cudaGetLastError();
    });
  }

  Status step(StreamId id, const kernels::Optimizer& optimizer, const kernels::StepScalars& scalars,
              const kernels::BlockArgs& block) override {
    const NvtxRange range("optimizer step");
    const CudaStream& stream = object_of<CudaStream>(id);
    return on(stream, "the optimizer's step", [&] {
      gpu::optimizer_step(optimizer, scalars, block, stream.stream);
      return cudaGetLastError();
    });
  }

  // ---- Collectives ----
  Result<std::vector<CommId>> create_comms(std::span<const DeviceIndex> devices) override {
    const Result<CommKey> key = make_comm_key();
    if (!key) return tl::unexpected(key.error());
    std::vector<CommSeat> seats;
    for (const DeviceIndex device : devices) seats.push_back({device, static_cast<std::uint32_t>(seats.size())});
    return join_comms(*key, static_cast<std::uint32_t>(seats.size()), seats);
  }
  Result<std::vector<CommId>> join_comms(const CommKey& key, std::uint32_t size,
                                         std::span<const CommSeat> seats) override {
    if (Status loaded = load_nccl(); !loaded) return tl::unexpected(loaded.error());
    return nccl_->join(key, size, seats);
  }
  Result<CommKey> make_comm_key() override {
    if (Status loaded = load_nccl(); !loaded) return tl::unexpected(loaded.error());
    return nccl_->make_key();
  }
  Result<bool> comm_settled(CommId id) override { return nccl_->settled(id); }
  Status group_start() override { return nccl_->group_start(); }
  Status group_end() override { return nccl_->group_end(); }
  Status reduce_scatter(CommId id, StreamId stream, const float* send, float* receive, std::size_t count) override {
    const NvtxRange range("reduce-scatter");
    return nccl_->reduce_scatter(id, object_of<CudaStream>(stream).stream, send, receive, count);
  }
  Status all_gather(CommId id, StreamId stream, float* gathered, std::size_t count) override {
    const NvtxRange range("all-gather");
    return nccl_->all_gather(id, object_of<CudaStream>(stream).stream, gathered, count);
  }
  Status all_reduce(CommId id, StreamId stream, float* values, std::size_t count) override {
    const NvtxRange range("all-reduce");
    return nccl_->all_reduce(id, object_of<CudaStream>(stream).stream, values, count);
  }
  void abort(CommId id) override { nccl_->abort(id); }
  // Not ncclCommDestroy: it may wait forever for ranks whose turn comes later in this very thread. Nothing is under
  // way, so there is nothing to lose.
  void destroy(CommId id) override { abort(id); }
  Result<std::string> collectives_version() override {
    if (Status loaded = load_nccl(); !loaded) return tl::unexpected(loaded.error());
    return nccl_->version();
  }
  std::string lost() const override {
    const std::lock_guard lock(lost_mutex_);
    return lost_;
  }
  std::vector<std::string> collectives_settings() const override {
    std::vector<std::string> settings;
    for (char** entry = environ; entry && *entry; ++entry) {
      if (std::string_view(*entry).starts_with("NCCL_")) settings.emplace_back(*entry);
    }
    std::ranges::sort(settings);
    return settings;
  }

 private:
  static bool fuses(std::size_t inputs) { return inputs <= static_cast<std::size_t>(gpu::kMaxFusedInputs); }

  Status select(std::uint32_t device) const {
    return status(cudaSetDevice(cuda_index_[device]), device, "cudaSetDevice");
  }
  Status status(cudaError_t code, std::uint32_t device, const char* operation) const {
    Status told = cuda_status(code, infos_[device].name, operation);
    if (!told && ends_process(code)) {
      const std::lock_guard lock(lost_mutex_);
      if (lost_.empty()) lost_ = told.error().message;
    }
    return told;
  }
  Status status(cudaError_t code, const CudaStream& stream, const char* operation) const {
    if (code == cudaSuccess) return {};
    return status(code, stream.device, (std::string(operation) + " on stream '" + stream.label + "'").c_str());
  }
  // With the stream's device selected.
  template <class Work>
  Status on(const CudaStream& stream, const char* operation, Work work) const {
    if (Status selected = select(stream.device); !selected) return selected;
    return status(work(), stream, operation);
  }
  Status load_nccl();
  static cudaError_t encode_on(cudaStream_t stream, const Encode& work);

  std::vector<DeviceInfo> infos_;
  std::vector<int> cuda_index_;  // of infos_
  mutable std::mutex lost_mutex_;
  mutable std::string lost_;  // the first reported reason
  std::mutex mutex_;          // guards the loading of nccl_
  std::unique_ptr<NcclCollectives> nccl_;
};

cudaError_t CudaDeviceApi::encode_on(cudaStream_t stream, const Encode& work) {
  const std::size_t n = work.elements;
  std::byte* scratch = work.scratch;
  gpu::SumInputs values;
  if (fuses(work.inputs.size())) {
    values = gpu::SumInputs(work.inputs);
  } else {
    auto* sum = reinterpret_cast<float*>(scratch);
    scratch += n * sizeof(float);
    gpu::tree_sum(work.inputs, n, sum, stream);
    values = sum;
  }
  const gpu::Residual residual(work.residual_before, work.residual);
  // Padding between the parts of a frame is zero; a longer chunk's frame may have been here.
  const auto pad = [&](std::size_t from, std::size_t to) {
    return from == to ? cudaSuccess : cudaMemsetAsync(work.frame + from, 0, to - from, stream);
  };
  auto* floats = reinterpret_cast<float*>(work.frame);
  auto* halves = reinterpret_cast<std::uint16_t*>(work.frame);
  cudaError_t padded = cudaSuccess;
  switch (work.encoding.id) {
    case EncodingId::kBf16:
      gpu::fp32_to_bf16(values, n, halves, stream);
      break;
    case EncodingId::kFp16:
      gpu::fp32_to_fp16(values, n, work.scale, halves, stream);
      break;
    case EncodingId::kInt8:
      padded = pad(Int8Frame::scales(n), Int8Frame::values_at(n));
      gpu::int8_encode(values, n, residual, floats,
                       reinterpret_cast<std::int8_t*>(work.frame + Int8Frame::values_at(n)), stream);
      break;
    case EncodingId::kOneBit:
      padded = pad(OneBitFrame::scales(n), OneBitFrame::signs_at(n));
      gpu::onebit_encode(values, n, residual, floats,
                         reinterpret_cast<std::uint8_t*>(work.frame + OneBitFrame::signs_at(n)), stream);
      break;
    case EncodingId::kTopK: {
      const TopKFrame at(n, work.encoding.keep_ppm);
      gpu::topk_select(values, residual, n, at.kept, reinterpret_cast<std::uint32_t*>(work.frame),
                       reinterpret_cast<float*>(work.frame + at.values_at()),
                       reinterpret_cast<std::uint16_t*>(work.frame + at.offsets_at()), scratch, stream);
      break;
    }
    default:
      TRIB_ASSERT(false && "not an encoding of pushes that needs encoding");
  }
  return padded != cudaSuccess ? padded : cudaGetLastError();
}

Status CudaDeviceApi::load_nccl() {
  const std::lock_guard lock(mutex_);
  if (nccl_) return {};
  std::vector<NcclCollectives::Device> devices;
  for (std::size_t i = 0; i < infos_.size(); ++i) devices.push_back({cuda_index_[i], infos_[i].name});
  auto loaded = NcclCollectives::load(std::move(devices));
  if (!loaded) return tl::unexpected(loaded.error());
  nccl_ = std::move(*loaded);
  return {};
}

}  // namespace

Result<std::shared_ptr<DeviceApi>> make_cuda_device_api() {
  CudaSystem system = inspect_cuda();
  std::string why = system.no_devices;
  for (const CudaDevice& device : system.devices) {
    if (!device.unusable.empty()) why += (why.empty() ? "" : "; ") + device.describe() + ": " + device.unusable;
  }
  std::erase_if(system.devices, [](const CudaDevice& device) { return !device.unusable.empty(); });
  if (system.devices.empty()) {
    return fail(system.may_come ? ErrorCode::kUnavailable : ErrorCode::kNotFound, why);
  }
  return std::make_shared<CudaDeviceApi>(std::move(system.devices));
}

}  // namespace tributary
