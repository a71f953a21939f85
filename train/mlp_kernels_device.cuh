// Device code of train/mlp_kernels.h: what runs on the GPU, and nothing about launching it, so that a test can run the
// same code on a CPU. Include a header that defines CUDA's words first.
#pragma once

#include <cstddef>
#include <cstdint>

#include "train/mlp_kernel_args.h"

namespace tributary::train {

namespace device {

inline constexpr std::uint32_t kThreads = 256;     // of a block of the one-dimensional kernels
inline constexpr std::uint32_t kLossThreads = 64;  // few rows should still be spread over the multiprocessors
inline constexpr std::uint32_t kSumColumns = 32, kSumRows = 8;
inline constexpr std::uint32_t kTile = 64;         // rows and columns of C that a block computes
inline constexpr std::uint32_t kTileDepth = 16;    // of k at a time
inline constexpr std::uint32_t kTileThreads = 16;  // a block has 16 x 16 threads, each for 4 x 4 elements
inline constexpr std::uint32_t kPerThread = kTile / kTileThreads;

// One block a row.
__global__ void gather(GatherArgs args) {
  const std::uint32_t row = blockIdx.x;
  const std::size_t image = args.indices != nullptr ? args.indices[row] : row;
  const std::uint8_t* pixels = args.pixels + image * args.image_size;
  float* out = args.out + std::size_t{row} * args.image_size;
  for (std::uint32_t i = threadIdx.x; i < args.image_size; i += blockDim.x) out[i] = args.scale[pixels[i]];
  if (threadIdx.x == 0) args.out_labels[row] = args.labels[image];
}

// One thread a column, blocks in y take turns with the rows.
__global__ void bias(float* out, std::uint32_t rows, std::uint32_t columns, const float* values, bool relu) {
  const std::uint32_t column = blockIdx.x * blockDim.x + threadIdx.x;
  if (column >= columns) return;
  const float value = values[column];
  for (std::uint32_t row = blockIdx.y; row < rows; row += gridDim.y) {
    float& element = out[std::size_t{row} * columns + column];
    const float sum = element + value;
    element = relu && sum < 0.0f ? 0.0f : sum;
  }
}

// One thread a row: classes are few, and each row is summed in the order in which the CPU does it.
__global__ void loss(LossArgs args) {
  const std::uint32_t row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= args.rows) return;
  const float* logits = args.logits + std::size_t{row} * args.classes;
  float* delta = args.delta + std::size_t{row} * args.classes;
  const std::uint32_t label = args.labels[row];
  std::uint32_t top = 0;
  for (std::uint32_t c = 1; c < args.classes; ++c) {
    if (logits[c] > logits[top]) top = c;
  }
  float sum = 0.0f;
  for (std::uint32_t c = 0; c < args.classes; ++c) {
    delta[c] = expf(logits[c] - logits[top]);
    sum += delta[c];
  }
  for (std::uint32_t c = 0; c < args.classes; ++c) delta[c] = delta[c] / sum - (c == label ? 1.0f : 0.0f);
  PassSums result;
  result.loss = log(static_cast<double>(sum)) - (static_cast<double>(logits[label]) - static_cast<double>(logits[top]));
  result.correct = top == label ? 1 : 0;
  args.rows_of_sums[row] = result;
}

// One block of kThreads: thread t adds rows t, t + kThreads, ..., then the threads are added pairwise.
__global__ void add_sums(const PassSums* rows_of_sums, std::uint32_t rows, PassSums* sums) {
  __shared__ double losses[kThreads];
  __shared__ std::uint64_t corrects[kThreads];
  const std::uint32_t t = threadIdx.x;
  double loss_sum = 0.0;
  std::uint64_t correct = 0;
  for (std::uint32_t row = t; row < rows; row += kThreads) {
    loss_sum += rows_of_sums[row].loss;
    correct += rows_of_sums[row].correct;
  }
  losses[t] = loss_sum;
  corrects[t] = correct;
  __syncthreads();
  for (std::uint32_t half = kThreads / 2; half > 0; half /= 2) {
    if (t < half) {
      losses[t] += losses[t + half];
      corrects[t] += corrects[t + half];
    }
    __syncthreads();
  }
  if (t == 0) {
    sums->loss += losses[0];
    sums->correct += corrects[0];
  }
}

__global__ void relu_backward(float* delta, const float* output, std::size_t size) {
  const std::size_t step = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < size; i += step) {
    if (!(output[i] > 0.0f)) delta[i] = 0.0f;
  }
}

// A block of kSumColumns x kSumRows threads for kSumColumns columns: thread (x, y) adds rows y, y + kSumRows, ... of
// column x, then those of a column are added in order.
__global__ void column_sums(const float* delta, std::uint32_t rows, std::uint32_t columns, float* gradient,
                            bool accumulate) {
  __shared__ float partial[kSumRows][kSumColumns];
  const std::uint32_t column = blockIdx.x * kSumColumns + threadIdx.x;
  float sum = 0.0f;
  if (column < columns) {
    for (std::uint32_t row = threadIdx.y; row < rows; row += kSumRows)
      sum += delta[std::size_t{row} * columns + column];
  }
  partial[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= columns) return;
  for (std::uint32_t y = 1; y < kSumRows; ++y) sum += partial[y][threadIdx.x];
  gradient[column] = accumulate ? gradient[column] + sum : sum;
}

// C in tiles of kTile x kTile: a block loads strips of A and B into shared memory, kTileDepth of k at a time, and
// thread (x, y) adds up elements (y + 16 i, x + 16 j) of the tile, k ascending. Tiles over the edge are filled with
// zeros.
template <bool kTransposeA, bool kTransposeB>
__global__ void gemm(GemmArgs args) {
  // One more column: neighbours in k would fall into the same bank when they are stored.
  __shared__ float strip_a[kTileDepth][kTile + 1];
  __shared__ float strip_b[kTileDepth][kTile + 1];
  const std::uint32_t row0 = blockIdx.y * kTile, column0 = blockIdx.x * kTile;
  const std::uint32_t thread = threadIdx.y * kTileThreads + threadIdx.x;
  float sums[kPerThread][kPerThread] = {};
  for (std::uint32_t k0 = 0; k0 < args.k; k0 += kTileDepth) {
    // Neighbouring threads load neighbouring addresses, whichever way the matrix lies.
    for (std::uint32_t i = thread; i < kTile * kTileDepth; i += kTileThreads * kTileThreads) {
      const std::uint32_t inner = kTransposeA ? i / kTile : i % kTileDepth;
      const std::uint32_t outer = kTransposeA ? i % kTile : i / kTileDepth;
      const std::uint32_t row = row0 + outer, k = k0 + inner;
      float value = 0.0f;
      if (row < args.m && k < args.k) {
        value = kTransposeA ? args.a[std::size_t{k} * args.m + row] : args.a[std::size_t{row} * args.k + k];
      }
      strip_a[inner][outer] = value;
    }
    for (std::uint32_t i = thread; i < kTile * kTileDepth; i += kTileThreads * kTileThreads) {
      const std::uint32_t inner = kTransposeB ? i % kTileDepth : i / kTile;
      const std::uint32_t outer = kTransposeB ? i / kTileDepth : i % kTile;
      const std::uint32_t column = column0 + outer, k = k0 + inner;
      float value = 0.0f;
      if (column < args.n && k < args.k) {
        value = kTransposeB ? args.b[std::size_t{column} * args.k + k] : args.b[std::size_t{k} * args.n + column];
      }
      strip_b[inner][outer] = value;
    }
    __syncthreads();
    for (std::uint32_t k = 0; k < kTileDepth; ++k) {
      float a[kPerThread], b[kPerThread];
      for (std::uint32_t i = 0; i < kPerThread; ++i) a[i] = strip_a[k][threadIdx.y + kTileThreads * i];
      for (std::uint32_t j = 0; j < kPerThread; ++j) b[j] = strip_b[k][threadIdx.x + kTileThreads * j];
      for (std::uint32_t i = 0; i < kPerThread; ++i) {
        for (std::uint32_t j = 0; j < kPerThread; ++j) sums[i][j] = fmaf(a[i], b[j], sums[i][j]);
      }
    }
    __syncthreads();
  }
  for (std::uint32_t i = 0; i < kPerThread; ++i) {
    const std::uint32_t row = row0 + threadIdx.y + kTileThreads * i;
    for (std::uint32_t j = 0; j < kPerThread; ++j) {
      const std::uint32_t column = column0 + threadIdx.x + kTileThreads * j;
      if (row >= args.m || column >= args.n) continue;
      float& c = args.c[std::size_t{row} * args.n + column];
      c = args.accumulate ? c + sums[i][j] : sums[i][j];
    }
  }
}

}  // namespace device
}  // namespace tributary::train
