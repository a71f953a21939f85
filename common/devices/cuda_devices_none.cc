// The answers of a build without CUDA.
#include "common/devices/cuda_devices.h"

namespace tributary {

CudaSystem inspect_cuda() {
  CudaSystem system;
  system.driver_module = nvidia_driver_module();
  system.no_devices =
      "this build has no CUDA; configure it again with -DTRIBUTARY_CUDA=ON and nvcc of the CUDA toolkit on PATH";
  return system;
}

bool cuda_peer_access(int, int) {
  return false;
}

std::string cuda_ipc_problem(int) {
  return "this build has no CUDA";
}

}  // namespace tributary
