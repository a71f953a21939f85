#include "train/mlp_cuda.h"

#include <utility>

#include "common/base/assert.h"
#include "common/devices/nvtx.h"
#include "train/mlp_kernels.h"

namespace tributary::train {

Result<MlpCuda> MlpCuda::make(const MlpShape& shape, const CudaDeviceName& device, cudaStream_t stream,
                              std::unique_ptr<CudaGemm> gemm) {
  MlpCuda mlp(shape, device, stream, std::move(gemm));
  for (std::size_t l = 0; l < shape.layers(); ++l) {
    const std::size_t size = std::size_t{shape.max_batch()} * shape.sizes()[l + 1];
    for (auto* list : {&mlp.outputs_, &mlp.deltas_}) {
      auto memory = DeviceMemory<float>::make(device, size, "a layer's outputs");
      if (!memory) return tl::unexpected(memory.error());
      list->push_back(std::move(*memory));
    }
  }
  auto rows = DeviceMemory<PassSums>::make(device, shape.max_batch(), "the samples' losses");
  if (!rows) return tl::unexpected(rows.error());
  mlp.row_sums_ = std::move(*rows);
  auto sums = DeviceMemory<PassSums>::make(device, 1, "the loss");
  if (!sums) return tl::unexpected(sums.error());
  mlp.sums_ = std::move(*sums);
  return mlp;
}

Status MlpCuda::launched(const char* operation) const {
  return device_.check(cudaGetLastError(), operation);
}

Status MlpCuda::begin_pass() {
  return device_.check(cudaMemsetAsync(sums_.data(), 0, sizeof(PassSums), stream_), "clearing the loss");
}

Result<bool> MlpCuda::forward(const float* inputs, std::uint32_t batch, std::span<const float* const> parameters,
                              const BeforeTensor& before) {
  const NvtxRange range("forward");
  TRIB_ASSERT(batch >= 1 && batch <= shape_.max_batch() && parameters.size() == shape_.tensors().size());
  inputs_ = inputs;
  batch_ = batch;
  const float* in = inputs;
  for (std::size_t l = 0; l < shape_.layers(); ++l) {
    for (const std::size_t tensor : {2 * l, 2 * l + 1}) {
      if (!before) continue;
      const Result<bool> go_on = before(tensor);
      if (!go_on || !*go_on) return go_on;
    }
    const std::uint32_t fan_in = shape_.sizes()[l], fan_out = shape_.sizes()[l + 1];
    float* out = outputs_[l].data();
    const GemmArgs product{.transpose_a = false,
                           .transpose_b = true,
                           .m = batch,
                           .n = fan_out,
                           .k = fan_in,
                           .a = in,
                           .b = parameters[2 * l],
                           .c = out,
                           .accumulate = false};
    if (Status status = gemm_->multiply(product); !status) return tl::unexpected(status.error());
    launch_bias(out, batch, fan_out, parameters[2 * l + 1], l + 1 < shape_.layers(), stream_);
    if (Status status = launched("adding a bias"); !status) return tl::unexpected(status.error());
    in = out;
  }
  return true;
}

Status MlpCuda::loss(const std::uint8_t* labels, float scale) {
  const NvtxRange range("loss");
  const LossArgs args{.logits = outputs_.back().data(),
                      .labels = labels,
                      .rows = batch_,
                      .classes = shape_.sizes().back(),
                      .scale = scale,
                      .delta = deltas_.back().data(),
                      .row_sums = row_sums_.data()};
  launch_loss(args, sums_.data(), stream_);
  return launched("computing the loss");
}

Status MlpCuda::backward(std::span<const float* const> parameters, std::span<float* const> gradients, bool accumulate,
                         const AfterTensor& after) {
  const NvtxRange range("backward");
  TRIB_ASSERT(parameters.size() == shape_.tensors().size() && gradients.size() == shape_.tensors().size());
  for (std::size_t l = shape_.layers(); l-- > 0;) {
    const std::uint32_t fan_in = shape_.sizes()[l], fan_out = shape_.sizes()[l + 1];
    const float* delta = deltas_[l].data();
    const float* in = l == 0 ? inputs_ : outputs_[l - 1].data();
    // An input gradient comes before its layer's weight is given away, because it reads that weight; that of the first
    // layer is not needed.
    if (l > 0) {
      float* below = deltas_[l - 1].data();
      const GemmArgs product{.transpose_a = false,
                             .transpose_b = false,
                             .m = batch_,
                             .n = fan_in,
                             .k = fan_out,
                             .a = delta,
                             .b = parameters[2 * l],
                             .c = below,
                             .accumulate = false};
      if (Status status = gemm_->multiply(product); !status) return status;
      launch_relu_backward(below, in, std::size_t{batch_} * fan_in, stream_);
      if (Status status = launched("computing a ReLU's gradient"); !status) return status;
    }
    const GemmArgs product{.transpose_a = true,
                           .transpose_b = false,
                           .m = fan_out,
                           .n = fan_in,
                           .k = batch_,
                           .a = delta,
                           .b = in,
                           .c = gradients[2 * l],
                           .accumulate = accumulate};
    if (Status status = gemm_->multiply(product); !status) return status;
    if (after) {
      if (Status status = after(2 * l); !status) return status;
    }
    launch_column_sums(delta, batch_, fan_out, gradients[2 * l + 1], accumulate, stream_);
    if (Status status = launched("computing a bias's gradient"); !status) return status;
    if (after) {
      if (Status status = after(2 * l + 1); !status) return status;
    }
  }
  return {};
}

}  // namespace tributary::train
