// Matrix products on a GPU, in fp32 (no TF32: accuracy is the CPU's), the same bits from run to run: by cuBLAS, which
// is loaded at run time, or by a kernel of our own where it is not there.
#pragma once

#include <memory>
#include <string>

#include "common/base/result.h"
#include "train/cuda_util.h"
#include "train/mlp_kernels.h"

namespace tributary::train {

// Thread rule: one thread at a time.
class CudaGemm {
 public:
  virtual ~CudaGemm() = default;
  virtual const std::string& name() const = 0;  // "cuBLAS 13.0.2"
  // Enqueues on the stream that it was made for. kDevice.
  virtual Status multiply(const GemmArgs& args) = 0;
};

// For the current device. kNotFound: no cuBLAS (says what was tried); kDevice: it does not start on this device.
Result<std::unique_ptr<CudaGemm>> make_cublas_gemm(const CudaDeviceName& device, cudaStream_t stream);
std::unique_ptr<CudaGemm> make_own_gemm(const CudaDeviceName& device, cudaStream_t stream);

}  // namespace tributary::train
