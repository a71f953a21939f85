// The kernels of a pass on a GPU, as functions that launch them on a stream: train/mlp_kernels_device.cuh says what
// each computes. Matrices are row-major. Every sum has one order that depends on the shape only, so the same input
// gives the same bits from run to run.
//
// They return what the launch itself returned (cudaSuccess if it was enqueued). Memory is the device's.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "train/mlp_kernel_args.h"

namespace tributary::train {

// out[r, :] = scale[pixels of image indices[r]], out_labels[r] = its label; without indices: image r.
cudaError_t launch_gather(const GatherArgs& args, cudaStream_t stream);

// out[r, c] += bias[c]; with relu negative results become 0.
cudaError_t launch_bias(float* out, std::uint32_t rows, std::uint32_t columns, const float* bias, bool relu,
                        cudaStream_t stream);

// Softmax cross-entropy: delta = its gradient in the logits; its sum over the rows and the correct predictions are
// added to *sums. `rows_of_sums`: room for `rows` elements.
cudaError_t launch_loss(const LossArgs& args, PassSums* sums, cudaStream_t stream);

// delta[i] = 0 where output[i] is not above 0.
cudaError_t launch_relu_backward(float* delta, const float* output, std::size_t size, cudaStream_t stream);

// gradient[c] = sum over rows of delta[r, c], or += with accumulate.
cudaError_t launch_column_sums(const float* delta, std::uint32_t rows, std::uint32_t columns, float* gradient,
                               bool accumulate, cudaStream_t stream);

// C[m, n] = op(A) op(B), or += with accumulate: for machines without cuBLAS.
cudaError_t launch_gemm(const GemmArgs& args, cudaStream_t stream);

}  // namespace tributary::train
