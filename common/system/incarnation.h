// A number that distinguishes a process from an earlier one with the same name and address.
#pragma once

#include <cstdint>
#include <random>

namespace tributary {

// Random and never 0 (which means "no process"): a restarted process has a new number.
inline std::uint64_t random_incarnation() {
  std::random_device device;
  return ((std::uint64_t{device()} << 32) | device()) | 1;
}

}  // namespace tributary
