// CUDA's return codes as Status: device, operation and CUDA's own words.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "common/result.h"

namespace tributary {

inline Status cuda_status(cudaError_t code, const std::string& device, const char* operation) {
  if (code == cudaSuccess) return {};
  (void)cudaGetLastError();  // it has been told: what is launched next must not be blamed for it
  const ErrorCode kind = code == cudaErrorMemoryAllocation ? ErrorCode::kLimit : ErrorCode::kDevice;
  return fail(kind, device + ": " + operation + ": " + cudaGetErrorString(code) + " (" + cudaGetErrorName(code) + ")");
}

}  // namespace tributary
