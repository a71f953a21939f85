// Rounds that a node pushes again after a server was lost.
#include <doctest/doctest.h>

#include "tests/unit/worker/node/client_fixture.h"

namespace tributary::client_redo_test {

using namespace testing;

TEST_CASE("what a server lost is pushed again round by round before the parameters are pulled") {
  Client client({.chunks = 2, .start = 7, .redo_after = {5, 7}});
  client.core.start(client.now);
  // Chunk 1 is on a server that has everything.
  REQUIRE(client.out.pulls.size() == 1);
  CHECK(client.out.pulls[0].second.key.chunk == ChunkIndex(1));
  CHECK(client.out.pulls[0].second.version == Version(7));
  REQUIRE(client.out.pushes.size() == 1);
  const Push& first = client.out.pushes[0].second;
  CHECK(first.key.chunk == ChunkIndex(0));
  CHECK(first.round == Round(6));
  CHECK(first.redo);
  client.ack(0, 6);  // held until other nodes have pushed it
  CHECK(client.out.pushes.size() == 1);
  CHECK(client.core.in_flight_bytes() == kBytes);  // of the pull
  client.applied(0, 6);
  REQUIRE(client.out.pushes.size() == 2);
  CHECK(client.out.pushes[1].second.round == Round(7));
  client.applied(0, 6);  // a copy
  CHECK(client.out.pushes.size() == 2);
  client.applied(0, 7);  // without an ack before
  REQUIRE(client.out.pulls.size() == 2);
  CHECK(client.out.pulls[1].second.version == Version(7));
  client.answer(0, 7);
  client.answer(1, 7);
  CHECK(client.core.started());
  CHECK(client.core.stats().redone == 2);
  client.ready(0, 8);
  CHECK_FALSE(client.out.pushes.back().second.redo);
  CHECK_FALSE(client.out.pushes.back().second.gate.known());
  CHECK(client.out.pushes.back().second.round == Round(8));
}

TEST_CASE("a lost push of a lost round is asked for and sent once more") {
  Client client({.start = 3, .redo_after = {2}});
  client.core.start(client.now);
  REQUIRE(client.out.pushes.size() == 1);
  client.pass(10'000 * kMs);
  REQUIRE(client.out.queries.size() == 1);
  CHECK(client.out.queries[0].second.round == Round(3));
  CHECK(client.out.queries[0].second.redo);
  client.resend(0, 3);
  REQUIRE(client.out.pushes.size() == 2);
  CHECK(client.out.pushes[1].second.redo);
  client.applied(0, 3);
  CHECK(client.out.pulls.size() == 1);
}

TEST_CASE("redone rounds respect the window") {
  Client client({.chunks = 4, .start = 2, .redo_after = {0, 0, 0, 0}, .window = 2 * kBytes});
  client.core.start(client.now);
  CHECK(client.out.pushed_chunks() == std::vector<std::uint32_t>{0, 1});
  client.ack(0, 1);
  CHECK(client.out.pushed_chunks() == std::vector<std::uint32_t>{0, 1, 2});
}

TEST_CASE("an answer does not pass for a round that is pushed again") {
  Client client({.start = 3, .redo_after = {2}});
  client.core.start(client.now);
  client.answer(0, 3);
  CHECK(client.out.delivered.empty());
  CHECK(client.core.stats().stale == 1);
}

}  // namespace tributary::client_redo_test
