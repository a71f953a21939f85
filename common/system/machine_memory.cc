#include "common/system/machine_memory.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "common/system/control_groups.h"

namespace tributary {
namespace {

// "max" in version 2 is no number; version 1 has a number beyond all memory.
double bytes_in(const std::string& path) {
  std::ifstream file(path);
  double bytes = 0;
  return file >> bytes && bytes > 0 ? bytes : kNoGroupLimit;
}

double limit_v2(const std::string& group) {
  return bytes_in(group + "/memory.max");
}

double limit_v1(const std::string& group) {
  return bytes_in(group + "/memory.limit_in_bytes");
}

}  // namespace

std::uint64_t usable_memory(const std::string& root) {
  const auto machine = static_cast<double>(::sysconf(_SC_PHYS_PAGES)) * static_cast<double>(::sysconf(_SC_PAGESIZE));
  return static_cast<std::uint64_t>(std::min(machine, smallest_group_limit(root, "memory", limit_v2, limit_v1)));
}

}  // namespace tributary
