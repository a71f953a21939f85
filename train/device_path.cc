#include "train/device_path.h"

#include "common/base/assert.h"

namespace tributary::train {

Result<std::unique_ptr<DevicePath>> DevicePath::make(const MlpShape& shape, const CudaDeviceName& device) {
  auto calls = CudaStream::make(device);
  if (!calls) return tl::unexpected(calls.error());
  auto drained = CudaEvent::make(device);
  if (!drained) return tl::unexpected(drained.error());
  std::unique_ptr<DevicePath> path(new DevicePath(shape, device, std::move(*calls), std::move(*drained)));
  for (std::size_t t = 0; t < path->tensors_.size(); ++t) {
    auto event = CudaEvent::make(device);
    if (!event) return tl::unexpected(event.error());
    path->computed_.push_back(std::move(*event));
  }
  path->publications_.resize(path->tensors_.size());
  return path;
}

void DevicePath::bind(const RankMemory& memory) {
  TRIB_ASSERT(memory.place == MemoryPlace::kDevice);
  TRIB_ASSERT(memory.parameters.size() == tensors_.size() && memory.gradients.size() == tensors_.size());
  memory_ = memory;
}

// The event comes after the kernels that make the gradient and those that read the tensor's parameters last: ready()
// must come after both, for the worker takes the one and overwrites the other.
Status DevicePath::publish(std::size_t tensor, cudaStream_t compute, const TensorReady& ready) {
  if (!ready) return {};
  const std::string& name = tensors_[tensor].name;
  Status status = device_.check(cudaEventRecord(computed_[tensor].get(), compute), "recording the gradient of", name);
  if (!status) return status;
  status =
      device_.check(cudaStreamWaitEvent(calls_.get(), computed_[tensor].get(), 0), "waiting for the gradient of", name);
  if (!status) return status;
  publications_[tensor] = {.tensor = tensor, .ready = &ready};
  return device_.check(cudaLaunchHostFunc(calls_.get(), call_ready, &publications_[tensor]),
                       "enqueuing the callback of", name);
}

void CUDART_CB DevicePath::call_ready(void* publication) {
  const auto& that = *static_cast<const Publication*>(publication);
  (*that.ready)(that.tensor);
}

Status DevicePath::drain() {
  Status status = device_.check(cudaEventRecord(drained_.get(), calls_.get()), "recording the end of the callbacks");
  if (status) status = device_.check(cudaEventSynchronize(drained_.get()), "waiting for the callbacks");
  if (status) return status;
  // An event that could not be recorded was not waited for.
  cudaStreamSynchronize(calls_.get());
  cudaGetLastError();
  return status;
}

}  // namespace tributary::train
