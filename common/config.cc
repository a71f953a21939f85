#include "common/config.h"

#include <algorithm>

namespace tributary {

std::uint16_t default_lanes(unsigned hardware_threads) {
  return static_cast<std::uint16_t>(std::clamp(hardware_threads / 4, 1u, 8u));
}

}  // namespace tributary
