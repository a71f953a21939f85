// What the kernels of train/mlp_kernels.h are given. Pointers are the device's.
#pragma once

#include <cstdint>

namespace tributary::train {

// Counts of a pass, added up over its micro-batches.
struct PassSums {
  double loss = 0.0;
  std::uint64_t correct = 0;
};

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

struct LossArgs {
  const float* logits;
  const std::uint8_t* labels;
  std::uint32_t rows;
  std::uint32_t classes;
  float* delta;
  PassSums* rows_of_sums;
};

// op(A) is A[m, k], or A[k, m] transposed; op(B) is B[k, n], or B[n, k] transposed. Rows lie close together.
struct GemmArgs {
  bool transpose_a, transpose_b;
  std::uint32_t m, n, k;
  const float* a;
  const float* b;
  float* c;
  bool accumulate;
};

}  // namespace tributary::train
