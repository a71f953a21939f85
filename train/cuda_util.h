// CUDA's objects with owners, and its error codes as Results that name device and operation. Only for files that are
// built with CUDA.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include "common/base/result.h"

namespace tributary::train {

// A device as errors call it: "cuda:0 NVIDIA H200".
class CudaDeviceName {
 public:
  explicit CudaDeviceName(std::string name) : name_(std::move(name)) {}
  const std::string& text() const { return name_; }

  // {} for cudaSuccess, else kDevice: "cuda:0 NVIDIA H200: OPERATION SUBJECT failed: TEXT (cudaErrorXyz)".
  Status check(cudaError_t error, std::string_view operation, std::string_view subject = {}) const;

 private:
  std::string name_;
};

// Memory of the current device (kDevice), or page-locked memory of the host that it reads and writes directly.
// Uninitialised. Freeing happens in the destructor; errors of it are those of earlier work and reported there.
enum class MemoryKind { kDevice, kPinned };

template <class T, MemoryKind kKind>
class CudaMemory {
 public:
  CudaMemory() = default;
  static Result<CudaMemory> make(const CudaDeviceName& device, std::size_t count, std::string_view what) {
    CudaMemory memory;
    if (count == 0) return memory;
    void* data = nullptr;
    const std::size_t bytes = count * sizeof(T);
    const cudaError_t error =
        kKind == MemoryKind::kDevice ? cudaMalloc(&data, bytes) : cudaHostAlloc(&data, bytes, cudaHostAllocDefault);
    const std::string subject =
        std::to_string(bytes) +
        (kKind == MemoryKind::kDevice ? " bytes on the device for " : " page-locked bytes for ") + std::string(what);
    if (Status status = device.check(error, "allocating", subject); !status) return tl::unexpected(status.error());
    memory.data_ = static_cast<T*>(data);
    memory.size_ = count;
    return memory;
  }
  CudaMemory(CudaMemory&& other) noexcept { swap(other); }
  CudaMemory& operator=(CudaMemory&& other) noexcept {
    swap(other);
    return *this;
  }
  ~CudaMemory() {
    if (data_ == nullptr) return;
    if (kKind == MemoryKind::kDevice) {
      cudaFree(data_);
    } else {
      cudaFreeHost(data_);
    }
  }

  T* data() { return data_; }
  const T* data() const { return data_; }
  std::size_t size() const { return size_; }

 private:
  void swap(CudaMemory& other) {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
  }
  T* data_ = nullptr;
  std::size_t size_ = 0;
};

template <class T>
using DeviceMemory = CudaMemory<T, MemoryKind::kDevice>;
template <class T>
using PinnedMemory = CudaMemory<T, MemoryKind::kPinned>;

// A stream that does not wait for the default stream.
class CudaStream {
 public:
  static Result<CudaStream> make(const CudaDeviceName& device);
  CudaStream(CudaStream&& other) noexcept : stream_(std::exchange(other.stream_, nullptr)) {}
  CudaStream& operator=(CudaStream&& other) noexcept {
    std::swap(stream_, other.stream_);
    return *this;
  }
  ~CudaStream();
  cudaStream_t get() const { return stream_; }

 private:
  explicit CudaStream(cudaStream_t stream) : stream_(stream) {}
  cudaStream_t stream_;
};

// An event without timing; a host thread that waits for it sleeps.
class CudaEvent {
 public:
  static Result<CudaEvent> make(const CudaDeviceName& device);
  CudaEvent(CudaEvent&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  CudaEvent& operator=(CudaEvent&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }
  ~CudaEvent();
  cudaEvent_t get() const { return event_; }

 private:
  explicit CudaEvent(cudaEvent_t event) : event_(event) {}
  cudaEvent_t event_;
};

}  // namespace tributary::train
