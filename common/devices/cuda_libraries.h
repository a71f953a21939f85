// NCCL, which is loaded at run time: where it is found, and its version, without its header.
#pragma once

#include <string>

#include "common/devices/dynamic_library.h"

namespace tributary {

Result<DynamicLibrary> open_nccl();

// Why this build uses CUDA but not NCCL, though it may be installed: its header was not there when the build was
// configured. Says what to install. Empty: it does use it, or has no CUDA at all.
std::string nccl_left_out();

// "2.28.9"; "of an unknown version" if the library does not say.
std::string nccl_version(const DynamicLibrary& nccl);
// Of NCCL's number for a version: 22809 is "2.28.9".
std::string nccl_version(int number);

}  // namespace tributary
