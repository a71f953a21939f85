// What a build with CUDA but without cuBLAS's header answers.
#include "common/devices/cuda_libraries.h"
#include "train/cuda_gemm.h"

namespace tributary::train {

Result<std::unique_ptr<CudaGemm>> make_cublas_gemm(const CudaDeviceName&, cudaStream_t) {
  return fail(ErrorCode::kNotFound, cublas_left_out());
}

}  // namespace tributary::train
