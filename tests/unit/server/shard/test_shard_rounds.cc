#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "common/base/weight.h"
#include "tests/unit/server/shard/core_fixture.h"

namespace tributary::shard_rounds_test {

using namespace testing;

TEST_CASE("the last of the nodes' pushes steps the chunk and answers everybody who contributed") {
  Shard shard({.nodes = 2}, 10.0f);
  shard.push(1, 1, 3.0f);
  CHECK(shard.out.answers.empty());
  REQUIRE(shard.out.acks.size() == 1);
  CHECK(shard.out.acks[0].first == peer_of(1));
  CHECK(shard.out.acks[0].second.round == Round(1));
  shard.push(0, 1, 1.0f);
  CHECK(shard.version() == 1);
  CHECK(all_equal(shard.params(), 8.0f));  // 10 - (1 + 3) / 2
  REQUIRE(shard.out.acks.size() == 2);     // also for the last push
  CHECK(shard.out.acks[1].first == peer_of(0));
  REQUIRE(shard.out.answers.size() == 2);
  for (std::uint32_t node = 0; node < 2; ++node) {
    const ShardRecorder::Sent& sent = shard.out.answers[node];
    CHECK(sent.to == peer_of(node));
    CHECK(sent.header.key == Shard::key(node));
    CHECK(sent.header.version == Version(1));
    CHECK(sent.payload.size() == kChunk * sizeof(float));
    CHECK(all_equal(sent.payload.floats(), 8.0f));
  }
  CHECK(shard.core.stats().held_frames == 0);
  CHECK(shard.core.stats().max_held_bytes == 2 * kChunk * sizeof(float));
}

TEST_CASE("the average is weighted by samples") {
  Shard shard({.nodes = 2}, 0.0f);
  shard.push(0, 1, 6.0f, 0, 3);
  shard.push(1, 1, 2.0f, 0, 1);
  CHECK(all_equal(shard.params(), -2.0f));  // (6 + 2) / (3 + 1)
}

TEST_CASE("sums of any number of samples arrive in 16 bits") {
  for (const EncodingId push : {EncodingId::kBf16, EncodingId::kFp16}) {
    Shard shard({.nodes = 2, .push = push}, 0.0f);
    shard.push(0, 1, 131'072.0f, 0, 65'536);  // a mean of 2: the sum is too large for fp16
    shard.push(1, 1, 524'288.0f, 0, 65'536);
    CHECK(all_equal(shard.params(), -5.0f));
  }
}

TEST_CASE("a round without samples changes the version and nothing else") {
  ShardSetup setup{.nodes = 2, .optimizer = "adamw"};
  setup.options = {{"weight_decay", 0.5}};
  Shard shard(setup, 4.0f);
  shard.push(0, 1, 0.0f, 0, 0);
  shard.push(1, 1, 0.0f, 0, 0);
  CHECK(shard.version() == 1);
  CHECK(all_equal(shard.params(), 4.0f));
  CHECK(shard.core.stats().steps == 0);
  CHECK(shard.out.answers.size() == 2);
  REQUIRE(shard.core.snapshot_at(Round(1)));
  REQUIRE(shard.out.snapshots.size() == 1);
  CHECK(shard.out.snapshots[0].state.step == 0);
}

TEST_CASE("one node without samples contributes its frame with no weight") {
  Shard shard({.nodes = 2}, 0.0f);
  shard.push(0, 1, 0.0f, 0, 0);
  shard.push(1, 1, 8.0f, 0, 4);
  CHECK(all_equal(shard.params(), -2.0f));
}

TEST_CASE("chunks do not wait for each other") {
  Shard shard({.elements = 3 * kChunk, .nodes = 2}, 0.0f);
  for (std::uint64_t round = 1; round <= 3; ++round) {
    shard.push(0, round, 1.0f, 2);
    shard.push(1, round, 1.0f, 2);
  }
  shard.push(0, 1, 1.0f, 0);
  CHECK(shard.version(0) == 0);
  CHECK(shard.version(2) == 3);
  CHECK(shard.core.min_version() == Version(0));
  CHECK(shard.core.max_version() == Version(3));
}

TEST_CASE("a second copy of an open push gets an ack and counts once") {
  Shard shard({.nodes = 2}, 0.0f);
  shard.push(0, 1, 1.0f);
  shard.push(0, 1, 100.0f);  // whatever it carries
  CHECK(shard.out.acks.size() == 2);
  CHECK(shard.core.stats().pushes == 1);
  CHECK(shard.core.stats().duplicates == 1);
  CHECK(shard.core.stats().held_frames == 1);
  shard.push(1, 1, 1.0f);
  CHECK(all_equal(shard.params(), -1.0f));
}

TEST_CASE("the answer goes to the connection that a node used last") {
  Shard shard({.nodes = 2}, 0.0f);
  shard.push(0, 1, 1.0f);
  shard.push_from(PeerId(900), 0, 1, 1.0f);
  SUBCASE("by a second copy") {}
  SUBCASE("by a query") {
    shard.core.on_query(PeerId(901), Query{Shard::key(0), Round(1)});
  }
  const PeerId expected = shard.out.acks.back().first;
  shard.push(1, 1, 1.0f);
  REQUIRE(shard.out.answers.size() == 2);
  CHECK(shard.out.answers[0].to == expected);
  CHECK(expected.value >= 900);
}

TEST_CASE("a late copy of the last round's push is answered, an older one dropped") {
  Shard shard;
  shard.init(0.0f);
  shard.push(0, 1, 1.0f);
  shard.push(0, 1, 5.0f);
  REQUIRE(shard.out.answers.size() == 2);
  CHECK(shard.out.answers[1].header.version == Version(1));
  shard.push(0, 2, 1.0f);
  shard.out.clear();
  shard.push(0, 1, 5.0f);
  CHECK(shard.out.answers.empty());
  CHECK(shard.out.acks.empty());
  CHECK(shard.out.errors.empty());
  CHECK(shard.core.stats().duplicates == 2);
  CHECK(all_equal(shard.params(), -2.0f));
}

TEST_CASE("a query is answered with what the shard knows of the push") {
  Shard shard({.nodes = 2}, 0.0f);
  const auto query = [&](std::uint64_t round) {
    shard.out.clear();
    shard.core.on_query(peer_of(0), Query{Shard::key(0), Round(round)});
  };
  query(1);
  REQUIRE(shard.out.resends.size() == 1);
  CHECK(shard.out.resends[0].second.round == Round(1));
  shard.push(0, 1, 1.0f);
  query(1);
  CHECK(shard.out.acks.size() == 1);
  query(2);  // it holds a push of this node, but for another round
  CHECK(shard.out.resends.size() == 1);
  shard.push(1, 1, 1.0f);
  query(1);
  REQUIRE(shard.out.answers.size() == 1);
  CHECK(shard.out.answers[0].header.version == Version(1));
}

TEST_CASE("a query about an uninitialised chunk asks for the push again") {
  Shard shard;
  shard.core.on_query(peer_of(0), Query{Shard::key(0), Round(1)});
  CHECK(shard.out.resends.size() == 1);
}

TEST_CASE("whatever does not fit is refused with the reason, and nothing changes") {
  Shard shard({.elements = 2 * kChunk, .nodes = 2, .push = EncodingId::kBf16});
  shard.init_chunk(0, 1.0f);
  const auto refused = [&](ErrorCode code, std::vector<std::string> words) {
    REQUIRE(shard.out.errors.size() == 1);
    const auto& [to, error] = shard.out.errors[0];
    CHECK(to == peer_of(0));
    CHECK(error.code == code);
    for (const std::string& word : words)
      CHECK_MESSAGE(contains(error.message, word), error.message << " lacks " << word);
    CHECK(shard.out.answers.empty());
    CHECK(shard.out.acks.empty());
    CHECK(shard.core.stats().rejected == 1);
    CHECK(shard.core.stats().held_frames == 0);
  };
  Push push{Shard::key(0), Round(1), 1, EncodingId::kBf16};
  const auto send = [&](std::size_t bytes) {
    shard.core.on_push(peer_of(0), push, payload_of(std::vector<std::byte>(bytes)));
    if (!shard.out.errors.empty()) {
      CHECK(shard.out.errors[0].second.key == push.key);
      CHECK(shard.out.errors[0].second.round == push.round);
    }
  };
  SUBCASE("another view") {
    push.key.view = ViewId(2);
    send(2 * kChunk);
    refused(ErrorCode::kStaleView, {"view 2", "view 3", "job 77", "attach again"});
  }
  SUBCASE("a node that is not there") {
    push.key.node = NodeRank(2);
    send(2 * kChunk);
    refused(ErrorCode::kTopology, {"node rank 2", "2 nodes"});
  }
  SUBCASE("a chunk that does not exist") {
    push.key.chunk = ChunkIndex(2);
    send(2 * kChunk);
    refused(ErrorCode::kUnknownChunk, {"chunk 2", "2 chunks", "server 0 lane 0"});
  }
  SUBCASE("another encoding") {
    push.encoding = EncodingId::kFp32;
    send(4 * kChunk);
    refused(ErrorCode::kConfigMismatch, {"fp32", "bf16"});
  }
  SUBCASE("a payload that is too short") {
    send(2 * kChunk - 2);
    refused(ErrorCode::kWrongLength, {"2046 bytes", "1024 bf16", "2048"});
  }
  SUBCASE("no payload") {
    send(0);
    refused(ErrorCode::kWrongLength, {"has 0 bytes"});
  }
  SUBCASE("an impossible weight") {
    push.weight = kMaxWeight + 1;
    send(2 * kChunk);
    refused(ErrorCode::kInvalidArgument, {"1099511627777", "1099511627776"});
  }
  SUBCASE("a round too early") {
    push.round = Round(2);
    send(2 * kChunk);
    refused(ErrorCode::kWrongRound, {"round 2", "chunk 0", "version 0", "pull first"});
  }
  SUBCASE("the last round there is") {
    push.round = Round(~0ull);
    send(2 * kChunk);
    refused(ErrorCode::kWrongRound, {"version 0"});
  }
  SUBCASE("a chunk without initial values") {
    push.key.chunk = ChunkIndex(1);
    send(2 * kChunk);
    refused(ErrorCode::kWrongRound, {"chunk 1", "not initialised"});
  }
  SUBCASE("initial values from another node than 0") {
    shard.core.on_init(peer_of(0), Init{Shard::key(1, 1)}, frame_of(kChunk, 1.0f));
    refused(ErrorCode::kTopology, {"node 1", "only node 0"});
  }
  SUBCASE("initial values of a wrong length") {
    shard.core.on_init(peer_of(0), Init{Shard::key(0, 1)}, frame_of(kChunk - 1, 1.0f));
    refused(ErrorCode::kWrongLength, {"chunk 1", "4092", "4096"});
  }
  SUBCASE("a pull of an unknown chunk") {
    shard.core.on_pull(peer_of(0), Pull{Shard::key(0, 7)});
    refused(ErrorCode::kUnknownChunk, {"chunk 7"});
  }
  SUBCASE("a query of another view") {
    ChunkKey key = Shard::key(0);
    key.view = ViewId(9);
    shard.core.on_query(peer_of(0), Query{key, Round(1)});
    refused(ErrorCode::kStaleView, {"view 9"});
  }
  CHECK(shard.version(0) == 0);
}

TEST_CASE("a chunk of another lane is unknown here") {
  const auto layout = layout_of(4 * kChunk, 2, 1);
  BufferPool pool(kChunk * sizeof(float), 10);
  ShardRecorder out;
  ShardJob job = changed(Shard().job({}), [&](ViewPlan& view, JobConfig&) { view.layout = layout; });
  job.shard = ShardIndex(1);
  ShardCore core(job, pool, out);
  CHECK(core.chunks() == 2);
  core.on_pull(peer_of(0), Pull{Shard::key(0, 0)});
  core.on_pull(peer_of(0), Pull{Shard::key(0, 1)});
  REQUIRE(out.errors.size() == 1);
  CHECK(contains(out.errors[0].second.message, "server 1 lane 0"));
}

TEST_CASE("a lane without chunks is initialised, and its snapshots are done before they begin") {
  BufferPool pool(kChunk * sizeof(float), 1);
  ShardRecorder out;
  ShardJob job = Shard().job({});
  job.lane = LaneIndex(1);
  ShardCore core(job, pool, out);
  CHECK(core.chunks() == 0);
  CHECK(core.initialised());
  CHECK(core.snapshot_at(Round(5)));
  CHECK(core.snapshot_at(Round(6)));
  CHECK(core.stop(true, Round(9)));
  CHECK(out.snapshots.empty());
}

TEST_CASE("pulls wait for the initial values, the newest connection of each node is answered") {
  Shard shard({.nodes = 3});
  shard.core.on_pull(peer_of(2), Pull{Shard::key(2)});
  shard.core.on_pull(peer_of(1), Pull{Shard::key(1)});
  shard.core.on_pull(PeerId(901), Pull{Shard::key(1)});
  CHECK(shard.out.answers.empty());
  CHECK_FALSE(shard.core.initialised());
  shard.init(2.0f);
  CHECK(shard.core.initialised());
  REQUIRE(shard.out.answers.size() == 2);
  CHECK(shard.out.answers[0].to == PeerId(901));
  CHECK(shard.out.answers[0].header.key.node == NodeRank(1));
  CHECK(shard.out.answers[1].to == peer_of(2));
  CHECK(shard.out.answers[0].header.version == Version(0));
  shard.out.clear();
  shard.core.on_pull(peer_of(0), Pull{Shard::key(0)});
  CHECK(shard.out.answers.size() == 1);
}

TEST_CASE("initial values count once") {
  Shard shard;
  shard.init(2.0f);
  shard.push(0, 1, 1.0f);
  shard.init(50.0f);
  CHECK(all_equal(shard.params(), 1.0f));
  CHECK(shard.version() == 1);
  CHECK(shard.core.stats().duplicates == 1);
}

TEST_CASE("optimizer state starts as the optimizer says") {
  ShardSetup setup{.optimizer = "adagrad"};
  setup.options = {{"initial_accumulator", 0.25}};
  Shard shard(setup, 1.0f);
  REQUIRE(shard.core.snapshot_at(Round(0)));
  REQUIRE(shard.out.snapshots.size() == 1);
  CHECK(all_equal(shard.out.snapshots[0].state.slots[0].floats(), 0.25f));
}

TEST_CASE("a bf16 answer carries the rounded parameters and the master stays exact") {
  Shard shard({.pull = EncodingId::kBf16});
  const float value = 1.0f + 0x1.0p-12f;  // bf16 cannot hold it
  shard.init(value);
  shard.core.on_pull(peer_of(0), Pull{Shard::key(0)});
  shard.push(0, 1, 1.0f);
  CHECK(all_equal(shard.params(), 0x1.0p-12f));
  REQUIRE(shard.out.answers.size() == 2);
  CHECK(shard.out.answers[0].header.encoding == EncodingId::kBf16);
  const auto expected_before = frame_of(kChunk, value, EncodingId::kBf16);
  const auto expected_after = frame_of(kChunk, 0x1.0p-12f, EncodingId::kBf16);
  CHECK(std::ranges::equal(shard.out.answers[0].payload.bytes(), expected_before));
  CHECK(std::ranges::equal(shard.out.answers[1].payload.bytes(), expected_after));
}

TEST_CASE("answers and stats count bytes as they travel") {
  Shard shard({.nodes = 1, .push = EncodingId::kBf16, .pull = EncodingId::kFp16}, 1.0f);
  shard.push(0, 1, 1.0f);
  shard.push(0, 2, 1.0f);
  const ShardStats& stats = shard.core.stats();
  CHECK(stats.pushes == 2);
  CHECK(stats.push_bytes == 2 * 2 * kChunk);
  CHECK(stats.answers == 2);
  CHECK(stats.answer_bytes == 2 * 2 * kChunk);
  CHECK(stats.steps == 2);
}

TEST_CASE("the learning rate follows the schedule by rounds applied") {
  Shard reference({.lr = 1.0});
  const ShardJob job =
      changed(reference.job({.lr = 1.0}), [](ViewPlan&, JobConfig& config) { config.schedule.warmup_rounds = 4; });
  BufferPool pool(kChunk * sizeof(float), 8);
  ShardRecorder out;
  ShardCore core(job, pool, out);
  core.on_init(peer_of(0), Init{Shard::key(0)}, frame_of(kChunk, 0.0f));
  const auto push = [&](std::uint64_t round, std::uint64_t weight) {
    core.on_push(peer_of(0), Push{Shard::key(0), Round(round), weight, EncodingId::kFp32},
                 payload_of(frame_of(kChunk, 1.0f)));
  };
  push(1, 1);  // lr 1/4
  push(2, 0);  // skipped: no step of the schedule
  push(3, 1);  // lr 2/4
  CHECK(all_equal(core.params(ChunkIndex(0)), -0.75f));
}

// ---- Nodes that wait for a late one ----

namespace {

// A push of node `node`: values whose sum depends on the order of adding.
std::vector<std::byte> mixed_frame(std::uint32_t node, std::uint64_t round) {
  std::vector<float> values(kChunk);
  std::uint32_t state = node * 2654435761u + static_cast<std::uint32_t>(round) * 40503u + 1;
  for (float& value : values) {
    state = state * 1664525u + 1013904223u;
    value = std::ldexp(static_cast<float>(static_cast<std::int32_t>(state)), -40 + static_cast<int>(state >> 28));
  }
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

void push_mixed(Shard& shard, std::uint32_t node, std::uint64_t round, bool shared = false) {
  const std::vector<std::byte> frame = mixed_frame(node, round);
  const ChunkKey key{kJob, shard.core.job().view->view, NodeRank(node), ChunkIndex(0)};
  shard.core.on_push(peer_of(node), Push{key, Round(round), 1, EncodingId::kFp32},
                     shared ? shared_payload_of(frame) : payload_of(frame));
}

std::vector<std::uint32_t> nodes_in_order(std::uint32_t nodes, int order, std::uint32_t late) {
  std::vector<std::uint32_t> all;
  for (std::uint32_t node = 0; node < nodes; ++node) {
    if (node != late) all.push_back(node);
  }
  if (order == 1) std::ranges::reverse(all);
  if (order == 2) std::ranges::shuffle(all, std::mt19937(nodes));
  all.push_back(late);
  return all;
}

}  // namespace

TEST_CASE("nodes that wait for a late one cost few frames, and the bits are those of all frames together") {
  for (const std::uint32_t nodes : {2u, 4u, 5u, 6u, 7u, 8u, 13u, 16u, 64u, 100u, 257u}) {
    for (const std::uint32_t late : {0u, nodes / 3, nodes - 1}) {
      for (int order = 0; order < 3; ++order) {
        CAPTURE(nodes);
        CAPTURE(late);
        CAPTURE(order);
        Shard shard({.nodes = nodes, .optimizer = "adamw"}), apart({.nodes = nodes, .optimizer = "adamw"});
        shard.init(1.0f);
        apart.init(1.0f);
        std::uint64_t levels = 1;
        for (std::uint64_t there = 4; there <= nodes; there *= 4) ++levels;
        for (std::uint64_t round = 1; round <= 2; ++round) {
          const std::vector<std::uint32_t> who = nodes_in_order(nodes, order, late);
          for (const std::uint32_t node : who) {
            if (node == late) CHECK(shard.core.stats().held_bytes <= 3 * levels * kChunk * sizeof(float));
            push_mixed(shard, node, round);
            push_mixed(shard, node, round);  // again: nothing is added twice
          }
          for (std::uint32_t node = 0; node < nodes; ++node) push_mixed(apart, node, round, true);
          CHECK(shard.version() == round);
          CHECK(std::ranges::equal(std::as_bytes(shard.params()), std::as_bytes(apart.params())));
          CHECK(shard.core.stats().held_bytes == 0);
          CHECK(shard.core.stats().held_frames == 0);
        }
      }
    }
  }
}

TEST_CASE("frames that are a subtree of the sum are one before the last node's is there") {
  Shard shard({.nodes = 8}, 1.0f);
  for (std::uint32_t node = 0; node < 7; ++node) push_mixed(shard, node, 1);
  CHECK(shard.core.stats().held_frames == 4);
  CHECK(shard.core.stats().max_held_bytes == 4 * kChunk * sizeof(float));
  CHECK(shard.out.acks.size() == 7);
}

TEST_CASE("what an author keeps, and what is not fp32, is not added before the round is complete") {
  Shard shared({.nodes = 8}, 1.0f);
  for (std::uint32_t node = 0; node < 7; ++node) push_mixed(shared, node, 1, true);
  CHECK(shared.core.stats().held_frames == 7);
  Shard half({.nodes = 8, .push = EncodingId::kBf16}, 1.0f);
  for (std::uint32_t node = 0; node < 7; ++node) half.push(node, 1, 1.0f);
  CHECK(half.core.stats().held_frames == 7);
}

TEST_CASE("a round whose frames are partly added ends with its view, and is pushed anew in the next") {
  Shard shard({.nodes = 8, .recovers = true}), apart({.nodes = 8, .recovers = true});
  shard.init(1.0f);
  apart.init(1.0f);
  for (std::uint32_t node = 0; node < 7; ++node) push_mixed(shard, node, 1);
  CHECK(shard.core.stop(false, Round()));
  CHECK(shard.core.stats().held_bytes == 0);
  REQUIRE(shard.core.reopen(in_view(shard.core.job(), ViewId(kView.value + 1))));
  for (const std::uint32_t node : nodes_in_order(8, 2, 3)) push_mixed(shard, node, 1);
  for (std::uint32_t node = 0; node < 8; ++node) push_mixed(apart, node, 1, true);
  CHECK(std::ranges::equal(std::as_bytes(shard.params()), std::as_bytes(apart.params())));
}

}  // namespace tributary::shard_rounds_test
