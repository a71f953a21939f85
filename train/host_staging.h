// The gradient path through host memory: parameters are copied to the device on one stream and gradients back on
// another, so that both overlap with computing and with each other.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "train/cuda_util.h"
#include "train/gradient_path.h"
#include "train/mlp_shape.h"
#include "train/model_compute.h"

namespace tributary::train {

class HostStaging final : public GradientPath {
 public:
  // Device memory for all tensors, and streams. Nothing is bound yet.
  static Result<std::unique_ptr<HostStaging>> make(const MlpShape& shape, const CudaDeviceName& device);
  ~HostStaging() override;

  // The host memory from here on. Lasting memory is pinned, which lets copies overlap with the host; where the system
  // does not allow that, copies are slower, and unpinned() says why. REQUIRES: drained.
  void bind(const RankMemory& memory);
  void unbind();
  const std::string& unpinned() const { return unpinned_; }

  std::span<const float* const> parameters() const override { return parameters_; }
  std::span<float* const> gradients() const override { return gradients_; }
  Status fetch(std::size_t tensor, cudaStream_t compute) override;
  Status publish(std::size_t tensor, cudaStream_t compute, const TensorReady& ready) override;
  Status drain() override;

 private:
  HostStaging(const MlpShape& shape, const CudaDeviceName& device, CudaStream in, CudaStream out)
      : tensors_(shape.tensors()), device_(device), in_(std::move(in)), out_(std::move(out)) {}
  // What the callback of a published tensor is given; its place must not change.
  struct Publication {
    std::size_t tensor = 0;
    const TensorReady* ready = nullptr;
  };
  static void CUDART_CB call_ready(void* publication);
  void pin(std::uintptr_t first, std::uintptr_t last);
  std::size_t bytes(std::size_t tensor) const { return tensors_[tensor].elements() * sizeof(float); }

  std::vector<TensorSpec> tensors_;
  CudaDeviceName device_;
  RankMemory host_;
  std::vector<void*> pinned_;
  std::string unpinned_;
  DeviceMemory<float> memory_;  // of all tensors, parameters and then gradients, each aligned for wide loads
  std::vector<const float*> parameters_;
  std::vector<float*> gradients_;
  std::vector<float*> arriving_;  // parameters_, to be written
  CudaStream in_, out_;
  std::vector<CudaEvent> fetched_, computed_;  // by tensor
  std::vector<CudaEvent> drained_;             // of the two streams
  std::vector<Publication> publications_;      // by tensor
};

}  // namespace tributary::train
