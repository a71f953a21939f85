// CUDA's return codes as Status: device, operation and CUDA's own words.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "common/base/result.h"

namespace tributary {

// Those after which, in the words of CUDA's header, any further work returns the same error until the process is
// terminated: the driver has ended all that this process had on the device.
constexpr bool ends_process(cudaError_t code) {
  switch (code) {
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorMpsClientTerminated:
    case cudaErrorExternalDevice:
#if CUDART_VERSION >= 12080
    case cudaErrorContained:
    case cudaErrorTensorMemoryLeak:
#endif
      return true;
    default:
      return false;
  }
}

inline Status cuda_status(cudaError_t code, const std::string& device, const char* operation) {
  if (code == cudaSuccess) return {};
  (void)cudaGetLastError();  // it has been told: what is launched next must not be blamed for it
  const ErrorCode kind = code == cudaErrorMemoryAllocation ? ErrorCode::kLimit
                         : ends_process(code)              ? ErrorCode::kUnavailable
                                                           : ErrorCode::kDevice;
  return fail(kind, device + ": " + operation + ": " + cudaGetErrorString(code) + " (" + cudaGetErrorName(code) + ")");
}

}  // namespace tributary
