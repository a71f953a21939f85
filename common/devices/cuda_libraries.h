// NCCL, which is loaded at run time: its file and its version, without its header.
#pragma once

#include <string>

#include "common/devices/dynamic_library.h"

namespace tributary {

Result<DynamicLibrary> open_nccl();

// Returns why this build uses CUDA but not NCCL, which may be installed: its header was missing when the build was
// configured. Names the package to install. Empty: the build uses NCCL, or has no CUDA at all.
std::string nccl_left_out();

// "2.28.9"; "of an unknown version" if the library reports none.
std::string nccl_version(const DynamicLibrary& nccl);
// Formats NCCL's number of a version: 22809 is "2.28.9".
std::string nccl_version(int number);

}  // namespace tributary
