// The kernels of a pass on a GPU, as functions that launch them. As all kernels (kernels/cuda_stream.h): pointers are
// the device's, calls return at once, and the caller finds a launch that failed with cudaGetLastError().
//
// Matrices are row-major, their rows lie close together. Every sum has one order that depends on the shape only, so the
// same input gives the same bits from run to run.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda_stream.h"

namespace tributary::train {

// Counts of a pass, added up over its micro-batches.
struct PassSums {
  double loss = 0.0;
  std::uint64_t correct = 0;
};

// out[r, :] = scale[pixels of image indices[r]], out_labels[r] = its label; without indices: of image r.
struct GatherArgs {
  const std::uint8_t* pixels;
  const std::uint8_t* labels;
  const std::uint32_t* indices;  // may be null
  std::uint32_t rows;
  std::uint32_t image_size;
  const float* scale;  // 256 values
  float* out;
  std::uint8_t* out_labels;
};
void launch_gather(const GatherArgs& args, kernels::cuda::Stream stream);

// out[r, c] += bias[c]; with relu negative results become 0.
void launch_bias(float* out, std::uint32_t rows, std::uint32_t columns, const float* bias, bool relu,
                 kernels::cuda::Stream stream);

// Softmax cross-entropy: delta = its gradient in the logits, times scale; loss and correct predictions of all rows are
// added to *sums.
struct LossArgs {
  const float* logits;
  const std::uint8_t* labels;
  std::uint32_t rows;
  std::uint32_t classes;
  float scale;
  float* delta;
  PassSums* row_sums;  // scratch: an element a row
};
void launch_loss(const LossArgs& args, PassSums* sums, kernels::cuda::Stream stream);

// delta[i] = 0 where output[i] is not above 0.
void launch_relu_backward(float* delta, const float* output, std::size_t size, kernels::cuda::Stream stream);

// gradient[c] = sum over rows of delta[r, c], or += with accumulate.
void launch_column_sums(const float* delta, std::uint32_t rows, std::uint32_t columns, float* gradient, bool accumulate,
                        kernels::cuda::Stream stream);

// out[i] = value.
void launch_fill(float* out, std::size_t size, float value, kernels::cuda::Stream stream);

// out[i] = a[i] - b[i].
void launch_difference(const float* a, const float* b, std::size_t size, float* out, kernels::cuda::Stream stream);

// C[m, n] = op(A) op(B), or += with accumulate: for machines without cuBLAS. op(A) is A[m, k], or A[k, m] transposed;
// op(B) is B[k, n], or B[n, k] transposed.
struct GemmArgs {
  bool transpose_a, transpose_b;
  std::uint32_t m, n, k;
  const float* a;
  const float* b;
  float* c;
  bool accumulate;
};
void launch_gemm(const GemmArgs& args, kernels::cuda::Stream stream);

}  // namespace tributary::train
