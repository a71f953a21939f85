// The gradient path without copies: the session's parameters and gradients are memory of the device itself, lent by the
// worker daemon (session/session.h, on_device()). The kernels read and write it where it is; all that is left to do is
// to say when.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "train/cuda_util.h"
#include "train/gradient_path.h"
#include "train/mlp_shape.h"
#include "train/model_compute.h"

namespace tributary::train {

class DevicePath final : public GradientPath {
 public:
  static Result<std::unique_ptr<DevicePath>> make(const MlpShape& shape, const CudaDeviceName& device);

  // REQUIRES: drained; memory.place is kDevice, of the device that computes.
  void bind(const RankMemory& memory);
  void unbind() { memory_ = {}; }

  std::span<const float* const> parameters() const override { return memory_.parameters; }
  std::span<float* const> gradients() const override { return memory_.gradients; }
  // Nothing to do: the worker wrote the parameters before the session's wait() returned, so whatever is enqueued
  // afterwards sees them.
  Status fetch(std::size_t, cudaStream_t) override { return {}; }
  Status publish(std::size_t tensor, cudaStream_t compute, const TensorReady& ready) override;
  Status drain() override;

 private:
  DevicePath(const MlpShape& shape, const CudaDeviceName& device, CudaStream calls, CudaEvent drained)
      : tensors_(shape.tensors()), device_(device), calls_(std::move(calls)), drained_(std::move(drained)) {}
  // What the callback of a published tensor is given; its place must not change.
  struct Publication {
    std::size_t tensor = 0;
    const TensorReady* ready = nullptr;
  };
  static void CUDART_CB call_ready(void* publication);

  std::vector<TensorSpec> tensors_;
  CudaDeviceName device_;
  RankMemory memory_;
  // For host functions only: computing does not wait while one runs.
  CudaStream calls_;
  std::vector<CudaEvent> computed_;  // by tensor
  CudaEvent drained_;
  std::vector<Publication> publications_;  // by tensor
};

}  // namespace tributary::train
