// Bound on the weight of one rank's, or one node's, gradient in a round: totals over ranks and nodes cannot overflow.
#pragma once

#include <cstdint>

namespace tributary {

inline constexpr std::uint64_t kMaxWeight = 1ull << 40;

}  // namespace tributary
