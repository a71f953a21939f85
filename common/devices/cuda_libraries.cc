#include "common/devices/cuda_libraries.h"

namespace tributary {

namespace {

std::string dotted(int major, int minor, int patch) {
  return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(patch);
}

// The package to install; set for this file where the header was not found (cmake/TributaryCudaHeaders.cmake).
#ifdef TRIBUTARY_NO_NCCL
constexpr const char* kNcclCure = TRIBUTARY_NO_NCCL;
#else
constexpr const char* kNcclCure = "";
#endif

}  // namespace

std::string nccl_left_out() {
  const std::string cure = kNcclCure;
  if (cure.empty()) return {};
  return "this build is without NCCL: its header nccl.h was not found; install " + cure + ", configure again and build";
}

Result<DynamicLibrary> open_nccl() {
  return DynamicLibrary::open("NCCL", {"libnccl.so.2", "libnccl.so"},
                              "install NVIDIA's package libnccl2 or PyPI's nvidia-nccl-cu13, or name its folder in "
                              "LD_LIBRARY_PATH; a node with one GPU needs none");
}

std::string nccl_version(const DynamicLibrary& nccl) {
  int (*get_version)(int* version) = nullptr;
  nccl.resolve_if_there("ncclGetVersion", get_version);
  int version = 0;
  if (get_version == nullptr || get_version(&version) != 0) return "of an unknown version";
  return nccl_version(version);
}

std::string nccl_version(int version) {
  constexpr int kFirstOfNewScheme = 10'000;  // before 2.9: 2804 is 2.8.4
  if (version < kFirstOfNewScheme) return dotted(version / 1000, version % 1000 / 100, version % 100);
  return dotted(version / 10'000, version % 10'000 / 100, version % 100);
}

}  // namespace tributary
