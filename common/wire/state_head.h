// StateHead: the head of a rank's own state (RankState::state), which names the state's other parts. Session writes and
// removes it; workers and the coordinator read it.
//
//     head := u32 kMagic | u32 whole | u64 bytes | u64 high | u64 low        little-endian
//
// Bytes without a head are whole, and have no large part: so are most, which are written without one.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/base/message_fields.h"

namespace tributary {

// The large part of a state: bytes that travel apart from it, in shared memory and in parts. Its size and XXH3-128
// identify it, so that ranks with the same part keep it once, and a present part is not sent again.
struct LargePart {
  std::uint64_t bytes = 0;  // 0: there is none
  std::uint64_t high = 0, low = 0;

  explicit operator bool() const { return bytes != 0; }
  auto operator<=>(const LargePart&) const = default;
  std::string in_words() const;  // "12345 bytes with the checksum 0123..."

  static void fields(auto& m, auto&& field) {
    field(m.bytes, TRIB_WIRE(Bytes));
    field(m.high, TRIB_WIRE(High));
    field(m.low, TRIB_WIRE(Low));
  }
};
inline constexpr std::uint64_t kMaxLargePart = 1ull << 40;
inline constexpr std::size_t kPartBytes = 1u << 20;  // of a large part, in one message

struct StateHead {
  LargePart large;
  bool whole = true;  // else the rank also needs the first rank's state

  static constexpr std::size_t kBytes = 32;
  static constexpr std::uint32_t kMagic = 0x31534b54;  // "TKS1"

  static StateHead of(std::span<const std::byte> state);
  static std::span<const std::byte> body(std::span<const std::byte> state);
  // The state that has this body.
  std::vector<std::byte> before(std::span<const std::byte> body) const;
};

}  // namespace tributary
