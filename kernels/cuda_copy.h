// A copy that has landed when it returns, for set-up, tests and benchmarks.
//
// cudaMemcpy() alone does not promise that. From pageable memory it may return while the last bytes are still on their
// way from a staging buffer (CUDA Runtime API, "API synchronization behavior"). Streams that do not wait for the legacy
// stream, as all of ours, then read the old bytes.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace tributary::kernels::cuda {

// Between host and device, either way, or on one device. Does not wait for what other streams do.
inline cudaError_t copy_and_wait(void* to, const void* from, std::size_t bytes) {
  const cudaError_t begun = cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, cudaStreamLegacy);
  return begun == cudaSuccess ? cudaStreamSynchronize(cudaStreamLegacy) : begun;
}

}  // namespace tributary::kernels::cuda
