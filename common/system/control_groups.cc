#include "common/system/control_groups.h"

#include <algorithm>
#include <fstream>

namespace tributary {
namespace {

// Returns the smallest limit of a group and all above it. A container may see its own group as the root, but get
// another path: a group that is not there has no limit.
double smallest(double (*limit_of)(const std::string&), const std::string& mounted, std::string group) {
  double limit = limit_of(mounted);
  while (!group.empty() && group != "/") {
    limit = std::min(limit, limit_of(mounted + group));
    group.erase(group.rfind('/'));
  }
  return limit;
}

bool has_word(const std::string& list, const std::string& word) {
  return ("," + list + ",").find("," + word + ",") != std::string::npos;
}

}  // namespace

double smallest_group_limit(const std::string& root, const std::string& controller, double (*v2)(const std::string&),
                            double (*v1)(const std::string&)) {
  const std::string mounted = root + "/sys/fs/cgroup";
  std::ifstream groups(root + "/proc/self/cgroup");  // lines NUMBER:CONTROLLERS:PATH; of version 2 "0::PATH"
  double limit = kNoGroupLimit;
  for (std::string line; std::getline(groups, line);) {
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1), path = line.substr(second + 1);
    if (!path.starts_with('/')) continue;
    if (controllers.empty()) {
      limit = std::min({limit, smallest(v2, mounted, path), smallest(v2, mounted + "/unified", path)});
    } else if (has_word(controllers, controller)) {
      limit = std::min(
          {limit, smallest(v1, mounted + "/" + controller, path), smallest(v1, mounted + "/" + controllers, path)});
    }
  }
  return limit;
}

}  // namespace tributary
