// What tells a process from the one that had its name and address before.
#pragma once

#include <cstdint>
#include <random>

namespace tributary {

// Random and never 0 (which means "nobody"): a restarted process is a new one.
inline std::uint64_t random_incarnation() {
  std::random_device device;
  return ((std::uint64_t{device()} << 32) | device()) | 1;
}

}  // namespace tributary
