// ShardCore in modes where every node has a clock of its own.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "tests/unit/required.h"
#include "tests/unit/server/shard/core_fixture.h"
#include "tests/unit/stepping_optimizers.h"

namespace tributary::shard_clocks_test {

using namespace testing;

namespace {

ShardSetup setup_of(std::uint32_t nodes, std::uint64_t staleness) {
  ShardSetup setup{.nodes = nodes};
  setup.staleness = staleness;
  return setup;
}

void pull(Shard& shard, std::uint32_t node, std::uint32_t chunk = 0) {
  shard.core.on_pull(peer_of(node), Pull{Shard::key(node, chunk)});
}

std::vector<std::uint64_t> answered(const Shard& shard, std::uint32_t node) {
  std::vector<std::uint64_t> clocks;
  for (const ShardRecorder::Sent& sent : shard.out.answers) {
    if (sent.to == peer_of(node)) clocks.push_back(sent.header.version.value);
  }
  return clocks;
}

using Clocks = std::vector<std::uint64_t>;

// Version 13 of a chunk, with the clocks of as many nodes.
ChunkState restored(std::uint32_t nodes, Clocks clocks) {
  ChunkState state = state_at(13, std::vector<float>(kChunk, 10.0f));
  state.nodes = nodes;
  state.clocks = std::move(clocks);
  return state;
}

}  // namespace

TEST_CASE("with clocks a push is applied as it arrives, with the average of its own samples") {
  Shard shard(setup_of(2, 1), 10.0f);
  shard.push(1, 1, 6.0f, 0, 3);
  CHECK(shard.version() == 1);
  CHECK(all_equal(shard.params(), 8.0f));
  CHECK(shard.core.stats().held_frames == 0);
  REQUIRE(shard.out.answers.size() == 1);
  const ShardRecorder::Sent& sent = shard.out.answers[0];
  CHECK(sent.to == peer_of(1));
  CHECK(sent.header.version == Version(1));
  CHECK(sent.header.slowest == Round(0));
  CHECK(all_equal(sent.payload.floats(), 8.0f));
  REQUIRE(shard.out.acks.size() == 1);  // before the answer, as in synchronous rounds
  CHECK(shard.out.acks[0].second.round == Round(1));
}

TEST_CASE("an answer waits while its node would be more than s clocks ahead, and then has what came meanwhile") {
  Shard shard(setup_of(2, 1), 10.0f);
  shard.push(0, 1, 1.0f);
  shard.push(0, 2, 1.0f);
  CHECK(answered(shard, 0) == Clocks{1});  // clock 2, and the slowest is at 0
  CHECK(shard.core.stats().withheld == 1);
  CHECK(shard.out.acks.size() == 2);
  CHECK(shard.version() == 2);
  shard.push(1, 1, 3.0f);
  CHECK(shard.core.stats().withheld == 0);
  CHECK(answered(shard, 0) == Clocks{1, 2});
  CHECK(answered(shard, 1) == Clocks{1});
  for (std::size_t i = 1; i < 3; ++i) {  // in the order of the nodes
    const ShardRecorder::Sent& sent = shard.out.answers[i];
    CHECK(sent.to == peer_of(static_cast<std::uint32_t>(i - 1)));
    CHECK(sent.header.slowest == Round(1));
    CHECK(all_equal(sent.payload.floats(), 5.0f));
  }
}

TEST_CASE("staleness 0 goes clock by clock, and async waits for nobody") {
  Shard together(setup_of(3, 0), 0.0f);
  together.push(2, 1, 1.0f);
  together.push(0, 1, 1.0f);
  CHECK(together.out.answers.empty());
  together.push(1, 1, 1.0f);
  CHECK(together.out.answers.size() == 3);
  CHECK(together.version() == 3);
  Shard apart(setup_of(2, ShardJob::kUnbounded), 0.0f);
  for (std::uint64_t clock = 1; clock <= 20; ++clock) {
    apart.out.clear();
    apart.push(1, clock, 1.0f);
    CHECK(answered(apart, 1) == Clocks{clock});
    CHECK(apart.out.answers.back().header.slowest == Round(0));
  }
}

TEST_CASE("the bound is kept chunk by chunk") {
  ShardSetup setup = setup_of(2, 0);
  setup.elements = 2 * kChunk;
  Shard shard(setup, 0.0f);
  shard.push(0, 1, 1.0f, 0);
  shard.push(0, 1, 1.0f, 1);
  shard.push(1, 1, 1.0f, 1);
  REQUIRE(shard.out.answers.size() == 2);
  for (const ShardRecorder::Sent& sent : shard.out.answers) CHECK(sent.header.key.chunk == ChunkIndex(1));
  CHECK(shard.core.min_version() == Version(0));
  CHECK(shard.core.max_version() == Version(1));
  CHECK(shard.core.clock_range(NodeRank(0)) == std::pair(Round(1), Round(1)));
  CHECK(shard.core.clock_range(NodeRank(1)) == std::pair(Round(0), Round(1)));
}

TEST_CASE("a last push is answered when all nodes are there, whatever the bound") {
  Shard shard(setup_of(2, ShardJob::kUnbounded), 10.0f);
  const auto push_last = [&](std::uint32_t node) {
    shard.core.on_push(peer_of(node), Push{Shard::key(node), Round(1), 1, EncodingId::kFp32, {}, true},
                       payload_of(frame_of(kChunk, 1.0f)));
  };
  push_last(1);
  CHECK(shard.out.answers.empty());
  push_last(0);
  REQUIRE(shard.out.answers.size() == 2);
  for (const ShardRecorder::Sent& sent : shard.out.answers) CHECK(all_equal(sent.payload.floats(), 8.0f));
}

TEST_CASE("a second copy of a push changes nothing, and gets the answer that the first one got") {
  Shard shard(setup_of(2, 1), 10.0f);
  shard.push(0, 1, 1.0f);
  shard.push(1, 1, 1.0f);
  shard.push(0, 1, 50.0f);
  CHECK(shard.version() == 2);
  CHECK(all_equal(shard.params(), 8.0f));
  REQUIRE(shard.out.answers.size() == 3);
  CHECK(all_equal(shard.out.answers[2].payload.floats(), 9.0f));  // as it was when the answer went out
  CHECK(shard.out.answers[2].header.slowest == Round(0));
  CHECK(shard.core.stats().duplicates == 1);
  shard.push(0, 2, 1.0f);
  shard.out.clear();
  shard.push(0, 1, 50.0f);  // older than the newest: its author has long had that answer
  CHECK(shard.out.answers.empty());
  CHECK(shard.out.errors.empty());
  CHECK(all_equal(shard.params(), 7.0f));
}

TEST_CASE("a second copy of a push whose answer waits gets an ack, and so does a question") {
  Shard shard(setup_of(2, 0), 10.0f);
  shard.push(0, 1, 1.0f);
  shard.out.clear();
  shard.push(0, 1, 50.0f);
  shard.core.on_query(peer_of(0), Query{Shard::key(0), Round(1)});
  CHECK(shard.out.acks.size() == 2);
  CHECK(shard.out.answers.empty());
  shard.core.on_query(PeerId(900), Query{Shard::key(0), Round(1)});  // over another connection
  shard.push(1, 1, 1.0f);
  REQUIRE(shard.out.answers.size() == 2);
  CHECK(shard.out.answers[0].to == PeerId(900));
}

TEST_CASE("a question about a push that never came is answered with resend, one about an old push not at all") {
  Shard shard(setup_of(2, 3), 10.0f);
  shard.core.on_query(peer_of(0), Query{Shard::key(0), Round(1)});
  CHECK(shard.out.resends.size() == 1);
  shard.push(0, 1, 1.0f);
  shard.push(0, 2, 1.0f);
  shard.out.clear();
  shard.core.on_query(peer_of(0), Query{Shard::key(0), Round(1)});
  CHECK((shard.out.answers.empty() && shard.out.resends.empty() && shard.out.acks.empty()));
  shard.core.on_query(peer_of(0), Query{Shard::key(0), Round(2)});
  REQUIRE(shard.out.answers.size() == 1);
  CHECK(all_equal(shard.out.answers[0].payload.floats(), 8.0f));
}

TEST_CASE("a question about a chunk without values is answered with resend, and its author still gets them") {
  Shard shard(setup_of(2, 3));
  shard.core.on_query(peer_of(0), Query{Shard::key(0), Round(0)});
  CHECK(shard.out.resends.size() == 1);
  CHECK(shard.out.answers.empty());
  pull(shard, 0);
  shard.init(10.0f);
  REQUIRE(shard.out.answers.size() == 1);
  CHECK(all_equal(shard.out.answers[0].payload.floats(), 10.0f));
}

TEST_CASE("a push out of turn is refused, also one that does not wait for its answer") {
  Shard shard(setup_of(2, 1));
  shard.push(0, 1, 1.0f);
  REQUIRE(shard.out.errors.size() == 1);
  CHECK(contains(shard.out.errors[0].second.message, "has not been given any parameters; pull first"));
  shard.init(10.0f);
  shard.push(0, 2, 1.0f);
  REQUIRE(shard.out.errors.size() == 2);
  CHECK(shard.out.errors[1].second.code == ErrorCode::kWrongRound);
  CHECK(contains(shard.out.errors[1].second.message, "push for clock 2 of chunk 0, where node 0 is at clock 0"));
  shard.push(0, 1, 1.0f);
  shard.push(0, 2, 1.0f);  // its answer waits for node 1
  shard.push(0, 3, 1.0f);
  REQUIRE(shard.out.errors.size() == 3);
  CHECK(contains(shard.out.errors[2].second.message, "waits for the answer to the clock before"));
  CHECK(shard.version() == 2);
}

TEST_CASE("what a node was answered stays as it is until its next push, and costs at most a copy per node") {
  ShardSetup setup = setup_of(2, ShardJob::kUnbounded);
  SUBCASE("fp32") {}
  SUBCASE("bf16") {
    setup.pull = EncodingId::kBf16;
  }
  Shard shard(setup, 10.0f);
  shard.push(0, 1, 1.0f);
  const std::byte* read_by_node_0 = shard.out.answers[0].payload.data();
  const std::vector<std::byte> before(read_by_node_0, read_by_node_0 + shard.out.answers[0].payload.size());
  shard.out.clear();  // the transport has let go of it: a node on this machine reads it where it lies
  for (std::uint64_t clock = 1; clock <= 4; ++clock) {
    shard.push(1, clock, 1.0f);
    shard.out.clear();
    CHECK(std::equal(before.begin(), before.end(), read_by_node_0));
  }
  const std::size_t own = setup.pull == EncodingId::kFp32 ? 1 : 2;  // parameters, and what answers carry
  CHECK(shard.pool.in_use() <= own + 2);
  shard.push(0, 2, 1.0f);
  shard.push(1, 5, 1.0f);
  shard.out.clear();
  CHECK(shard.pool.in_use() <= own + 2);
  CHECK(all_equal(shard.params(), 3.0f));
}

TEST_CASE("one node alone steps in place") {
  Shard shard(setup_of(1, 0), 10.0f);
  for (std::uint64_t clock = 1; clock <= 3; ++clock) {
    shard.push(0, clock, 1.0f);
    shard.out.clear();
  }
  CHECK(shard.core.stats().out_of_place_steps == 0);
  CHECK(shard.pool.allocated_blocks() == 1);
}

TEST_CASE("a single node with clocks ends in the bits of synchronous rounds, with every optimizer and schedule") {
  for (const std::string& optimizer : stepping_optimizers()) {
    for (const EncodingId pull_as : {EncodingId::kFp32, EncodingId::kBf16}) {
      ShardSetup setup{.optimizer = optimizer, .lr = 0.1, .pull = pull_as};
      setup.options = {{"weight_decay", 0.01}};
      ShardSetup with_clock = setup;
      with_clock.staleness = 2;
      Shard rounds(setup), clocks(with_clock);
      rounds.init(1.0f);
      clocks.init(1.0f);
      for (std::uint64_t r = 1; r <= 10; ++r) {
        const float gradient = std::sin(static_cast<float>(r));
        rounds.push(0, r, gradient, 0, r);
        clocks.push(0, r, gradient, 0, r);
        REQUIRE(
            std::ranges::equal(rounds.out.answers.back().payload.bytes(), clocks.out.answers.back().payload.bytes()));
        CHECK(clocks.out.answers.back().header.version == rounds.out.answers.back().header.version);
        rounds.out.clear();
        clocks.out.clear();
      }
      CHECK(std::ranges::equal(rounds.params(), clocks.params()));
    }
  }
}

TEST_CASE("a push without samples moves its author's clock and nothing else") {
  ShardSetup setup = setup_of(2, 0);
  setup.optimizer = "adamw";
  setup.options = {{"weight_decay", 0.5}};
  Shard shard(setup, 4.0f);
  shard.push(0, 1, 0.0f, 0, 0);
  shard.push(1, 1, 0.0f, 0, 0);
  CHECK(all_equal(shard.params(), 4.0f));
  CHECK(shard.core.stats().steps == 0);
  CHECK(shard.out.answers.size() == 2);
}

TEST_CASE("with clocks a chunk is captured when its slowest node reaches the round, with all clocks") {
  ShardSetup setup = setup_of(2, 3);
  setup.elements = 2 * kChunk;
  setup.optimizer = "adam";
  Shard shard(setup, 1.0f);
  REQUIRE(shard.core.snapshot_at(Round(2)));
  for (std::uint64_t clock = 1; clock <= 4; ++clock) shard.push(0, clock, 1.0f);
  shard.push(1, 1, 1.0f);
  CHECK(shard.out.snapshots.empty());
  shard.push(1, 2, 1.0f);
  REQUIRE(shard.out.snapshots.size() == 1);
  const ChunkSnapshot& snapshot = shard.out.snapshots[0];
  CHECK(snapshot.round == Round(2));
  CHECK(snapshot.state.version == Version(6));
  CHECK(snapshot.state.step == 6);
  CHECK(snapshot.state.clocks == Clocks{4, 2});
  const std::vector<float> then(snapshot.state.params.floats().begin(), snapshot.state.params.floats().end());
  shard.push(1, 3, 1.0f);
  CHECK(std::ranges::equal(then, snapshot.state.params.floats()));
  CHECK_FALSE(shard.core.snapshot_at(Round(5)));  // the other chunk is missing yet
}

TEST_CASE("a restored chunk does not apply again what it has, answers it, and goes on with what it lacks") {
  ShardSetup setup = setup_of(2, 1);
  setup.start = 5;
  Shard shard(setup);
  REQUIRE(shard.core.restore(ChunkIndex(0), restored(2, Clocks{7, 5})));
  CHECK(shard.core.initialised());
  CHECK(shard.version() == 13);
  CHECK(shard.core.min_version() == Version(5));
  pull(shard, 0);
  pull(shard, 1);
  CHECK(answered(shard, 0) == Clocks{5});
  shard.push(0, 6, 50.0f);
  CHECK(all_equal(shard.params(), 10.0f));
  CHECK(answered(shard, 0) == Clocks{5, 6});
  CHECK(shard.core.stats().duplicates == 1);
  shard.push(0, 7, 50.0f);
  CHECK(all_equal(shard.params(), 10.0f));
  CHECK(answered(shard, 0) == Clocks{5, 6});  // more than 1 ahead of node 1
  shard.push(1, 6, 1.0f);
  CHECK(answered(shard, 0) == Clocks{5, 6, 7});
  shard.push(0, 8, 1.0f);
  CHECK(all_equal(shard.params(), 8.0f));
  CHECK(shard.version() == 15);
  CHECK(shard.out.errors.empty());
}

TEST_CASE("a chunk of other nodes starts every clock at the view's round, and one that lacks pushes is refused") {
  ShardSetup setup = setup_of(3, 1);
  setup.start = 5;
  Shard shard(setup);
  REQUIRE(shard.core.restore(ChunkIndex(0), restored(2, Clocks{7, 5})));
  for (std::uint32_t node = 0; node < 3; ++node) shard.push(node, 6, 1.0f);
  CHECK(all_equal(shard.params(), 7.0f));
  Shard damaged(setup);
  const auto status = failure_of(damaged.core.restore(ChunkIndex(0), restored(3, Clocks{7, 5, 4})));
  CHECK(status.code == ErrorCode::kStore);
}

TEST_CASE("a stop keeps every chunk as it is, with clocks that need not be the same") {
  ShardSetup setup = setup_of(2, 3);
  setup.elements = 2 * kChunk;
  Shard shard(setup, 1.0f);
  for (std::uint64_t clock = 1; clock <= 3; ++clock) {
    shard.push(0, clock, 1.0f, 0);
    shard.push(1, clock, 1.0f, 1);
  }
  shard.push(0, 1, 1.0f, 1);
  CHECK_FALSE(shard.core.stop(true, Round(1)));  // node 1 has not pushed chunk 0
  CHECK(shard.out.snapshots.empty());
  Shard other(setup, 1.0f);
  for (std::uint32_t chunk = 0; chunk < 2; ++chunk) {
    other.push(0, 1, 1.0f, chunk);
    other.push(0, 2, 1.0f, chunk);
    other.push(1, 1, 1.0f, chunk);
  }
  CHECK(other.core.stop(true, Round(1)));
  REQUIRE(other.out.snapshots.size() == 2);
  for (const ChunkSnapshot& snapshot : other.out.snapshots) {
    CHECK(snapshot.round == Round(1));
    CHECK(snapshot.state.clocks == Clocks{2, 1});
  }
}

TEST_CASE("a push that found no buffer is applied when it comes again") {
  ShardSetup setup = setup_of(2, ShardJob::kUnbounded);
  setup.pool_blocks = 2;
  Shard shard(setup, 100.0f);
  pull(shard, 0);
  pull(shard, 1);
  std::vector<ShardRecorder::Sent> slow = std::exchange(shard.out.answers, {});
  for (std::uint64_t clock = 1; clock <= 8; ++clock) {
    shard.push(1, clock, 1.0f);
    shard.out.clear();
  }
  CHECK(all_equal(shard.params(), 92.0f));
  shard.push(0, 1, 1.0f);
  CHECK(shard.core.stats().starved == 1);
  CHECK(all_equal(shard.params(), 92.0f));
  slow.clear();
  pull(shard, 0);
  CHECK(shard.out.answers.empty());  // it has those: no others in their place
  shard.push(0, 1, 1.0f);
  CHECK(all_equal(shard.params(), 91.0f));
}

TEST_CASE("a push that finds no buffer is as good as lost") {
  ShardSetup setup = setup_of(2, ShardJob::kUnbounded);
  setup.pool_blocks = 2;
  Shard shard(setup, 10.0f);
  shard.push(0, 1, 1.0f);
  shard.push(1, 1, 1.0f);  // into a second buffer: node 0 has the first
  shard.out.clear();
  shard.push(1, 2, 1.0f);  // its own was the second, which it is done with
  CHECK(shard.version() == 3);
  std::vector<ShardRecorder::Sent> slow = shard.out.answers;
  shard.out.clear();
  shard.push(1, 3, 1.0f);
  CHECK(shard.version() == 3);
  CHECK(shard.core.stats().starved == 1);
  CHECK((shard.out.answers.empty() && shard.out.acks.empty() && shard.out.errors.empty()));
  shard.core.on_query(peer_of(1), Query{Shard::key(1), Round(3)});
  CHECK(shard.out.resends.size() == 1);
  slow.clear();
  shard.push(1, 3, 1.0f);
  CHECK(shard.version() == 4);
  CHECK(all_equal(shard.params(), 6.0f));
}

}  // namespace tributary::shard_clocks_test
