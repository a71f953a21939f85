#include "train/cuda_util.h"

namespace tributary::train {

Status CudaDeviceName::check(cudaError_t error, std::string_view operation, std::string_view subject) const {
  if (error == cudaSuccess) return {};
  cudaGetLastError();  // taken off, so that the next call is not blamed for it
  std::string what(operation);
  if (!subject.empty()) what.append(" ").append(subject);
  return fail(ErrorCode::kDevice,
              name_ + ": " + what + " failed: " + cudaGetErrorString(error) + " (" + cudaGetErrorName(error) + ")");
}

Result<CudaStream> CudaStream::make(const CudaDeviceName& device) {
  cudaStream_t stream = nullptr;
  const cudaError_t error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  if (Status status = device.check(error, "creating a stream"); !status) return tl::unexpected(status.error());
  return CudaStream(stream);
}

CudaStream::~CudaStream() {
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

Result<CudaEvent> CudaEvent::make(const CudaDeviceName& device) {
  cudaEvent_t event = nullptr;
  const cudaError_t error = cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventBlockingSync);
  if (Status status = device.check(error, "creating an event"); !status) return tl::unexpected(status.error());
  return CudaEvent(event);
}

CudaEvent::~CudaEvent() {
  if (event_ != nullptr) cudaEventDestroy(event_);
}

}  // namespace tributary::train
