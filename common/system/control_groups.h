// Limits of the control groups that this process is in (containers, systemd, Slurm), of version 2 or 1.
#pragma once

#include <limits>
#include <string>

namespace tributary {

inline constexpr double kNoGroupLimit = std::numeric_limits<double>::max();

// Smallest limit of this process's group and of all above it, or kNoGroupLimit. controller: of version 1 ("cpu").
// v2 and v1 read the limit of one group's folder, or kNoGroupLimit. root: of the file system that has /proc and /sys.
double smallest_group_limit(const std::string& root, const std::string& controller,
                            double (*v2)(const std::string& group), double (*v1)(const std::string& group));

}  // namespace tributary
