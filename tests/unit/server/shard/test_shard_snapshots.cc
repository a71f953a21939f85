// ShardCore: copy-on-write, snapshots, stops, restoring, and what happens when the pool is empty.
#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

#include "tests/unit/required.h"
#include "tests/unit/server/shard/core_fixture.h"
#include "tests/unit/stepping_optimizers.h"

namespace tributary::shard_snapshots_test {

using namespace testing;

TEST_CASE("answers that are still being sent never change") {
  Shard shard;
  shard.init(10.0f);
  shard.push(0, 1, 1.0f);
  shard.push(0, 2, 1.0f);
  REQUIRE(shard.out.answers.size() == 2);
  CHECK(all_equal(shard.out.answers[0].payload.floats(), 9.0f));
  CHECK(all_equal(shard.out.answers[1].payload.floats(), 8.0f));
  CHECK(shard.core.stats().out_of_place_steps == 1);
  CHECK(shard.core.stats().shared_buffers == 1);
}

TEST_CASE("steps are in place when nobody reads, and the pool does not grow") {
  Shard shard({.optimizer = "adam"}, 1.0f);
  const std::size_t blocks = shard.pool.in_use();
  CHECK(blocks == 3);
  for (std::uint64_t round = 1; round <= 5; ++round) {
    shard.push(0, round, 1.0f);
    shard.out.clear();
  }
  CHECK(shard.pool.in_use() == blocks);
  CHECK(shard.pool.allocated_blocks() == blocks);
  CHECK(shard.core.stats().out_of_place_steps == 0);
}

TEST_CASE("buffers go back to the pool when answers are sent and the core is gone") {
  BufferPool pool(kChunk * sizeof(float), 20);
  ShardRecorder out;
  {
    const Shard setup;
    ShardCore core(setup.job({.optimizer = "adamw", .pull = EncodingId::kBf16}), pool, out);
    core.on_init(peer_of(0), Init{Shard::key(0)}, frame_of(kChunk, 1.0f));
    core.on_push(peer_of(0), Push{Shard::key(0), Round(1), 1, EncodingId::kFp32}, payload_of(frame_of(kChunk, 1.0f)));
    CHECK(pool.in_use() == 4);
  }
  CHECK(pool.in_use() == 1);
  out.clear();
  CHECK(pool.in_use() == 0);
}

TEST_CASE("a snapshot captures each chunk when it reaches the round, and keeps those bits") {
  Shard shard({.elements = 3 * kChunk, .optimizer = "adam", .lr = 0.5}, 1.0f);
  shard.push(0, 1, 1.0f, 0);
  shard.out.clear();
  CHECK(shard.core.snapshot_at(Round(1)));
  REQUIRE(shard.out.snapshots.size() == 1);  // chunk 0 is there already
  CHECK(shard.out.snapshots[0].chunk == ChunkIndex(0));
  shard.push(0, 1, 1.0f, 2);
  shard.push(0, 2, 1.0f, 2);  // goes on while the snapshot waits for chunk 1
  CHECK_FALSE(shard.core.snapshot_at(Round(9)));
  shard.push(0, 1, 1.0f, 1);
  REQUIRE(shard.out.snapshots.size() == 3);
  const std::vector<float> at_one(shard.params(1).begin(), shard.params(1).end());
  for (std::uint32_t c = 0; c < 3; ++c) {
    for (std::uint64_t round = shard.version(c) + 1; round <= 4; ++round) shard.push(0, round, 1.0f, c);
  }
  for (const ChunkSnapshot& snapshot : shard.out.snapshots) {
    CHECK(snapshot.job == kJob);
    CHECK(snapshot.view == kView);
    CHECK(snapshot.round == Round(1));
    CHECK(snapshot.state.version == Version(1));
    CHECK(snapshot.state.step == 1);
    CHECK(std::ranges::equal(snapshot.state.params.floats(), at_one));
    CHECK(snapshot.state.slots[0].size() == kChunk * sizeof(float));
    CHECK(all_equal(snapshot.state.slots[0].floats(), snapshot.state.slots[0].floats()[0]));
    CHECK_FALSE(snapshot.state.slots[2]);
  }
}

TEST_CASE("a snapshot of a round that a chunk has passed is refused whole") {
  Shard shard({.elements = 2 * kChunk}, 1.0f);
  shard.push(0, 1, 1.0f, 1);
  shard.push(0, 2, 1.0f, 1);
  CHECK_FALSE(shard.core.snapshot_at(Round(1)));
  CHECK(shard.out.snapshots.empty());
  CHECK(shard.core.snapshot_at(Round(2)));
  CHECK(shard.out.snapshots.size() == 1);
}

TEST_CASE("before all initial values are there no snapshot begins") {
  Shard shard({.elements = 2 * kChunk});
  shard.init_chunk(0, 1.0f);
  CHECK_FALSE(shard.core.snapshot_at(Round(0)));
  shard.init_chunk(1, 1.0f);
  CHECK(shard.core.snapshot_at(Round(0)));
  CHECK(shard.out.snapshots.size() == 2);
}

TEST_CASE("a second snapshot waits until the first is written") {
  Shard shard({.elements = 2 * kChunk, .optimizer = "adam"}, 1.0f);
  const auto round = [&](std::uint64_t r) {
    for (std::uint32_t c = 0; c < 2; ++c) shard.push(0, r, 1.0f, c);
    shard.out.clear();
  };
  REQUIRE(shard.core.snapshot_at(Round(1)));
  round(1);
  round(2);
  CHECK_FALSE(shard.core.snapshot_at(Round(3)));  // its writer still holds a copy of the whole state
  shard.out.snapshots.clear();
  CHECK(shard.core.snapshot_at(Round(3)));
  round(3);
  CHECK(shard.out.snapshots.size() == 2);
}

TEST_CASE("a nearer snapshot takes the place of one that no chunk has reached") {
  Shard shard({.elements = 2 * kChunk}, 1.0f);
  REQUIRE(shard.core.snapshot_at(Round(100)));
  CHECK_FALSE(shard.core.snapshot_at(Round(200)));  // a later one waits
  CHECK(shard.core.snapshot_at(Round(1)));
  shard.push(0, 1, 1.0f, 0);
  REQUIRE(shard.out.snapshots.size() == 1);
  CHECK(shard.out.snapshots[0].round == Round(1));
  CHECK_FALSE(shard.core.snapshot_at(Round(1)));  // it is being captured
  shard.push(0, 1, 1.0f, 1);
  CHECK(shard.out.snapshots.size() == 2);
  shard.out.snapshots.clear();
  shard.push(0, 2, 1.0f, 0);
  CHECK(shard.out.snapshots.empty());
}

TEST_CASE("a stop keeps every chunk if all are at the round") {
  Shard shard({.elements = 2 * kChunk, .nodes = 2}, 1.0f);
  const auto complete = [&](std::uint32_t chunk) {
    shard.push(0, 1, 1.0f, chunk);
    shard.push(1, 1, 1.0f, chunk);
  };
  complete(0);
  SUBCASE("one is behind") {
    CHECK_FALSE(shard.core.stop(true, Round(1)));
    CHECK(shard.out.snapshots.empty());
  }
  SUBCASE("all are there, one with an open push of the next round") {
    complete(1);
    shard.push(0, 2, 1.0f, 1);
    CHECK_FALSE(shard.core.stop(true, Round(2)));
    CHECK(shard.core.stop(true, Round(1)));
    CHECK(shard.out.snapshots.size() == 2);
    CHECK(shard.core.stats().held_frames == 0);
    CHECK(shard.core.stats().held_bytes == 0);
  }
  SUBCASE("a restart keeps nothing and drops the frames") {
    shard.push(0, 1, 1.0f, 1);
    CHECK(shard.core.stop(false, Round(1)));
    CHECK(shard.out.snapshots.empty());
    CHECK(shard.core.stats().held_frames == 0);
  }
}

TEST_CASE("a stop overrides a snapshot that was not complete") {
  Shard shard({.elements = 2 * kChunk}, 1.0f);
  REQUIRE(shard.core.snapshot_at(Round(7)));
  for (std::uint32_t c = 0; c < 2; ++c) shard.push(0, 1, 1.0f, c);
  CHECK(shard.core.stop(true, Round(1)));
  REQUIRE(shard.out.snapshots.size() == 2);
  CHECK(shard.out.snapshots[0].round == Round(1));
}

TEST_CASE("a stop keeps nothing of a job without initial values") {
  Shard shard;
  CHECK_FALSE(shard.core.stop(true, Round(0)));
}

TEST_CASE("a restored shard goes on with the same bits as one that never stopped") {
  for (const EncodingId pull : {EncodingId::kFp32, EncodingId::kBf16}) {
    const ShardSetup setup{.elements = 2 * kChunk, .optimizer = "adamw", .lr = 0.01, .pull = pull};
    Shard whole(setup), first(setup), second(setup);
    whole.init(1.0f);
    first.init(1.0f);
    for (std::uint64_t r = 1; r <= 3; ++r) {
      for (std::uint32_t c = 0; c < 2; ++c) {
        whole.push(0, r, 0.1f * static_cast<float>(r), c);
        first.push(0, r, 0.1f * static_cast<float>(r), c);
      }
    }
    REQUIRE(first.core.stop(true, Round(3)));
    for (const ChunkSnapshot& s : first.out.snapshots) {
      REQUIRE(second.core.restore(s.chunk, s.state));
    }
    CHECK(second.core.initialised());
    CHECK(second.core.min_version() == Version(3));
    CHECK(second.core.max_version() == Version(3));
    second.core.on_pull(peer_of(0), Pull{Shard::key(0, 1)});
    REQUIRE(second.out.answers.size() == 1);
    CHECK(second.out.answers[0].header.version == Version(3));
    CHECK(std::ranges::equal(second.out.answers[0].payload.bytes(), first.out.answers.back().payload.bytes()));
    for (std::uint32_t c = 0; c < 2; ++c) {
      whole.push(0, 4, 0.7f, c);
      second.push(0, 4, 0.7f, c);
      CHECK(std::ranges::equal(whole.params(c), second.params(c)));
      CHECK(second.version(c) == 4);
    }
    CHECK(second.out.errors.empty());
  }
}

TEST_CASE("state that does not fit the job is not restored") {
  Shard shard({.optimizer = "adam"});
  const std::vector<float> good(kChunk), bad(kChunk - 1);
  const auto restore = [&](const std::vector<float>& params, std::vector<std::span<const float>> slots) {
    return shard.core.restore(ChunkIndex(0), state_at(1, params, slots));
  };
  for (const Status& status : {restore(bad, {good, good}), restore(good, {good}), restore(good, {good, bad})}) {
    REQUIRE_FALSE(status);
    CHECK(status.error().code == ErrorCode::kWrongLength);
    CHECK(contains(status.error().message, "chunk 0"));
  }
  CHECK_FALSE(shard.core.initialised());
  CHECK(restore(good, {good, good}));
}

TEST_CASE("state that finds no buffer is not restored") {
  Shard shard({.optimizer = "adam", .pool_blocks = 2});
  const std::vector<float> values(kChunk);
  const auto status = failure_of(shard.core.restore(ChunkIndex(0), state_at(1, values, {values, values})));
  CHECK(status.code == ErrorCode::kLimit);
  CHECK(shard.pool.in_use() == 0);
}

TEST_CASE("a step that finds no buffer waits with all its frames and happens when it is asked about again") {
  // Room for parameters and one answer that is being sent, not for two.
  Shard shard({.nodes = 2, .pool_blocks = 2}, 10.0f);
  const auto round = [&](std::uint64_t r) {
    shard.push(0, r, 1.0f);
    shard.push(1, r, 1.0f);
  };
  round(1);
  std::vector<ShardRecorder::Sent> slow_peer = shard.out.answers;
  shard.out.clear();
  round(2);
  const std::vector<ShardRecorder::Sent> also_slow = shard.out.answers;
  shard.out.clear();
  CHECK(shard.pool.available() == 0);
  round(3);
  CHECK(shard.version() == 2);
  CHECK(shard.out.answers.empty());
  CHECK(shard.out.acks.size() == 2);  // windows are freed, nobody sends again
  CHECK(shard.core.stats().starved == 1);
  CHECK(shard.core.stats().held_frames == 2);
  CHECK(all_equal(slow_peer[0].payload.floats(), 9.0f));
  CHECK(all_equal(also_slow[0].payload.floats(), 8.0f));
  shard.core.on_query(peer_of(0), Query{Shard::key(0), Round(3)});  // too early
  CHECK(shard.version() == 2);
  CHECK(shard.out.acks.size() == 3);
  CHECK(shard.core.stats().starved == 2);
  slow_peer.clear();
  SUBCASE("by a query") {
    shard.core.on_query(peer_of(0), Query{Shard::key(0), Round(3)});
  }
  SUBCASE("by a second copy of a push") {
    shard.push(1, 3, 50.0f);
  }
  CHECK(shard.version() == 3);
  CHECK(all_equal(shard.params(), 7.0f));
  CHECK(shard.out.answers.size() == 2);
  CHECK(shard.core.stats().held_frames == 0);
  CHECK(all_equal(also_slow[0].payload.floats(), 8.0f));
}

TEST_CASE("initial values that find no buffer are taken when they come again") {
  Shard shard({.elements = 2 * kChunk, .pool_blocks = 2});
  shard.init_chunk(0, 5.0f);
  shard.push(0, 1, 1.0f, 0);
  std::vector<ShardRecorder::Sent> slow_peer = shard.out.answers;
  shard.out.clear();
  shard.push(0, 2, 1.0f, 0);
  REQUIRE(shard.pool.available() == 0);
  shard.init_chunk(1, 6.0f);
  CHECK_FALSE(shard.core.initialised());
  CHECK(shard.out.errors.empty());
  slow_peer.clear();
  shard.init_chunk(1, 6.0f);
  CHECK(shard.core.initialised());
  CHECK(all_equal(shard.params(1), 6.0f));
}

// The protocol lets each node hold the last answer of every chunk (the node pushes again only after it has the answer),
// and the snapshot writer one snapshot.
TEST_CASE("the pool's bound is enough for every answer in flight and a snapshot being written") {
  for (const std::string& optimizer : stepping_optimizers()) {
    for (const EncodingId pull : {EncodingId::kFp32, EncodingId::kBf16}) {
      Shard shard({.elements = 4 * kChunk, .nodes = 2, .optimizer = optimizer, .pull = pull}, 1.0f);
      std::vector<ShardRecorder::Sent> in_flight;
      bool snapshot_begun = false;
      for (std::uint64_t r = 1; r <= 8; ++r) {
        for (std::uint32_t c = 0; c < 4; ++c) {
          for (std::uint32_t node = 0; node < 2; ++node) shard.push(node, r, 1.0f, c);
          // The answers to this chunk's round before have arrived: that is why its nodes have pushed.
          std::erase_if(in_flight, [&](const ShardRecorder::Sent& s) { return s.header.key.chunk == ChunkIndex(c); });
          for (ShardRecorder::Sent& sent : shard.out.answers) in_flight.push_back(std::move(sent));
          shard.out.answers.clear();
        }
        if (r == 3) snapshot_begun = shard.core.snapshot_at(Round(4));  // never written: held to the end
      }
      CHECK(snapshot_begun);
      CHECK(shard.out.snapshots.size() == 4);
      CHECK(shard.core.stats().starved == 0);
      CHECK(shard.core.min_version() == Version(8));
    }
  }
}

}  // namespace tributary::shard_snapshots_test
