// cuBLAS and NCCL, which are loaded at run time: what they are called, and their versions, without their headers.
#pragma once

#include <string>

#include "common/dynamic_library.h"

namespace tributary {

Result<DynamicLibrary> open_cublas();
Result<DynamicLibrary> open_nccl();

// "13.0.2"; "of an unknown version" if the library does not say.
std::string cublas_version(const DynamicLibrary& cublas);
std::string nccl_version(const DynamicLibrary& nccl);
// Of NCCL's number for a version: 22809 is "2.28.9".
std::string nccl_version(int number);

}  // namespace tributary
