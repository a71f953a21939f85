// Blocks take rows or tiles in strides of the grid, so any grid is right.
#include <algorithm>
#include <cmath>

#include "kernels/device.cuh"
#include "train/mlp_kernels.h"

namespace tributary::train {
namespace {

using kernels::cuda::kMaxBlocks;
using kernels::cuda::kThreads;
using kernels::cuda::launch;
using kernels::cuda::Stream;

// Column sums: a block has 32 columns at a time, for each of them 8 threads.
constexpr unsigned kSumColumns = 32, kSumRows = kThreads / kSumColumns;

// The matrix product: a block computes tiles of 64 x 64, in which each thread has 4 x 4 elements, 16 apart; of the
// inner dimension it takes 16 at a time.
constexpr unsigned kTile = 64, kDepth = 16, kSide = 16, kPerThread = kTile / kSide;
static_assert(kSide * kSide == kThreads);

unsigned blocks_of(std::size_t parts) {
  return static_cast<unsigned>(std::min<std::size_t>(parts, kMaxBlocks));
}

__host__ __device__ constexpr unsigned tiles_of(std::uint32_t size, unsigned tile) {
  return (size + tile - 1) / tile;
}

__global__ void __launch_bounds__(kThreads) gather(const GatherArgs args) {
  for (std::uint32_t row = blockIdx.x; row < args.rows; row += gridDim.x) {
    const std::size_t image = args.indices != nullptr ? args.indices[row] : row;
    const std::uint8_t* pixels = args.pixels + image * args.image_size;
    float* out = args.out + std::size_t{row} * args.image_size;
    for (std::uint32_t i = threadIdx.x; i < args.image_size; i += kThreads) out[i] = args.scale[pixels[i]];
    if (threadIdx.x == 0) args.out_labels[row] = args.labels[image];
  }
}

__global__ void __launch_bounds__(kThreads)
    add_bias(float* out, std::uint32_t rows, std::uint32_t columns, const float* bias, bool relu) {
  for (std::uint32_t row = blockIdx.x; row < rows; row += gridDim.x) {
    float* of_row = out + std::size_t{row} * columns;
    for (std::uint32_t c = threadIdx.x; c < columns; c += kThreads) {
      const float sum = of_row[c] + bias[c];
      of_row[c] = relu && sum < 0.0f ? 0.0f : sum;
    }
  }
}

// One thread a row: classes are few, and each row is summed in the order in which the CPU does it.
__global__ void __launch_bounds__(kThreads) row_losses(const LossArgs args) {
  const std::size_t step = std::size_t{gridDim.x} * kThreads;
  for (std::size_t row = std::size_t{blockIdx.x} * kThreads + threadIdx.x; row < args.rows; row += step) {
    const float* logits = args.logits + row * args.classes;
    float* delta = args.delta + row * args.classes;
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
    for (std::uint32_t c = 0; c < args.classes; ++c)
      delta[c] = (delta[c] / sum - (c == label ? 1.0f : 0.0f)) * args.scale;
    args.row_sums[row].loss =
        log(static_cast<double>(sum)) - (static_cast<double>(logits[label]) - static_cast<double>(logits[top]));
    args.row_sums[row].correct = top == label ? 1 : 0;
  }
}

// By one block: thread t adds rows t, t + kThreads, ..., then the threads are added pairwise.
__global__ void __launch_bounds__(kThreads) add_rows(const PassSums* row_sums, std::uint32_t rows, PassSums* sums) {
  TRIBUTARY_SHARED(double[kThreads], losses);
  TRIBUTARY_SHARED(std::uint64_t[kThreads], corrects);
  double loss = 0.0;
  std::uint64_t correct = 0;
  for (std::uint32_t row = threadIdx.x; row < rows; row += kThreads) {
    loss += row_sums[row].loss;
    correct += row_sums[row].correct;
  }
  losses[threadIdx.x] = loss;
  corrects[threadIdx.x] = correct;
  __syncthreads();
  for (unsigned half = kThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) {
      losses[threadIdx.x] += losses[threadIdx.x + half];
      corrects[threadIdx.x] += corrects[threadIdx.x + half];
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    sums->loss += losses[0];
    sums->correct += corrects[0];
  }
}

__global__ void __launch_bounds__(kThreads) relu_backward(float* delta, const float* output, std::size_t size) {
  const std::size_t step = std::size_t{gridDim.x} * kThreads;
  for (std::size_t i = std::size_t{blockIdx.x} * kThreads + threadIdx.x; i < size; i += step) {
    if (!(output[i] > 0.0f)) delta[i] = 0.0f;
  }
}

__global__ void __launch_bounds__(kThreads) fill(float* out, std::size_t size, float value) {
  const std::size_t step = std::size_t{gridDim.x} * kThreads;
  for (std::size_t i = std::size_t{blockIdx.x} * kThreads + threadIdx.x; i < size; i += step) out[i] = value;
}

__global__ void __launch_bounds__(kThreads) subtract(const float* a, const float* b, std::size_t size, float* out) {
  const std::size_t step = std::size_t{gridDim.x} * kThreads;
  for (std::size_t i = std::size_t{blockIdx.x} * kThreads + threadIdx.x; i < size; i += step) out[i] = a[i] - b[i];
}

// Of a column's 8 threads, number y adds rows y, y + 8, ...; then they are added in order.
__global__ void __launch_bounds__(kThreads)
    column_sums(const float* delta, std::uint32_t rows, std::uint32_t columns, float* gradient, bool accumulate) {
  TRIBUTARY_SHARED(float[kSumRows][kSumColumns], partial);
  const unsigned x = threadIdx.x % kSumColumns, y = threadIdx.x / kSumColumns;
  for (unsigned tile = blockIdx.x; tile < tiles_of(columns, kSumColumns); tile += gridDim.x) {
    const std::uint32_t column = tile * kSumColumns + x;
    float sum = 0.0f;
    if (column < columns) {
      for (std::uint32_t row = y; row < rows; row += kSumRows) sum += delta[std::size_t{row} * columns + column];
    }
    partial[y][x] = sum;
    __syncthreads();
    if (y == 0 && column < columns) {
      for (unsigned other = 1; other < kSumRows; ++other) sum += partial[other][x];
      gradient[column] = accumulate ? gradient[column] + sum : sum;
    }
    __syncthreads();  // before the next tile overwrites what is still being added
  }
}

// Strips of A and B go through shared memory, each element of C is added up with the inner dimension ascending. Tiles
// over the edge are filled with zeros.
template <bool kTransposeA, bool kTransposeB>
__global__ void __launch_bounds__(kThreads) gemm(const GemmArgs args) {
  // One more column: neighbours in the inner dimension would fall into the same bank when they are stored.
  TRIBUTARY_SHARED(float[kDepth][kTile + 1], strip_a);
  TRIBUTARY_SHARED(float[kDepth][kTile + 1], strip_b);
  const unsigned x = threadIdx.x % kSide, y = threadIdx.x / kSide;
  const unsigned across = tiles_of(args.n, kTile), tiles = across * tiles_of(args.m, kTile);
  for (unsigned tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const std::uint32_t row0 = tile / across * kTile, column0 = tile % across * kTile;
    float sums[kPerThread][kPerThread] = {};
    for (std::uint32_t k0 = 0; k0 < args.k; k0 += kDepth) {
      // Neighbouring threads load neighbouring addresses, whichever way the matrix lies.
      for (unsigned i = threadIdx.x; i < kTile * kDepth; i += kThreads) {
        const unsigned inner = kTransposeA ? i / kTile : i % kDepth, outer = kTransposeA ? i % kTile : i / kDepth;
        const std::uint32_t row = row0 + outer, k = k0 + inner;
        const std::size_t at = kTransposeA ? std::size_t{k} * args.m + row : std::size_t{row} * args.k + k;
        strip_a[inner][outer] = row < args.m && k < args.k ? args.a[at] : 0.0f;
      }
      for (unsigned i = threadIdx.x; i < kTile * kDepth; i += kThreads) {
        const unsigned inner = kTransposeB ? i % kDepth : i / kTile, outer = kTransposeB ? i / kDepth : i % kTile;
        const std::uint32_t column = column0 + outer, k = k0 + inner;
        const std::size_t at = kTransposeB ? std::size_t{column} * args.k + k : std::size_t{k} * args.n + column;
        strip_b[inner][outer] = column < args.n && k < args.k ? args.b[at] : 0.0f;
      }
      __syncthreads();
      for (unsigned k = 0; k < kDepth; ++k) {
        float a[kPerThread], b[kPerThread];
        TRIBUTARY_UNROLL
        for (unsigned i = 0; i < kPerThread; ++i) {
          a[i] = strip_a[k][y + kSide * i];
          b[i] = strip_b[k][x + kSide * i];
        }
        TRIBUTARY_UNROLL
        for (unsigned i = 0; i < kPerThread; ++i) {
          TRIBUTARY_UNROLL
          for (unsigned j = 0; j < kPerThread; ++j) sums[i][j] = fmaf(a[i], b[j], sums[i][j]);
        }
      }
      __syncthreads();  // before the next strips overwrite these
    }
    TRIBUTARY_UNROLL
    for (unsigned i = 0; i < kPerThread; ++i) {
      TRIBUTARY_UNROLL
      for (unsigned j = 0; j < kPerThread; ++j) {
        const std::uint32_t row = row0 + y + kSide * i, column = column0 + x + kSide * j;
        if (row >= args.m || column >= args.n) continue;
        float& c = args.c[std::size_t{row} * args.n + column];
        c = args.accumulate ? c + sums[i][j] : sums[i][j];
      }
    }
  }
}

}  // namespace

void launch_gather(const GatherArgs& args, Stream stream) {
  launch(stream, blocks_of(args.rows), gather, args);
}

void launch_bias(float* out, std::uint32_t rows, std::uint32_t columns, const float* bias, bool relu, Stream stream) {
  launch(stream, blocks_of(rows), add_bias, out, rows, columns, bias, relu);
}

void launch_loss(const LossArgs& args, PassSums* sums, Stream stream) {
  launch(stream, blocks_of(tiles_of(args.rows, kThreads)), row_losses, args);
  launch(stream, 1, add_rows, args.row_sums, args.rows, sums);
}

void launch_relu_backward(float* delta, const float* output, std::size_t size, Stream stream) {
  launch(stream, blocks_of((size + kThreads - 1) / kThreads), relu_backward, delta, output, size);
}

void launch_fill(float* out, std::size_t size, float value, Stream stream) {
  launch(stream, blocks_of((size + kThreads - 1) / kThreads), fill, out, size, value);
}

void launch_difference(const float* a, const float* b, std::size_t size, float* out, Stream stream) {
  launch(stream, blocks_of((size + kThreads - 1) / kThreads), subtract, a, b, size, out);
}

void launch_column_sums(const float* delta, std::uint32_t rows, std::uint32_t columns, float* gradient, bool accumulate,
                        Stream stream) {
  launch(stream, blocks_of(tiles_of(columns, kSumColumns)), column_sums, delta, rows, columns, gradient, accumulate);
}

void launch_gemm(const GemmArgs& args, Stream stream) {
  const unsigned blocks = blocks_of(std::size_t{tiles_of(args.m, kTile)} * tiles_of(args.n, kTile));
  if (args.transpose_a && args.transpose_b) {
    launch(stream, blocks, gemm<true, true>, args);
  } else if (args.transpose_a) {
    launch(stream, blocks, gemm<true, false>, args);
  } else if (args.transpose_b) {
    launch(stream, blocks, gemm<false, true>, args);
  } else {
    launch(stream, blocks, gemm<false, false>, args);
  }
}

}  // namespace tributary::train
