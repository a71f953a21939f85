// DeviceReplicas: what train/host_replicas.h is for the host, on a GPU. Enqueues everything on one stream.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "common/base/result.h"
#include "kernels/optimizer.h"
#include "train/cuda_util.h"
#include "train/mlp_shape.h"
#include "train/model_compute.h"
#include "train/state_banks.h"

namespace tributary::train {

// Thread rule: one thread at a time. Pointers are the device's. Errors: kDevice.
class DeviceReplicas {
 public:
  // For the current device.
  static Result<std::unique_ptr<DeviceReplicas>> make(const MlpShape& shape, const CudaDeviceName& device,
                                                      cudaStream_t stream,
                                                      std::shared_ptr<const kernels::Optimizer> inner,
                                                      std::uint32_t replicas, bool keeps);

  // As HostReplicas'.
  std::span<const float* const> parameters() const { return parameters_; }
  Status begin(std::uint32_t replica, InnerState state);
  void end() { banks_[replica_].end(); }
  Status step(std::size_t tensor, const kernels::StepScalars& scalars, const float* from, const float* gradient,
              std::uint32_t samples);
  Status subtract(std::size_t tensor, const float* from, float* difference) const;

 private:
  DeviceReplicas(const MlpShape& shape, const CudaDeviceName& device, cudaStream_t stream,
                 std::shared_ptr<const kernels::Optimizer> inner)
      : tensors_(shape.tensors()), device_(device), stream_(stream), inner_(std::move(inner)) {}

  std::vector<TensorSpec> tensors_;
  CudaDeviceName device_;
  cudaStream_t stream_;
  std::shared_ptr<const kernels::Optimizer> inner_;
  std::vector<std::size_t> offsets_;  // of the tensors in what follows
  DeviceMemory<float> flat_;
  std::vector<const float*> parameters_;
  std::uint32_t replica_ = 0;                                          // whose round it is
  std::vector<StateBanks> banks_;                                      // by replica
  std::vector<std::vector<std::vector<DeviceMemory<float>>>> states_;  // by replica, bank and slot
};

}  // namespace tributary::train
