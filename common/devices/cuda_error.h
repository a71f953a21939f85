// CUDA's return codes as Status: device, operation and CUDA's own words.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "common/base/result.h"

namespace tributary {

// Returns whether, in the words of CUDA's header, any further work returns the same error until the process is
// terminated: the driver has ended all work and memory of this process on the device.
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
    case cudaErrorUnknown:  // often of a device that has left the bus
#if CUDART_VERSION >= 12080
    case cudaErrorContained:
    case cudaErrorTensorMemoryLeak:
#endif
      return true;
    default:
      return false;
  }
}

// Returns whether the driver is only not ready, or not ready again: a fabric manager or an MPS server comes up, or
// another process has the device for itself. A later call, or a later process, may find the device.
constexpr bool may_pass(cudaError_t code) {
  switch (code) {
    case cudaErrorUnknown:  // /dev/nvidia-uvm is not there yet
    case cudaErrorDevicesUnavailable:
    case cudaErrorSystemNotReady:
    case cudaErrorMpsConnectionFailed:
    case cudaErrorMpsRpcFailure:
    case cudaErrorMpsServerNotReady:
    case cudaErrorMpsMaxClientsReached:
    case cudaErrorMpsMaxConnectionsReached:
      return true;
    default:
      return false;
  }
}

// Clears the error of a call that frees something, whose failure changes nothing: the next launch must not report it.
inline void given_back(cudaError_t code) {
  if (code != cudaSuccess) (void)cudaGetLastError();
}

inline Status cuda_status(cudaError_t code, const std::string& device, const char* operation) {
  if (code == cudaSuccess) return {};
  (void)cudaGetLastError();  // the error is reported here: the next launch must not report it again
  const ErrorCode kind = code == cudaErrorMemoryAllocation      ? ErrorCode::kLimit
                         : ends_process(code) || may_pass(code) ? ErrorCode::kUnavailable
                                                                : ErrorCode::kDevice;
  return fail(kind, device + ": " + operation + ": " + cudaGetErrorString(code) + " (" + cudaGetErrorName(code) + ")");
}

}  // namespace tributary
