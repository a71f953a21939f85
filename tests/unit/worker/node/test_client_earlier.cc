// Parameters that an earlier view left on the node.
#include <doctest/doctest.h>

#include "tests/unit/worker/node/client_fixture.h"

namespace tributary::client_earlier_test {

using namespace testing;

TEST_CASE("what an earlier view left is said with the pull, and an answer without values will do") {
  Client c({.chunks = 3, .start = 4, .may_have_earlier = true});
  c.core.start(c.now);
  REQUIRE(c.out.pulls.size() == 3);
  for (std::uint64_t i = 0; i < 3; ++i) CHECK(c.out.pulls[i].second.digest == Checksum128::Value{i + 1, i});
  c.same(0, 4);
  c.same(1, 3);  // of another version
  CHECK(c.core.stats().stale == 1);
  c.same(1, 4);
  CHECK_FALSE(c.core.started());
  c.answer(2, 4);  // other values
  REQUIRE(c.core.started());
  CHECK(c.out.delivered.size() == 3);
  CHECK(c.core.stats().bytes_had == 2 * kBytes);
  CHECK(c.core.stats().bytes_pulled == kBytes);
  // A late answer to a pull that was sent twice says nothing about a round.
  c.ready(0, 5);
  c.same(0, 5);
  CHECK(c.out.refusals.empty());
  CHECK(c.flight(0).version == Version(4));
  c.answer(0, 5);
  CHECK(c.flight(0).version == Version(5));
}

TEST_CASE("a pull that is sent again says the digest that it said before") {
  Client c({.chunks = 1, .start = 4, .may_have_earlier = true});
  c.core.start(c.now);
  c.pass(11'000 * kMs);
  REQUIRE(c.out.pulls.size() == 2);
  CHECK(c.out.pulls[0].second.digest == c.out.pulls[1].second.digest);
  CHECK(c.out.asked_for_earlier == 1);
  c.same(0, 4);
  CHECK(c.core.started());
}

TEST_CASE("a server that answers without values where nothing was said, or with some, is refused in words") {
  Client nothing({.chunks = 1, .start = 4});
  nothing.core.start(nothing.now);
  CHECK(nothing.out.pulls.at(0).second.digest == Checksum128::Value{});
  nothing.same(0, 4);
  CHECK(nothing.out.refusals.size() == 1);
  CHECK_FALSE(nothing.core.started());
  Client both({.chunks = 1, .start = 4, .may_have_earlier = true});
  both.core.start(both.now);
  both.same(0, 4, kBytes);
  CHECK(both.out.refusals.size() == 1);
}

TEST_CASE("pulls of what may be there fill the window slowly, until something else comes") {
  Client c({.chunks = 64, .start = 4, .window = 2 * kBytes, .may_have_earlier = true});
  c.core.start(c.now);
  CHECK(c.out.pulls.size() == 32);
  c.answer(0, 4);
  for (std::uint32_t chunk = 1; chunk < 32; ++chunk) c.same(chunk, 4);
  CHECK(c.core.in_flight_bytes() <= 2 * kBytes);
  CHECK(c.out.pulls.size() > 32);
}

}  // namespace tributary::client_earlier_test
