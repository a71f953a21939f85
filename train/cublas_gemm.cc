#include <cublas_v2.h>

#include <utility>

#include "common/devices/cuda_libraries.h"
#include "train/cuda_gemm.h"

namespace tributary::train {

namespace {

// A workspace of our own makes the choice of algorithm, and so the bits, independent of what else runs in the process.
// The size that cuBLAS recommends for its largest devices.
constexpr std::size_t kWorkspaceBytes = std::size_t{32} << 20;

// The functions that we call: the same in all releases from 11 to 13.
struct Cublas {
  decltype(&cublasCreate_v2) create = nullptr;
  decltype(&cublasDestroy_v2) destroy = nullptr;
  decltype(&cublasSetStream_v2) set_stream = nullptr;
  decltype(&cublasSetWorkspace_v2) set_workspace = nullptr;
  decltype(&cublasSetMathMode) set_math_mode = nullptr;
  decltype(&cublasSetAtomicsMode) set_atomics_mode = nullptr;
  decltype(&cublasSgemm_v2) sgemm = nullptr;
  decltype(&cublasGetStatusString) status_string = nullptr;  // from 11.4 on
};

Status resolve(const DynamicLibrary& library, Cublas& cublas) {
  Status status = library.resolve("cublasCreate_v2", cublas.create);
  const auto also = [&](const char* symbol, auto*& function) {
    if (status) status = library.resolve(symbol, function);
  };
  also("cublasDestroy_v2", cublas.destroy);
  also("cublasSetStream_v2", cublas.set_stream);
  also("cublasSetWorkspace_v2", cublas.set_workspace);
  also("cublasSetMathMode", cublas.set_math_mode);
  also("cublasSetAtomicsMode", cublas.set_atomics_mode);
  also("cublasSgemm_v2", cublas.sgemm);
  library.resolve_if_there("cublasGetStatusString", cublas.status_string);
  return status;
}

class CublasGemm final : public CudaGemm {
 public:
  CublasGemm(const CudaDeviceName& device, const Cublas& cublas, const std::string& version)
      : device_(device), cublas_(cublas), name_("cuBLAS " + version) {}
  ~CublasGemm() override {
    if (handle_ != nullptr) cublas_.destroy(handle_);
  }

  Status start(cudaStream_t stream) {
    auto workspace = DeviceMemory<std::byte>::make(device_, kWorkspaceBytes, "cuBLAS's workspace");
    if (!workspace) return tl::unexpected(workspace.error());
    workspace_ = std::move(*workspace);
    if (Status status = check(cublas_.create(&handle_), "starting cuBLAS"); !status) return status;
    // The stream first: setting it takes the workspace away again.
    if (Status status = check(cublas_.set_stream(handle_, stream), "giving cuBLAS a stream"); !status) return status;
    if (Status status =
            check(cublas_.set_workspace(handle_, workspace_.data(), workspace_.size()), "giving cuBLAS a workspace");
        !status) {
      return status;
    }
    if (Status status = check(cublas_.set_atomics_mode(handle_, CUBLAS_ATOMICS_NOT_ALLOWED), "setting cuBLAS's mode");
        !status) {
      return status;
    }
    return check(cublas_.set_math_mode(handle_, CUBLAS_PEDANTIC_MATH), "setting cuBLAS's mode");
  }

  const std::string& name() const override { return name_; }

  // cuBLAS reads matrices by columns. To it our C is C transposed, which is op(B) transposed times op(A) transposed.
  Status multiply(const GemmArgs& g) override {
    const float one = 1.0f, beta = g.accumulate ? 1.0f : 0.0f;
    const auto m = static_cast<int>(g.m), n = static_cast<int>(g.n), k = static_cast<int>(g.k);
    return check(
        cublas_.sgemm(handle_, g.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N, g.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N, n,
                      m, k, &one, g.b, g.transpose_b ? k : n, g.a, g.transpose_a ? m : k, &beta, g.c, n),
        "multiplying matrices with cuBLAS");
  }

 private:
  Status check(cublasStatus_t status, const char* operation) const {
    if (status == CUBLAS_STATUS_SUCCESS) return {};
    const std::string text = cublas_.status_string != nullptr ? cublas_.status_string(status) : "cublasStatus_t";
    return fail(ErrorCode::kDevice, device_.text() + ": " + operation + " failed: " + text + " (" +
                                        std::to_string(static_cast<int>(status)) + ")");
  }

  CudaDeviceName device_;
  Cublas cublas_;
  std::string name_;
  DeviceMemory<std::byte> workspace_;  // outlives the handle
  cublasHandle_t handle_ = nullptr;
};

}  // namespace

Result<std::unique_ptr<CudaGemm>> make_cublas_gemm(const CudaDeviceName& device, cudaStream_t stream) {
  const Result<DynamicLibrary> library = open_cublas();
  if (!library) return tl::unexpected(library.error());
  Cublas cublas;
  if (Status status = resolve(*library, cublas); !status) return tl::unexpected(status.error());
  auto gemm = std::make_unique<CublasGemm>(device, cublas, cublas_version(*library));
  if (Status status = gemm->start(stream); !status) return tl::unexpected(status.error());
  return gemm;
}

}  // namespace tributary::train
