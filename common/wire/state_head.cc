#include "common/wire/state_head.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "common/base/printed.h"

namespace tributary {
namespace {

static_assert(std::endian::native == std::endian::little);

struct Written {
  std::uint32_t magic, whole;
  std::uint64_t bytes, high, low;
};
static_assert(sizeof(Written) == StateHead::kBytes);

bool has_head(std::span<const std::byte> state) {
  std::uint32_t magic = 0;
  if (state.size() >= StateHead::kBytes) std::memcpy(&magic, state.data(), sizeof magic);
  return magic == StateHead::kMagic;
}

}  // namespace

std::string LargePart::in_words() const {
  return printed("%llu bytes with the checksum %016llx%016llx", static_cast<unsigned long long>(bytes),
                 static_cast<unsigned long long>(high), static_cast<unsigned long long>(low));
}

StateHead StateHead::of(std::span<const std::byte> state) {
  if (!has_head(state)) return {};
  Written in;
  std::memcpy(&in, state.data(), sizeof in);
  // An impossible large part counts as none.
  const LargePart large{in.bytes, in.high, in.low};
  return {in.bytes <= kMaxLargePart ? large : LargePart(), in.whole != 0};
}

std::span<const std::byte> StateHead::body(std::span<const std::byte> state) {
  return has_head(state) ? state.subspan(kBytes) : state;
}

std::vector<std::byte> StateHead::before(std::span<const std::byte> body) const {
  if (!large && whole && !has_head(body)) return {body.begin(), body.end()};
  const Written out{kMagic, whole ? 1u : 0u, large.bytes, large.high, large.low};
  std::vector<std::byte> state(kBytes + body.size());
  std::memcpy(state.data(), &out, sizeof out);
  std::ranges::copy(body, state.begin() + kBytes);
  return state;
}

}  // namespace tributary
