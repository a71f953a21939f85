// ShardCore with backup workers: rounds that do not wait for the last nodes.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "tests/unit/core_fixture.h"

namespace tributary {

using namespace testing;

namespace {

ShardSetup setup_of(std::uint32_t nodes, std::uint32_t backups) {
  ShardSetup setup{.nodes = nodes};
  setup.clocks.emplace();
  setup.clocks->backups = backups;
  return setup;
}

// As the view begins: everybody gets the parameters.
void pull_all(Shard& shard) {
  for (std::uint32_t node = 0; node < shard.core.job().nodes; ++node) {
    for (std::uint32_t c = 0; c < shard.layout->chunks(); ++c) {
      shard.core.on_pull(peer_of(node), Pull{Shard::key(node, c)});
    }
  }
  shard.out.clear();
}

const ShardRecorder::Sent* last_to(const Shard& shard, std::uint32_t node) {
  for (auto sent = shard.out.answers.rbegin(); sent != shard.out.answers.rend(); ++sent) {
    if (sent->to == peer_of(node)) return &*sent;
  }
  return nullptr;
}

void push_last(Shard& shard, std::uint32_t node, std::uint64_t clock, float gradient) {
  Push push{Shard::key(node), Round(clock), 1, EncodingId::kFp32};
  push.last = true;
  shard.core.on_push(peer_of(node), push, payload_of(frame_of(kChunk, gradient)));
}

}  // namespace

TEST_CASE("a round is complete without the last nodes, and divides by the samples of those that it has") {
  Shard shard(setup_of(3, 1));
  shard.init(10.0f);
  pull_all(shard);
  shard.push(2, 1, 8.0f, 0, 3);
  CHECK(shard.version() == 0);
  CHECK(shard.core.stats().held_frames == 1);
  CHECK(shard.core.stats().withheld == 1);
  shard.push(0, 1, 4.0f, 0, 1);
  CHECK(shard.version() == 1);
  CHECK(all_equal(shard.params(), 7.0f));  // 10 - (8 + 4) / 4
  CHECK(shard.core.stats().held_frames == 0);
  REQUIRE(shard.out.answers.size() == 2);
  for (const ShardRecorder::Sent& sent : shard.out.answers) {
    CHECK(sent.header.version == Version(1));
    CHECK(sent.header.slowest == Round(1));
    CHECK_FALSE(sent.header.dropped);
    CHECK(all_equal(sent.payload.floats(), 7.0f));
  }
  CHECK(last_to(shard, 1) == nullptr);
}

TEST_CASE("a late push is dropped, counted, and answered at once with the parameters as they are") {
  Shard shard(setup_of(3, 1));
  shard.init(10.0f);
  pull_all(shard);
  for (std::uint64_t clock = 1; clock <= 4; ++clock) {
    shard.push(0, clock, 1.0f);
    shard.push(1, clock, 1.0f);
  }
  REQUIRE(shard.version() == 4);
  shard.out.clear();
  shard.push(2, 1, 100.0f);
  CHECK(shard.version() == 4);
  CHECK(all_equal(shard.params(), 6.0f));
  CHECK(shard.core.stats().dropped == 1);
  CHECK(shard.core.stats().held_frames == 0);
  REQUIRE(shard.out.answers.size() == 1);
  const ShardRecorder::Sent late = shard.out.answers[0];
  CHECK(late.to == peer_of(2));
  CHECK(late.header.version == Version(1));  // its own count
  CHECK(late.header.slowest == Round(4));    // the others'
  CHECK(late.header.dropped);
  CHECK(all_equal(late.payload.floats(), 6.0f));
  REQUIRE(shard.out.receipts.size() == 1);
  // What it computes from these is in time.
  shard.push(2, 2, 1.0f);
  shard.push(0, 5, 3.0f);
  CHECK(shard.version() == 5);
  CHECK(all_equal(shard.params(), 4.0f));
  CHECK_FALSE(last_to(shard, 2)->header.dropped);
  CHECK(last_to(shard, 2)->header.version == Version(2));
  CHECK(last_to(shard, 2)->header.slowest == Round(5));
}

TEST_CASE("which pushes are the first is decided chunk by chunk") {
  ShardSetup setup = setup_of(3, 1);
  setup.elements = 2 * kChunk;
  Shard shard(setup);
  shard.init(0.0f);
  pull_all(shard);
  shard.push(0, 1, 1.0f, 0);
  shard.push(1, 1, 1.0f, 0);
  shard.push(1, 1, 1.0f, 1);
  shard.push(2, 1, 3.0f, 1);
  shard.push(2, 1, 3.0f, 0);
  shard.push(0, 1, 1.0f, 1);
  CHECK(all_equal(shard.params(0), -1.0f));
  CHECK(all_equal(shard.params(1), -2.0f));
  CHECK(shard.core.stats().dropped == 2);
  CHECK(shard.core.min_version() == Version(1));
  CHECK(shard.core.max_version() == Version(1));
}

TEST_CASE("copies and questions change nothing, in time or late") {
  Shard shard(setup_of(3, 1));
  shard.init(0.0f);
  pull_all(shard);
  shard.push(0, 1, 2.0f);
  shard.push(0, 1, 50.0f);
  CHECK(shard.core.stats().duplicates == 1);
  CHECK(shard.out.receipts.size() == 2);
  shard.core.on_query(peer_of(0), Query{Shard::key(0), Round(1)});
  CHECK(shard.out.receipts.size() == 3);
  shard.core.on_query(peer_of(1), Query{Shard::key(1), Round(1)});
  CHECK(shard.out.resends.size() == 1);
  shard.push(1, 1, 4.0f);
  CHECK(all_equal(shard.params(), -3.0f));
  shard.push(2, 1, 9.0f);
  shard.out.clear();
  shard.push(2, 1, 9.0f);
  shard.core.on_query(peer_of(2), Query{Shard::key(2), Round(1)});
  REQUIRE(shard.out.answers.size() == 2);
  for (const ShardRecorder::Sent& sent : shard.out.answers) {
    CHECK(sent.header.dropped);
    CHECK(sent.header.version == Version(1));
    CHECK(all_equal(sent.payload.floats(), -3.0f));
  }
  CHECK(shard.core.stats().dropped == 1);
  shard.push(2, 3, 9.0f);
  REQUIRE(shard.out.errors.size() == 1);
  CHECK(shard.out.errors[0].second.code == ErrorCode::kWrongRound);
}

TEST_CASE("there is no round after the last one, and whoever comes then gets the final parameters") {
  Shard shard(setup_of(3, 1));
  shard.init(0.0f);
  pull_all(shard);
  push_last(shard, 0, 1, 1.0f);
  push_last(shard, 1, 1, 1.0f);
  REQUIRE(shard.version() == 1);
  push_last(shard, 0, 2, 1.0f);  // its other chunks were not there yet
  push_last(shard, 2, 1, 1.0f);
  CHECK(shard.version() == 1);
  CHECK(shard.core.stats().dropped == 2);
  CHECK(shard.core.stats().withheld == 0);
  CHECK(last_to(shard, 0)->header.version == Version(2));
  CHECK(last_to(shard, 0)->header.slowest == Round(1));
  CHECK(all_equal(last_to(shard, 2)->payload.floats(), -1.0f));
}

TEST_CASE("a chunk that had its last round before a stop has none after it") {
  ShardSetup setup = setup_of(2, 1);
  setup.start = 6;  // the stop's round; this chunk was at round 7, the job's last
  Shard shard(setup);
  const std::vector<float> params(kChunk, 1.0f);
  REQUIRE(shard.core.restore(ChunkIndex(0), Version(7), 7, params, {}));
  pull_all(shard);
  Push push{Shard::key(1), Round(7), 1, EncodingId::kFp32};
  push.last = true;
  push.beyond = true;
  shard.core.on_push(peer_of(1), push, payload_of(frame_of(kChunk, 5.0f)));
  CHECK(shard.version() == 7);
  CHECK(shard.core.stats().dropped == 1);
  REQUIRE(last_to(shard, 1));
  CHECK(last_to(shard, 1)->header.dropped);
  CHECK(last_to(shard, 1)->header.slowest == Round(7));
  CHECK(all_equal(last_to(shard, 1)->payload.floats(), 1.0f));
}

TEST_CASE("a snapshot has every chunk at its round, and a job goes on from it whatever its nodes had missed") {
  ShardSetup setup = setup_of(2, 1);
  Shard shard(setup);
  shard.init(0.0f);
  pull_all(shard);
  REQUIRE(shard.core.snapshot_at(Round(2)));
  for (std::uint64_t clock = 1; clock <= 3; ++clock) shard.push(0, clock, 1.0f);
  REQUIRE(shard.out.snapshots.size() == 1);
  const ChunkSnapshot& snapshot = shard.out.snapshots[0];
  CHECK(snapshot.round == Round(2));
  CHECK(snapshot.version == Version(2));
  CHECK(snapshot.clocks.empty());
  CHECK(all_equal(snapshot.params.floats(), -2.0f));

  setup.start = 2;
  Shard again(setup);
  REQUIRE(again.core.restore(ChunkIndex(0), Version(2), 2, snapshot.params.floats(), {}));
  pull_all(again);
  again.push(1, 3, 5.0f);
  CHECK(again.version() == 3);
  CHECK(all_equal(again.params(), -7.0f));
  again.push(0, 3, 5.0f);
  CHECK(again.core.stats().dropped == 1);

  // A stop keeps chunks as they are, at or after its round.
  REQUIRE(again.core.stop(true, Round(2)));
  REQUIRE(again.out.snapshots.size() == 1);
  CHECK(again.out.snapshots[0].round == Round(2));
  CHECK(again.out.snapshots[0].version == Version(3));
}

TEST_CASE("a round that found no buffer goes on when its authors ask") {
  ShardSetup setup = setup_of(2, 1);
  setup.pool_blocks = 2;
  Shard shard(setup);
  shard.init(0.0f);
  pull_all(shard);  // node 1 has the first parameters, and keeps them
  BufferRef taken = shard.pool.acquire(kChunk * sizeof(float));
  shard.push(0, 1, 1.0f);
  CHECK(shard.version() == 0);
  CHECK(shard.core.stats().starved > 0);
  CHECK(shard.core.stats().held_frames == 1);
  taken.reset();
  shard.core.on_query(peer_of(0), Query{Shard::key(0), Round(1)});
  CHECK(shard.version() == 1);
  REQUIRE(last_to(shard, 0) != nullptr);
  CHECK(last_to(shard, 0)->header.slowest == Round(1));
}

TEST_CASE("nodes of any speed: versions follow the pushes that were in time, and every push is answered once") {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 random(seed);
    const auto nodes = static_cast<std::uint32_t>(2 + random() % 4);
    const auto backups = static_cast<std::uint32_t>(1 + random() % (nodes - 1));
    Shard shard(setup_of(nodes, backups));
    shard.init(0.0f);
    pull_all(shard);
    std::vector<std::uint64_t> clock(nodes, 0), base(nodes, 0);
    std::vector<bool> waits(nodes, false);
    std::uint64_t version = 0, held = 0, dropped = 0;
    float expected = 0.0f, sum = 0.0f;
    for (int step = 0; step < 300; ++step) {
      const auto node = static_cast<std::uint32_t>(random() % nodes);
      if (waits[node]) continue;
      const bool in_time = base[node] == version;
      const float gradient = static_cast<float>(static_cast<int>(random() % 8) * static_cast<int>(nodes - backups));
      shard.out.clear();
      shard.push(node, ++clock[node], gradient);
      if (in_time) {
        sum += gradient;
        waits[node] = true;
        if (++held == nodes - backups) {
          expected -= sum / static_cast<float>(held);
          ++version;
          held = 0;
          sum = 0.0f;
        }
      } else {
        ++dropped;
        base[node] = version;
      }
      for (const ShardRecorder::Sent& sent : shard.out.answers) {
        const std::uint32_t who = sent.header.key.node.value;
        CHECK(sent.header.version.value == clock[who]);
        CHECK(sent.header.slowest.value == version);
        CHECK(sent.header.dropped == (who == node && !in_time));
        CHECK(all_equal(sent.payload.floats(), expected));
        base[who] = version;
        waits[who] = false;
      }
      REQUIRE(shard.version() == version);
      REQUIRE(shard.core.stats().dropped == dropped);
      REQUIRE(shard.core.stats().held_frames == held);
      CHECK(static_cast<std::uint64_t>(std::ranges::count(waits, true)) == held);
    }
  }
}

}  // namespace tributary
