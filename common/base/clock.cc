#include "common/base/clock.h"

#include <chrono>
#include <ctime>

namespace tributary {

std::uint64_t wall_ms() {
  const auto since = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(since).count());
}

std::string utc_now() {
  return utc_at(wall_ms());
}

std::string utc_at(std::uint64_t wall_ms) {
  const auto now = static_cast<std::time_t>(wall_ms / 1000);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  char text[32] = {};
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

}  // namespace tributary
