#include "tools/cluster/processors.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <thread>

#include "common/system/control_groups.h"

namespace tributary {
namespace {

std::uint32_t processors_of_affinity() {
  // More processors than cpu_set_t has: the machine's count, as without an affinity.
  cpu_set_t set;
  const bool known = ::sched_getaffinity(0, sizeof set, &set) == 0;
  return known ? static_cast<std::uint32_t>(CPU_COUNT(&set)) : std::thread::hardware_concurrency();
}

std::optional<double> number_in(const std::string& path) {
  std::ifstream file(path);
  double number = 0;
  return file >> number ? std::optional(number) : std::nullopt;
}

double share(std::optional<double> quota, std::optional<double> period) {
  return quota && period && *quota > 0 && *period > 0 ? *quota / *period : kNoGroupLimit;
}

// cpu.max: "QUOTA PERIOD" or "max PERIOD".
double quota_v2(const std::string& group) {
  std::ifstream file(group + "/cpu.max");
  double quota = 0, period = 0;
  return file >> quota >> period ? share(quota, period) : kNoGroupLimit;
}

// cpu.cfs_quota_us is -1 if there is none.
double quota_v1(const std::string& group) {
  return share(number_in(group + "/cpu.cfs_quota_us"), number_in(group + "/cpu.cfs_period_us"));
}

}  // namespace

double processor_quota(const std::string& root) {
  return smallest_group_limit(root, "cpu", quota_v2, quota_v1);
}

std::uint32_t usable_processors() {
  const double quota = std::clamp(processor_quota(), 1.0, 1e6);
  return std::max(1u, std::min(processors_of_affinity(), static_cast<std::uint32_t>(quota)));
}

}  // namespace tributary
