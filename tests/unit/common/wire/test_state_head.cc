#include <doctest/doctest.h>

#include "common/wire/state_head.h"

namespace tributary::state_head_test {

namespace {

const std::vector<std::byte> kBody{std::byte{1}, std::byte{2}, std::byte{3}};
constexpr LargePart kLarge{1'000'000, 0x0123456789abcdef, 0xfedcba9876543210};

}  // namespace

TEST_CASE("a head comes back as it was written, and the body after it") {
  for (const bool whole : {true, false}) {
    for (const LargePart& large : {kLarge, LargePart()}) {
      const std::vector<std::byte> state = StateHead{large, whole}.before(kBody);
      CHECK(StateHead::of(state).large == large);
      CHECK(StateHead::of(state).whole == whole);
      const auto body = StateHead::body(state);
      CHECK(std::vector<std::byte>(body.begin(), body.end()) == kBody);
    }
  }
}

TEST_CASE("these bytes are its head, on every machine and for ever") {
  const std::vector<std::byte> state = StateHead{{0x0807060504030201, 2, 3}, true}.before({});
  const std::uint8_t first[] = {'T', 'K', 'S', '1', 1, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 2};
  for (std::size_t i = 0; i < std::size(first); ++i) CHECK(state[i] == std::byte{first[i]});
}

TEST_CASE("bytes without a head are whole, and are their own body") {
  CHECK(StateHead::of(kBody).whole);
  CHECK_FALSE(StateHead::of(kBody).large);
  CHECK(StateHead::body(kBody).size() == kBody.size());
  CHECK(StateHead::of({}).whole);
  CHECK(StateHead::body({}).empty());
  std::vector<std::byte> cut = StateHead{kLarge, false}.before({});
  cut.pop_back();
  CHECK(StateHead::of(cut).whole);
  CHECK(StateHead::body(cut).size() == cut.size());
}

TEST_CASE("an impossible large part is as good as none") {
  CHECK_FALSE(StateHead::of(StateHead{{kMaxLargePart + 1, 1, 2}, true}.before(kBody)).large);
  CHECK(StateHead::of(StateHead{{kMaxLargePart, 1, 2}, true}.before(kBody)).large);
}

}  // namespace tributary::state_head_test
