#include "common/base/processors.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <thread>

namespace tributary {
namespace {

constexpr double kNone = std::numeric_limits<double>::max();

std::uint32_t processors_of_affinity() {
  // More processors than cpu_set_t has: the machine's count, as if nothing were said.
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
  return quota && period && *quota > 0 && *period > 0 ? *quota / *period : kNone;
}

// cpu.max: "QUOTA PERIOD" or "max PERIOD".
double quota_v2(const std::string& group) {
  std::ifstream file(group + "/cpu.max");
  double quota = 0, period = 0;
  return file >> quota >> period ? share(quota, period) : kNone;
}

// cpu.cfs_quota_us is -1 if there is none.
double quota_v1(const std::string& group) {
  return share(number_in(group + "/cpu.cfs_quota_us"), number_in(group + "/cpu.cfs_period_us"));
}

// The smallest of a group and all above it. A container may see its own group as the root, and be told another path: what is not
// there has no quota.
double smallest(double (*quota_of)(const std::string&), const std::string& mounted, std::string group) {
  double quota = quota_of(mounted);
  while (!group.empty() && group != "/") {
    quota = std::min(quota, quota_of(mounted + group));
    group.erase(group.rfind('/'));
  }
  return quota;
}

bool has_word(const std::string& list, const std::string& word) {
  return ("," + list + ",").find("," + word + ",") != std::string::npos;
}

}  // namespace

double processor_quota(const std::string& root) {
  const std::string mounted = root + "/sys/fs/cgroup";
  std::ifstream groups(root + "/proc/self/cgroup");  // lines NUMBER:CONTROLLERS:PATH; of version 2 "0::PATH"
  double quota = kNone;
  for (std::string line; std::getline(groups, line);) {
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1), path = line.substr(second + 1);
    if (!path.starts_with('/')) continue;
    if (controllers.empty()) {
      quota = std::min({quota, smallest(quota_v2, mounted, path), smallest(quota_v2, mounted + "/unified", path)});
    } else if (has_word(controllers, "cpu")) {
      quota = std::min(
          {quota, smallest(quota_v1, mounted + "/cpu", path), smallest(quota_v1, mounted + "/" + controllers, path)});
    }
  }
  return quota;
}

std::uint32_t usable_processors() {
  const double quota = std::clamp(processor_quota(), 1.0, 1e6);
  return std::max(1u, std::min(processors_of_affinity(), static_cast<std::uint32_t>(quota)));
}

}  // namespace tributary
