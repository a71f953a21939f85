// The multi-layer perceptron of train/mlp_shape.h on a GPU: enqueues the passes on one stream, and never waits for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "common/base/result.h"
#include "train/cuda_gemm.h"
#include "train/cuda_util.h"
#include "train/mlp_kernels.h"
#include "train/mlp_shape.h"

namespace tributary::train {

// Thread rule: one thread at a time. Pointers are the device's. Errors: kDevice.
class MlpCuda {
 public:
  // For the current device. `gemm` works on `stream`.
  static Result<MlpCuda> make(const MlpShape& shape, const CudaDeviceName& device, cudaStream_t stream,
                              std::unique_ptr<CudaGemm> gemm);

  const MlpShape& shape() const { return shape_; }
  const CudaGemm& gemm() const { return *gemm_; }

  // Called before the work that reads a tensor's parameters is enqueued; false or an error abandons the pass.
  using BeforeTensor = std::function<Result<bool>(std::size_t tensor)>;
  // Called when the work that makes a tensor's gradient, and that reads its parameters last, is enqueued.
  using AfterTensor = std::function<Status(std::size_t tensor)>;

  // Forget the sums of the pass before.
  Status begin_pass();
  // Over `batch` images; `inputs` must stay until backward() has run. False if abandoned. `before` may be null.
  Result<bool> forward(const float* inputs, std::uint32_t batch, std::span<const float* const> parameters,
                       const BeforeTensor& before);
  // After forward(): adds loss and correct predictions to sums(), and makes the gradient of the loss times `scale` for
  // backward().
  Status loss(const std::uint8_t* labels, float scale = 1.0f);
  // After loss(): gradients[t] = gradient of the summed loss, or += with `accumulate`; last layer first. `after` may be
  // null.
  Status backward(std::span<const float* const> parameters, std::span<float* const> gradients, bool accumulate,
                  const AfterTensor& after);

  const PassSums* sums() const { return sums_.data(); }

 private:
  MlpCuda(const MlpShape& shape, const CudaDeviceName& device, cudaStream_t stream, std::unique_ptr<CudaGemm> gemm)
      : shape_(shape), device_(device), stream_(stream), gemm_(std::move(gemm)) {}

  // What became of the launches since the last check.
  Status launched(const char* operation) const;

  MlpShape shape_;
  CudaDeviceName device_;
  cudaStream_t stream_;
  std::unique_ptr<CudaGemm> gemm_;
  std::vector<DeviceMemory<float>> outputs_;  // of each layer, after ReLU; the last one holds the logits
  std::vector<DeviceMemory<float>> deltas_;   // gradient of the loss in each layer's output
  DeviceMemory<PassSums> row_sums_, sums_;
  const float* inputs_ = nullptr;
  std::uint32_t batch_ = 0;
};

}  // namespace tributary::train
