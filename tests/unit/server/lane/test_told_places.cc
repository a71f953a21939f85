// Shares in buffers whose places workers got.
#include <doctest/doctest.h>

#include <cstring>

#include "server/lane/told_places.h"
#include "tests/unit/required.h"
#include "worker/node/lane_link.h"

namespace tributary::told_places_test {
namespace {

constexpr std::size_t kBlock = 4096, kChunks = 2;
constexpr JobId kJob(7);
constexpr ViewId kView(3);
constexpr NodeRank kNode(1);
constexpr ChunkKey kKey{kJob, kView, kNode, ChunkIndex(0)};
constexpr PeerId kPeer(11);

struct Side {
  BufferPool pool{kBlock, 64};
  ToldPlaces told;
  std::uint32_t open(ViewId view = kView, NodeRank node = kNode) {
    const auto link = required(told.open(kJob, view, node, pool, kChunks));
    CHECK(told.bind(kPeer, {kJob, view, node, ChunkIndex(0)}, {link, 0, 0, 0, 0}));
    return link;
  }
  std::optional<PayloadPlace> try_tell() {
    const BufferRef buffer = pool.acquire(100);
    return told.tell(kPeer, kKey, buffer);
  }
  PayloadPlace tell() { return required(try_tell()); }
};

TEST_CASE("a buffer is nobody else's until its reader has said that it has read it") {
  Side side;
  const std::uint32_t link = side.open();
  const PayloadPlace first = side.tell(), second = side.tell(), third = side.tell();
  CHECK(first.bytes == 100);
  CHECK(first.offset != second.offset);
  CHECK(second.offset != third.offset);
  CHECK(third.ticket == 3);
  CHECK(side.pool.in_use() == 3);
  CHECK(side.told.bind(kPeer, kKey, {link, 0, 0, 0, 2}));
  CHECK(side.pool.in_use() == 1);
  CHECK(side.told.bind(kPeer, kKey, {link, 0, 0, 0, 1}));  // a late message
  CHECK(side.told.unread() == 1);
  CHECK(side.told.bind(kPeer, kKey, {link, 0, 0, 0, 3}));
  CHECK(side.pool.in_use() == 0);
  CHECK(side.tell().ticket == 4);
  CHECK_FALSE(side.told.bind(kPeer, kKey, {link, 0, 0, 0, 5}));
  CHECK(side.told.unread() == 1);
}

TEST_CASE("one buffer that several were told is free when all have read it") {
  Side side;
  const std::uint32_t link = side.open();
  const std::uint32_t other = side.open(kView, NodeRank(0));
  const ChunkKey key{kJob, kView, NodeRank(0), ChunkIndex(0)};
  BufferRef buffer = side.pool.acquire(100);
  CHECK(side.told.tell(kPeer, kKey, buffer)->offset == side.told.tell(kPeer, key, buffer)->offset);
  CHECK_FALSE(buffer.unique());
  CHECK(side.told.bind(kPeer, kKey, {link, 0, 0, 0, 1}));
  CHECK_FALSE(buffer.unique());
  CHECK(side.told.bind(kPeer, key, {other, 0, 0, 0, 1}));
  CHECK(buffer.unique());
}

TEST_CASE("what was told outlives its view, and goes with its reader") {
  Side side;
  const std::uint32_t link = side.open();
  side.tell();
  side.told.end_view(kJob);
  CHECK(side.told.size() == 0);
  CHECK(side.pool.in_use() == 1);
  CHECK(side.tell().bytes == 0);  // nothing more is told
  CHECK_FALSE(side.told.bind(kPeer, kKey, {link, 0, 0, 0, 1}));
  side.pool.trim(0);
  CHECK(side.pool.allocated_blocks() == 1);
  side.told.closed(link);
  CHECK(side.pool.in_use() == 0);

  const std::uint32_t next = side.open();
  side.tell();
  const std::uint32_t again = side.open();  // the same node once more: its older link is over
  CHECK(side.pool.in_use() == 1);
  CHECK(side.told.size() == 1);
  CHECK_FALSE(side.told.current(next));
  CHECK(side.told.current(again));
  side.told.closed(next);
  CHECK(side.pool.in_use() == 0);
  side.tell();
  side.told.closed(again);
  CHECK(side.pool.in_use() == 0);
  CHECK_FALSE(side.try_tell());  // nobody is left who would read it, wherever it went
  // Its earlier pushes may still arrive.
  CHECK(side.told.bind(kPeer, kKey, {again, 0, 0, 0, 1}));
}

TEST_CASE("a worker that does not read gets no more places than chunks and residuals have, and then bytes") {
  Side side;
  const std::uint32_t link = side.open();
  BufferRef buffer = side.pool.acquire(100);
  std::size_t told = 0;
  while (side.told.tell(kPeer, kKey, buffer)->bytes != 0) REQUIRE(++told < 100);
  CHECK(told >= 2 * kChunks);
  CHECK(side.told.bind(kPeer, kKey, {link, 0, 0, 0, 1}));
  CHECK(side.told.tell(kPeer, kKey, buffer)->ticket == told + 1);
  CHECK(side.told.tell(kPeer, kKey, buffer)->bytes == 0);
}

TEST_CASE("links that nobody closes are bounded") {
  Side side;
  for (std::uint64_t view = 1; view <= ToldPlaces::kMaxOver; ++view) {
    side.open(ViewId(view));
    side.told.end_view(kJob);
  }
  const auto refused = failure_of(side.told.open(kJob, kView, kNode, side.pool, kChunks));
  CHECK(refused.code == ErrorCode::kLimit);
  side.told.closed(1);
  CHECK(side.told.open(kJob, kView, kNode, side.pool, kChunks));
}

TEST_CASE("a place that was told before one that has been read is not read any more") {
  ReadPlaces read;
  CHECK_FALSE(read.over(1));
  read.read(3);
  CHECK(read.over(2));
  CHECK(read.over(3));
  CHECK_FALSE(read.over(4));
  CHECK(read.newest() == 3);
}

}  // namespace
}  // namespace tributary::told_places_test
