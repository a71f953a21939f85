#include "common/devices/cuda_libraries.h"

namespace tributary {

namespace {

constexpr const char* kUnknown = "of an unknown version";

std::string dotted(int major, int minor, int patch) {
  return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(patch);
}

// What would have to be installed; set for this file where a header was not found (cmake/TributaryCudaHeaders.cmake).
#ifdef TRIBUTARY_NO_CUBLAS
constexpr const char* kCublasCure = TRIBUTARY_NO_CUBLAS;
#else
constexpr const char* kCublasCure = "";
#endif
#ifdef TRIBUTARY_NO_NCCL
constexpr const char* kNcclCure = TRIBUTARY_NO_NCCL;
#else
constexpr const char* kNcclCure = "";
#endif

std::string left_out(const std::string& library, const std::string& header, const std::string& cure) {
  if (cure.empty()) return {};
  return "this build is without " + library + ": its header " + header + " was not found; install " + cure +
         ", configure again and build";
}

}  // namespace

std::string cublas_left_out() {
  return left_out("cuBLAS", "cublas_v2.h", kCublasCure);
}

std::string nccl_left_out() {
  return left_out("NCCL", "nccl.h", kNcclCure);
}

Result<DynamicLibrary> open_cublas() {
  return DynamicLibrary::open(
      "cuBLAS", {"libcublas.so.13", "libcublas.so.12", "libcublas.so.11"},
      "install cuBLAS of the CUDA toolkit or PyPI's nvidia-cublas, or name its folder in LD_LIBRARY_PATH");
}

Result<DynamicLibrary> open_nccl() {
  return DynamicLibrary::open("NCCL", {"libnccl.so.2", "libnccl.so"},
                              "install NVIDIA's package libnccl2 or PyPI's nvidia-nccl-cu13, or name its folder in "
                              "LD_LIBRARY_PATH; a node with one GPU needs none");
}

std::string cublas_version(const DynamicLibrary& cublas) {
  int (*get_property)(int property, int* value) = nullptr;
  cublas.resolve_if_there("cublasGetProperty", get_property);
  int numbers[3] = {};  // properties 0, 1, 2: major, minor, patch
  for (int i = 0; i < 3; ++i) {
    if (get_property == nullptr || get_property(i, &numbers[i]) != 0) return kUnknown;
  }
  return dotted(numbers[0], numbers[1], numbers[2]);
}

std::string nccl_version(const DynamicLibrary& nccl) {
  int (*get_version)(int* version) = nullptr;
  nccl.resolve_if_there("ncclGetVersion", get_version);
  int version = 0;
  if (get_version == nullptr || get_version(&version) != 0) return kUnknown;
  return nccl_version(version);
}

std::string nccl_version(int version) {
  constexpr int kFirstOfNewScheme = 10'000;  // before 2.9: 2804 is 2.8.4
  if (version < kFirstOfNewScheme) return dotted(version / 1000, version % 1000 / 100, version % 100);
  return dotted(version / 10'000, version % 10'000 / 100, version % 100);
}

}  // namespace tributary
