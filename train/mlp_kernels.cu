#include <algorithm>

#include "train/mlp_kernels.h"
#include "train/mlp_kernels_device.cuh"

namespace tributary::train {

namespace {

constexpr std::uint32_t kMaxBlocks = 4096;  // of a loop that strides: enough for every multiprocessor, several times

std::uint32_t blocks_for(std::size_t size, std::uint32_t per_block) {
  return static_cast<std::uint32_t>((size + per_block - 1) / per_block);
}

}  // namespace

cudaError_t launch_gather(const GatherArgs& args, cudaStream_t stream) {
  if (args.rows == 0) return cudaSuccess;
  device::gather<<<args.rows, device::kThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

cudaError_t launch_bias(float* out, std::uint32_t rows, std::uint32_t columns, const float* bias, bool relu,
                        cudaStream_t stream) {
  if (rows == 0 || columns == 0) return cudaSuccess;
  const dim3 grid(blocks_for(columns, device::kThreads), std::min(rows, kMaxBlocks));
  device::bias<<<grid, device::kThreads, 0, stream>>>(out, rows, columns, bias, relu);
  return cudaGetLastError();
}

cudaError_t launch_loss(const LossArgs& args, PassSums* sums, cudaStream_t stream) {
  if (args.rows == 0) return cudaSuccess;
  device::loss<<<blocks_for(args.rows, device::kLossThreads), device::kLossThreads, 0, stream>>>(args);
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) return error;
  device::add_sums<<<1, device::kThreads, 0, stream>>>(args.rows_of_sums, args.rows, sums);
  return cudaGetLastError();
}

cudaError_t launch_relu_backward(float* delta, const float* output, std::size_t size, cudaStream_t stream) {
  if (size == 0) return cudaSuccess;
  const std::uint32_t blocks =
      static_cast<std::uint32_t>(std::min<std::size_t>((size + device::kThreads - 1) / device::kThreads, kMaxBlocks));
  device::relu_backward<<<blocks, device::kThreads, 0, stream>>>(delta, output, size);
  return cudaGetLastError();
}

cudaError_t launch_column_sums(const float* delta, std::uint32_t rows, std::uint32_t columns, float* gradient,
                               bool accumulate, cudaStream_t stream) {
  if (columns == 0) return cudaSuccess;
  const dim3 threads(device::kSumColumns, device::kSumRows);
  device::column_sums<<<blocks_for(columns, device::kSumColumns), threads, 0, stream>>>(delta, rows, columns, gradient,
                                                                                        accumulate);
  return cudaGetLastError();
}

cudaError_t launch_gemm(const GemmArgs& args, cudaStream_t stream) {
  if (args.m == 0 || args.n == 0) return cudaSuccess;
  const dim3 threads(device::kTileThreads, device::kTileThreads);
  const dim3 grid(blocks_for(args.n, device::kTile), blocks_for(args.m, device::kTile));
  if (args.transpose_a && args.transpose_b) {
    device::gemm<true, true><<<grid, threads, 0, stream>>>(args);
  } else if (args.transpose_a) {
    device::gemm<true, false><<<grid, threads, 0, stream>>>(args);
  } else if (args.transpose_b) {
    device::gemm<false, true><<<grid, threads, 0, stream>>>(args);
  } else {
    device::gemm<false, false><<<grid, threads, 0, stream>>>(args);
  }
  return cudaGetLastError();
}

}  // namespace tributary::train
