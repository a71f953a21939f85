#include "train/host_staging.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "common/base/assert.h"

namespace tributary::train {

namespace {

constexpr std::size_t kStagingAlign = 64;  // 256 bytes, as cudaMalloc aligns

std::size_t aligned(std::size_t elements) {
  return (elements + kStagingAlign - 1) / kStagingAlign * kStagingAlign;
}

}  // namespace

Result<std::unique_ptr<HostStaging>> HostStaging::make(const MlpShape& shape, const CudaDeviceName& device) {
  auto in = CudaStream::make(device);
  if (!in) return tl::unexpected(in.error());
  auto out = CudaStream::make(device);
  if (!out) return tl::unexpected(out.error());
  std::unique_ptr<HostStaging> path(new HostStaging(shape, device, std::move(*in), std::move(*out)));
  std::size_t elements = 0;
  for (const TensorSpec& tensor : path->tensors_) elements += aligned(tensor.elements());
  auto memory = DeviceMemory<float>::make(device, 2 * elements, "parameters and gradients");
  if (!memory) return tl::unexpected(memory.error());
  path->memory_ = std::move(*memory);
  float* at = path->memory_.data();
  for (const TensorSpec& tensor : path->tensors_) {
    path->arriving_.push_back(at);
    path->parameters_.push_back(at);
    path->gradients_.push_back(at + elements);
    at += aligned(tensor.elements());
  }
  for (auto [events, count] :
       {std::pair{&path->fetched_, path->tensors_.size()}, std::pair{&path->computed_, path->tensors_.size()},
        std::pair{&path->drained_, std::size_t{2}}}) {
    for (std::size_t i = 0; i < count; ++i) {
      auto event = CudaEvent::make(device);
      if (!event) return tl::unexpected(event.error());
      events->push_back(std::move(*event));
    }
  }
  path->publications_.resize(path->tensors_.size());
  return path;
}

HostStaging::~HostStaging() {
  unbind();
}

void HostStaging::bind(const RankMemory& memory) {
  TRIB_ASSERT(memory.parameters.size() == tensors_.size() && memory.gradients.size() == tensors_.size());
  unbind();
  host_ = memory;
  if (!memory.lasting) return;
  // The tensors of each kind lie in one mapping.
  const auto pin_all = [&](auto tensors) {
    std::uintptr_t first = UINTPTR_MAX, last = 0;
    for (std::size_t t = 0; t < tensors_.size(); ++t) {
      const auto begin = reinterpret_cast<std::uintptr_t>(tensors[t]);
      first = std::min(first, begin);
      last = std::max(last, begin + bytes(t));
    }
    pin(first, last);
  };
  pin_all(memory.parameters);
  pin_all(memory.gradients);
}

void HostStaging::pin(std::uintptr_t first, std::uintptr_t last) {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  first = first / page * page;
  last = (last + page - 1) / page * page;
  void* begin = reinterpret_cast<void*>(first);
  const cudaError_t error = cudaHostRegister(begin, last - first, cudaHostRegisterDefault);
  if (error == cudaSuccess) {
    pinned_.push_back(begin);
  } else if (Status status = device_.check(error, "page-locking the memory shared with the worker");
             unpinned_.empty()) {
    unpinned_ = status.error().message;
  }
}

void HostStaging::unbind() {
  for (void* begin : pinned_) cudaHostUnregister(begin);
  pinned_.clear();
  host_ = {};
}

Status HostStaging::fetch(std::size_t tensor, cudaStream_t compute) {
  const std::string& name = tensors_[tensor].name;
  Status status = device_.check(
      cudaMemcpyAsync(arriving_[tensor], host_.parameters[tensor], bytes(tensor), cudaMemcpyHostToDevice, in_.get()),
      "copying to the device the parameters of", name);
  if (!status) return status;
  status = device_.check(cudaEventRecord(fetched_[tensor].get(), in_.get()), "recording the arrival of", name);
  if (!status) return status;
  return device_.check(cudaStreamWaitEvent(compute, fetched_[tensor].get(), 0), "waiting for the parameters of", name);
}

Status HostStaging::publish(std::size_t tensor, cudaStream_t compute, const TensorReady& ready) {
  const std::string& name = tensors_[tensor].name;
  Status status = device_.check(cudaEventRecord(computed_[tensor].get(), compute), "recording the gradient of", name);
  if (!status) return status;
  status =
      device_.check(cudaStreamWaitEvent(out_.get(), computed_[tensor].get(), 0), "waiting for the gradient of", name);
  if (!status) return status;
  status = device_.check(
      cudaMemcpyAsync(host_.gradients[tensor], gradients_[tensor], bytes(tensor), cudaMemcpyDeviceToHost, out_.get()),
      "copying to the host the gradient of", name);
  if (!status || !ready) return status;
  publications_[tensor] = {.tensor = tensor, .ready = &ready};
  return device_.check(cudaLaunchHostFunc(out_.get(), call_ready, &publications_[tensor]), "enqueuing the callback of",
                       name);
}

void CUDART_CB HostStaging::call_ready(void* publication) {
  const auto& that = *static_cast<const Publication*>(publication);
  (*that.ready)(that.tensor);
}

Status HostStaging::drain() {
  Status first;
  const auto keep = [&](cudaError_t error, const char* operation) {
    Status status = device_.check(error, operation);
    if (first && !status) first = std::move(status);
  };
  // Recorded on both before the first is waited for: one sleep for the longer of the two, as a rule.
  keep(cudaEventRecord(drained_[0].get(), in_.get()), "recording the end of the parameters' copies");
  keep(cudaEventRecord(drained_[1].get(), out_.get()), "recording the end of the gradients' copies");
  keep(cudaEventSynchronize(drained_[1].get()), "waiting for the gradients");
  keep(cudaEventSynchronize(drained_[0].get()), "waiting for the parameters");
  if (first) return first;
  // An event that could not be recorded was not waited for.
  cudaStreamSynchronize(out_.get());
  cudaStreamSynchronize(in_.get());
  cudaGetLastError();
  return first;
}

}  // namespace tributary::train
