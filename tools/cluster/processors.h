// Processors that this process may use, which may be fewer than the machine has: limits are its affinity (taskset,
// cpusets) and the quotas of its control groups (containers, systemd's CPUQuota, Slurm).
#pragma once

#include <cstdint>
#include <string>

namespace tributary {

// At least 1. A quota counts in whole processors: 2.5 are 2.
std::uint32_t usable_processors();

// The smallest quota of the control groups that this process is in, in processors, of version 2 or 1; a huge number if
// there is none. root: of the file system that has /proc and /sys.
double processor_quota(const std::string& root = "");

}  // namespace tributary
