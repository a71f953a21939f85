// Functions that need no CUDA, and so are the same in both builds.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>
#include <utility>

#include "common/devices/cuda_devices.h"
#include "common/devices/dynamic_library.h"
#include "common/devices/kept_context.h"

namespace tributary {

std::string CudaDevice::describe() const {
  return "cuda:" + std::to_string(index) + " " + name;
}

std::string driver_too_old(const CudaSystem& system) {
  std::string package = "cuda-compat-" + system.runtime;  // as NVIDIA calls it for Debian, Ubuntu and RHEL
  std::ranges::replace(package, '.', '-');
  return "the NVIDIA driver serves CUDA " + system.driver + ", older than this build's " + system.runtime +
         "; install a newer driver, or NVIDIA's package " + package +
         " (data-centre GPUs: a newer driver library beside the driver), or take a build with the toolkit of CUDA " +
         system.driver.substr(0, system.driver.find('.'));
}

std::string mps_folder() {
  const char* named = std::getenv("CUDA_MPS_PIPE_DIRECTORY");
  const std::string folder = named != nullptr && *named != '\0' ? named : "/tmp/nvidia-mps";
  std::error_code error;
  return std::filesystem::exists(folder + "/control", error) ? folder : std::string();
}

void choose_cuda_settings() {
  for (const auto& [name, value] : {std::pair{"CUDA_MODULE_LOADING", "EAGER"},
                                    {"CUDA_DEVICE_MAX_CONNECTIONS", "32"},
                                    {"NCCL_RUNTIME_CONNECT", "0"}}) {
    ::setenv(name, value, 0);
  }
}

const KeptContext::Driver& KeptContext::loaded() {
  static const Driver driver = [] {
    Driver found;
    const auto library = DynamicLibrary::open("the NVIDIA driver", {"libcuda.so.1"}, "install it");
    if (library) {
      library->resolve_if_there("cuCtxGetCurrent", found.get);
      library->resolve_if_there("cuCtxSetCurrent", found.set);
    }
    return found;
  }();
  return driver;
}

// First line: "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul ..."; the word before the release
// differs between kinds of modules.
std::string nvidia_driver_module() {
  std::ifstream in("/proc/driver/nvidia/version");
  std::string line;
  if (!std::getline(in, line)) return {};
  std::istringstream words(line);
  for (std::string word; words >> word;) {
    if (word.find_first_not_of("0123456789.") == std::string::npos && word.find('.') != std::string::npos) return word;
  }
  return "of an unknown release";
}

}  // namespace tributary
