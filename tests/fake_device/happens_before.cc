#include "tests/fake_device/happens_before.h"

#include <algorithm>

namespace tributary::testing {

std::optional<std::string> AccessHistory::add(const Access& access, const Clock& knows) {
  std::optional<std::string> conflict;
  std::erase_if(accesses_, [&](const Access& earlier) {
    const bool overlaps = earlier.begin < access.end && access.begin < earlier.end;
    if (!overlaps) return false;
    const bool known = knows.of(earlier.actor) >= earlier.time;
    if (!known && (earlier.write || access.write) && !conflict) {
      conflict = std::string(access.write ? "write of '" : "read of '") + access.what + "' is not ordered after the " +
                 (earlier.write ? "write of '" : "read of '") + earlier.what + "'";
    }
    // Whatever conflicts with the earlier one later conflicts with this one, too.
    const bool within = access.begin <= earlier.begin && earlier.end <= access.end;
    return known && within && (access.write || !earlier.write);
  });
  accesses_.push_back(access);
  return conflict;
}

std::optional<std::string> AccessHistory::unknown(const Clock& knows) const {
  for (const Access& access : accesses_) {
    if (knows.of(access.actor) < access.time) return access.what;
  }
  return std::nullopt;
}

}  // namespace tributary::testing
