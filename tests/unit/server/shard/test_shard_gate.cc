// A shard whose rounds wait for one decision.
#include <doctest/doctest.h>

#include <limits>

#include "common/config/gate_rules.h"
#include "server/coordinator/round/round_gate.h"
#include "tests/unit/required.h"
#include "tests/unit/server/shard/core_fixture.h"

namespace tributary::shard_gate_test {

using namespace testing;

namespace {

ShardSetup gated(std::uint32_t nodes = 2, std::uint64_t elements = kChunk) {
  ShardSetup setup{.elements = elements, .nodes = nodes};
  setup.gate.emplace();
  setup.gate->clip_norm = 1.0e9;
  return setup;
}

RoundDecision decision_of(std::uint64_t round, double coefficient, GateVerdict verdict = GateVerdict::kClipped) {
  return {kJob, kView, Round(round), {verdict, coefficient, 3.0, 1.0f, 5}};
}

}  // namespace

TEST_CASE("a round is not applied before there is a decision about it") {
  Shard shard(gated(), 10.0f);
  shard.push(0, 1, 1.0f);
  CHECK(shard.out.rounds.empty());
  shard.push(1, 1, 3.0f);
  CHECK(shard.version() == 0);
  CHECK(shard.out.answers.empty());
  CHECK(shard.out.acks.size() == 2);
  CHECK(shard.core.stats().held_frames == 0);  // their sum is held
  REQUIRE(shard.out.rounds.size() == 1);
  const RoundFacts& facts = shard.out.rounds[0];
  CHECK(facts.round == Round(1));
  CHECK(facts.before == first_gate_state(*gated().gate));
  REQUIRE(facts.chunks.size() == 1);
  CHECK(facts.chunks[0].facts.sum_squares == 16.0 * kChunk);
  CHECK(facts.chunks[0].facts.weight == 2);
  CHECK(facts.chunks[0].facts.finite);
  SUBCASE("then it is, by its coefficient") {
    shard.core.decide(decision_of(1, 0.5));
    CHECK(shard.version() == 1);
    CHECK(all_equal(shard.params(), 9.0f));  // 10 - 0.5 * (1 + 3) / 2
    REQUIRE(shard.out.answers.size() == 2);
    for (const auto& answer : shard.out.answers) {
      CHECK(answer.header.gate == decision_of(1, 0.5).decision);
      CHECK(all_equal(answer.payload.floats(), 9.0f));
    }
    shard.core.decide(decision_of(1, 0.25));  // a second copy
    CHECK(shard.version() == 1);
    CHECK(all_equal(shard.params(), 9.0f));
  }
  SUBCASE("or it changes nothing but the version") {
    shard.core.decide(decision_of(1, 0.0, GateVerdict::kSkipped));
    CHECK(shard.version() == 1);
    CHECK(all_equal(shard.params(), 10.0f));
    CHECK(shard.core.stats().steps == 0);
    REQUIRE(shard.out.answers.size() == 2);
    CHECK(shard.out.answers[0].header.gate.verdict == GateVerdict::kSkipped);
    REQUIRE(shard.core.snapshot_at(Round(1)));
    REQUIRE(shard.out.snapshots.size() == 1);
    CHECK(shard.out.snapshots[0].state.step == 0);
    CHECK(shard.out.snapshots[0].state.gate == decision_of(1, 0.0, GateVerdict::kSkipped).decision);
  }
  SUBCASE("copies of its pushes, questions about them and other rounds' decisions do not open it") {
    shard.push(1, 1, 3.0f);
    shard.core.on_query(peer_of(0), Query{Shard::key(0), Round(1)});
    shard.core.decide(decision_of(2, 0.5));
    RoundDecision other = decision_of(1, 0.5);
    other.view = ViewId(kView.value + 1);
    shard.core.decide(other);
    CHECK(shard.version() == 0);
    CHECK(shard.out.acks.size() == 4);
    CHECK(shard.out.rounds.size() == 1);
    shard.core.decide(decision_of(1, 1.0));
    CHECK(all_equal(shard.params(), 8.0f));
  }
}

TEST_CASE("facts go out when all chunks have theirs, and a decision steps them all") {
  Shard shard(gated(1, 3 * kChunk), 1.0f);
  shard.push(0, 1, 1.0f, 2);
  shard.push(0, 1, 1.0f, 0);
  CHECK(shard.out.rounds.empty());
  CHECK(shard.out.acks.size() == 2);  // the window is given back although nothing is answered
  shard.push(0, 1, std::numeric_limits<float>::infinity(), 1);
  REQUIRE(shard.out.rounds.size() == 1);
  REQUIRE(shard.out.rounds[0].chunks.size() == 3);
  CHECK(shard.out.rounds[0].chunks[0].facts.finite);
  CHECK_FALSE(shard.out.rounds[0].chunks[1].facts.finite);
  shard.core.decide(decision_of(1, 0.0, GateVerdict::kSkipped));
  for (std::uint32_t c = 0; c < 3; ++c) {
    CHECK(shard.version(c) == 1);
    CHECK(all_equal(shard.params(c), 1.0f));
  }
  CHECK(shard.out.answers.size() == 3);
}

TEST_CASE("a round without samples waits, too, and is void") {
  Shard shard(gated(), 4.0f);
  shard.push(0, 1, 5.0f, 0, 0);
  shard.push(1, 1, 5.0f, 0, 0);
  REQUIRE(shard.out.rounds.size() == 1);
  CHECK(shard.out.rounds[0].chunks[0].facts.weight == 0);
  RoundGate gate(*gated().gate, 1, Round(0));
  const auto reply = gate.on_facts(shard.out.rounds[0]);
  REQUIRE(reply->decision);
  shard.core.decide(*reply->decision);
  CHECK(shard.version() == 1);
  CHECK(all_equal(shard.params(), 4.0f));
}

TEST_CASE("a gate that takes nothing away leaves the bits that there are without one") {
  for (const char* encoding : {"fp32", "bf16"}) {
    ShardSetup plain = gated(3), with = gated(3);
    plain.gate.reset();
    plain.optimizer = with.optimizer = "adamw";
    plain.push = with.push = *parse_encoding(encoding);
    plain.pull = with.pull = *parse_encoding(encoding);
    Shard first(plain), second(with);
    RoundGate gate(*with.gate, 1, Round(0));
    first.init(1.5f);
    second.init(1.5f);
    for (std::uint64_t round = 1; round <= 5; ++round) {
      for (std::uint32_t node = 0; node < 3; ++node) {
        const float gradient = 0.1f * static_cast<float>(round) + 0.37f * static_cast<float>(node);
        first.push(node, round, gradient, 0, 5 + node);
        second.push(node, round, gradient, 0, 5 + node);
      }
      second.core.decide(*gate.on_facts(second.out.rounds.back())->decision);
    }
    CHECK(second.version() == 5);
    CHECK(std::ranges::equal(first.params(), second.params()));
  }
}

TEST_CASE("if there is no buffer for a sum the frames are kept, and the next question tries again") {
  ShardSetup setup = gated(2);
  setup.pool_blocks = 2;
  Shard shard(setup, 1.0f);
  BufferRef taken = shard.pool.acquire(kChunk * sizeof(float));
  REQUIRE(taken);
  shard.push(0, 1, 1.0f);
  shard.push(1, 1, 1.0f);
  CHECK(shard.out.rounds.empty());
  CHECK(shard.core.stats().starved == 1);
  CHECK(shard.core.stats().held_frames == 2);
  taken.reset();
  shard.core.on_query(peer_of(0), Query{Shard::key(0), Round(1)});
  REQUIRE(shard.out.rounds.size() == 1);
  shard.core.decide(decision_of(1, 1.0));
  CHECK(all_equal(shard.params(), 0.0f));
}

TEST_CASE("chunks that a view left a round behind take the decision that the others had") {
  ShardSetup setup = gated(1, 2 * kChunk);
  setup.recovers = true;
  Shard shard(setup, 8.0f);
  for (std::uint32_t c = 0; c < 2; ++c) shard.push(0, 1, 2.0f, c);
  shard.core.decide(decision_of(1, 1.0));
  // Round 2 is decided, but only one chunk has it when the view ends.
  Push push{Shard::key(0, 0), Round(2), 1, {}};
  push.redo = true;
  push.gate = decision_of(2, 0.5).decision;
  shard.core.on_push(peer_of(0), push, payload_of(frame_of(kChunk, 2.0f, {})));
  REQUIRE(shard.version(0) == 2);
  REQUIRE(shard.version(1) == 1);
  shard.core.stop(false, Round());
  const ShardJob next = in_view(shard.job(setup), ViewId(kView.value + 1));
  REQUIRE(shard.core.reopen(next));
  const auto known = required(shard.core.decided());
  CHECK(known.round == Round(2));
  CHECK(known.decided == decision_of(2, 0.5).decision);
  shard.out.clear();
  const auto key = [&](std::uint32_t chunk) { return ChunkKey{kJob, next.view->view, NodeRank(0), ChunkIndex(chunk)}; };
  shard.core.on_pull(peer_of(0), Pull{key(0), Version(1)});
  shard.core.on_pull(peer_of(0), Pull{key(1), Version(1)});
  REQUIRE(shard.out.answers.size() == 2);
  for (const auto& answer : shard.out.answers) {
    CHECK(answer.header.version == Version(1));
    CHECK(answer.header.gate == decision_of(1, 1.0).decision);
    CHECK(all_equal(answer.payload.floats(), 6.0f));
  }
  shard.core.on_push(peer_of(0), Push{key(1), Round(2), 1, {}}, payload_of(frame_of(kChunk, 2.0f, {})));
  CHECK(shard.version(1) == 2);
  CHECK(shard.out.rounds.empty());
  CHECK(all_equal(shard.params(1), 5.0f));
}

TEST_CASE("other nodes' pushes that are not finite are not applied, whatever was decided about their round") {
  ShardSetup setup = gated(1, 2 * kChunk);
  setup.recovers = true;
  Shard shard(setup, 8.0f);
  Push push{Shard::key(0, 0), Round(1), 1, {}};
  push.redo = true;
  push.gate = decision_of(1, 0.5).decision;
  shard.core.on_push(peer_of(0), push, payload_of(frame_of(kChunk, 2.0f, {})));
  REQUIRE(shard.version(0) == 1);
  shard.core.stop(false, Round());
  const ShardJob next =
      changed(in_view(shard.job(setup), ViewId(kView.value + 1)), [](ViewPlan& view, JobConfig&) { view.nodes = 2; });
  REQUIRE(shard.core.reopen(next));
  shard.out.clear();
  const auto other = [&](std::uint32_t node, float value) {
    const ChunkKey key{kJob, next.view->view, NodeRank(node), ChunkIndex(1)};
    shard.core.on_push(peer_of(node), Push{key, Round(1), 1, {}}, payload_of(frame_of(kChunk, value, {})));
  };
  other(0, 1.0f);
  other(1, std::numeric_limits<float>::infinity());
  CHECK(shard.version(1) == 1);
  CHECK(all_equal(shard.params(1), 8.0f));
  REQUIRE(shard.out.answers.size() == 2);
  CHECK(shard.out.answers[0].header.gate == decision_of(1, 0.5).decision);
  CHECK(shard.core.stats().held_frames == 0);
}

TEST_CASE("rounds that are pushed again bring what was decided about them") {
  ShardSetup setup = gated(2);
  setup.recovers = true;
  Shard shard(setup, 10.0f);
  const auto redo = [&](std::uint32_t node, std::uint64_t round, const GateDecision& decision) {
    Push push{Shard::key(node), Round(round), 1, {}};
    push.redo = true;
    push.gate = decision;
    shard.core.on_push(peer_of(node), push, payload_of(frame_of(kChunk, 2.0f, {})));
  };
  redo(0, 1, {});
  REQUIRE(shard.out.errors.size() == 1);
  CHECK(shard.out.errors[0].second.code == ErrorCode::kMalformed);
  for (std::uint32_t node = 0; node < 2; ++node) redo(node, 1, decision_of(1, 0.5).decision);
  CHECK(all_equal(shard.params(), 9.0f));
  for (std::uint32_t node = 0; node < 2; ++node) redo(node, 2, decision_of(2, 0.0, GateVerdict::kSkipped).decision);
  CHECK(shard.version() == 2);
  CHECK(all_equal(shard.params(), 9.0f));
  CHECK(shard.out.rounds.empty());
  // Then the open round, whose facts say what was decided before.
  for (std::uint32_t node = 0; node < 2; ++node) shard.push(node, 3, 2.0f);
  REQUIRE(shard.out.rounds.size() == 1);
  CHECK(shard.out.rounds[0].before.verdict == GateVerdict::kSkipped);
}

TEST_CASE("a restored chunk goes on with the loss scale that it was kept with") {
  ShardSetup setup = gated(1);
  setup.gate->loss_scale = "dynamic";
  Shard shard(setup);
  const std::vector<float> params(kChunk, 2.0f);
  const GateDecision kept{GateVerdict::kApplied, 0.5, 1.0, 256.0f, 17};
  ChunkState state = state_at(6, params);
  state.step = 5;
  state.gate = kept;
  REQUIRE(shard.core.restore(ChunkIndex(0), state));
  shard.core.on_pull(peer_of(0), Pull{Shard::key(0), Version(6)});
  REQUIRE(shard.out.answers.size() == 1);
  CHECK(shard.out.answers[0].header.gate == kept);
  shard.push(0, 7, 256.0f);
  REQUIRE(shard.out.rounds.size() == 1);
  RoundGate gate(*setup.gate, 1, Round(6));
  const auto reply = gate.on_facts(shard.out.rounds[0]);
  REQUIRE(reply->decision);
  CHECK(reply->decision->decision.good_rounds == 18);
  shard.core.decide(*reply->decision);
  CHECK(all_equal(shard.params(), 1.0f));  // 2 - 256 / 256
}

}  // namespace tributary::shard_gate_test
