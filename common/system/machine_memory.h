// Memory that this process may use, which may be less than the machine has: control groups have limits (containers,
// systemd's MemoryMax, Slurm).
#pragma once

#include <cstdint>
#include <string>

namespace tributary {

// Bytes: of the machine, or the smallest limit of the control groups that this process is in. root: of the file system
// that has /proc and /sys.
std::uint64_t usable_memory(const std::string& root = "");

}  // namespace tributary
