// The gate's arithmetic, and the class that decides.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "common/base/layout.h"
#include "common/config/gate_rules.h"
#include "server/coordinator/round/round_gate.h"
#include "tests/unit/expect.h"
#include "tests/unit/required.h"

namespace tributary::round_gate_test {
namespace {

GateConfig clipping(double norm) {
  GateConfig config;
  config.clip_norm = norm;
  return config;
}

GateConfig scaled(const char* scale) {
  GateConfig config;
  config.loss_scale = scale;
  config.init_scale = 1024.0;
  config.growth_interval = 3;
  return config;
}

GateFacts facts_of(double squares, std::uint64_t weight = 1, bool finite = true) {
  return {squares, weight, finite};
}

std::vector<float> random_values(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

RoundFacts told(std::uint64_t round, std::vector<ChunkFacts> chunks) {
  RoundFacts m;
  m.job = JobId(7);
  m.view = ViewId(2);
  m.round = Round(round);
  m.before = first_gate_state({});
  m.chunks = std::move(chunks);
  return m;
}

ChunkFacts chunk(std::uint32_t index, double squares, std::uint64_t weight = 1) {
  return {ChunkIndex(index), facts_of(squares, weight)};
}

}  // namespace

TEST_CASE("a total in tree order does not depend on where powers of two are cut") {
  std::mt19937_64 random(1);
  for (const std::size_t count : {1u, 2u, 7u, 8u, 13u, 64u, 100u}) {
    std::vector<double> terms(count);
    for (double& term : terms) term = std::ldexp(static_cast<double>(random() >> 11), -static_cast<int>(random() % 60));
    TreeTotal whole;
    for (const double term : terms) whole.add(term);
    double plain = 0.0;
    for (const double term : terms) plain += term;
    CHECK(whole.total() == doctest::Approx(plain).epsilon(1e-12));
    for (const std::size_t cut : {1u, 2u, 4u, 16u}) {
      TreeTotal parts;
      for (std::size_t first = 0; first < count; first += cut) {
        TreeTotal part;
        for (std::size_t i = first; i < std::min(first + cut, count); ++i) part.add(terms[i]);
        parts.add(part.total());
      }
      CHECK(parts.total() == whole.total());
    }
    TreeTotal later(5), padded;
    for (int i = 0; i < 5; ++i) padded.add(0.0);
    for (const double term : terms) later.add(term), padded.add(term);
    CHECK(later.total() == padded.total());
  }
}

TEST_CASE("facts of a sum are its squared norm and whether all of it is finite") {
  std::vector<float> values = random_values(5000, 3);
  double squares = 0.0;
  for (const float value : values) squares += static_cast<double>(value) * value;
  const GateFacts facts = gate_facts(values, 9);
  CHECK(facts.sum_squares == doctest::Approx(squares).epsilon(1e-12));
  CHECK(facts.weight == 9);
  CHECK(facts.finite);
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    values[4999] = bad;
    CHECK_FALSE(gate_facts(values, 9).finite);
  }
}

TEST_CASE("the decision is the same however the flat space is cut into chunks of powers of two") {
  const std::vector<float> values = random_values(40'000, 5);
  std::vector<GateDecision> decisions;
  for (const std::size_t chunk : {1024u, 2048u, 8192u, 32768u, 65536u}) {
    std::vector<GateFacts> facts;
    for (std::size_t first = 0; first < values.size(); first += chunk) {
      facts.push_back(gate_facts(std::span(values).subspan(first, std::min(chunk, values.size() - first)), 64));
    }
    decisions.push_back(decide_gate(clipping(0.5), first_gate_state({}), facts));
  }
  for (const GateDecision& decision : decisions) CHECK(decision == decisions.front());
  CHECK(decisions.front().verdict == GateVerdict::kClipped);
}

TEST_CASE("clipping has the formula of torch's clip_grad_norm_, about the mean gradient") {
  const GateDecision free =
      decide_gate(clipping(10.0), first_gate_state({}), std::vector{facts_of(9.0), facts_of(16.0)});
  CHECK(free.verdict == GateVerdict::kApplied);
  CHECK(free.norm == 5.0);
  CHECK(free.coefficient == 1.0);
  const GateDecision clipped =
      decide_gate(clipping(2.0), first_gate_state({}), std::vector{facts_of(900.0, 10), facts_of(1600.0, 10)});
  CHECK(clipped.verdict == GateVerdict::kClipped);
  CHECK(clipped.norm == 5.0);
  CHECK(clipped.coefficient == 2.0 / (5.0 + 1e-6));
  CHECK(gate_scale(clipped, 10) == static_cast<float>(2.0 / (5.0 + 1e-6) / 10.0));
  // Exactly at the bound torch, too, takes a little off.
  CHECK(decide_gate(clipping(5.0), first_gate_state({}), std::vector{facts_of(25.0)}).verdict == GateVerdict::kClipped);
}

TEST_CASE("chunks with weights of their own count by their means") {
  const GateDecision decision =
      decide_gate(clipping(100.0), first_gate_state({}), std::vector{facts_of(36.0, 2), facts_of(16.0, 1)});
  CHECK(decision.norm == 5.0);
}

TEST_CASE("a scale is taken out before the norm is looked at, exactly") {
  GateConfig config = scaled("1024");
  config.clip_norm = 10.0;
  const GateDecision first = first_gate_state(config);
  CHECK(first.loss_scale == 1024.0f);
  const GateDecision decision = decide_gate(config, first, std::vector{facts_of(25.0 * 1024.0 * 1024.0)});
  CHECK(decision.norm == 5.0);
  CHECK(decision.coefficient == 1.0 / 1024.0);
  CHECK(decision.loss_scale == 1024.0f);
  // A scale that is not dynamic stays, whatever happens.
  const GateDecision skipped = decide_gate(config, decision, std::vector{facts_of(0.0, 1, false)});
  CHECK(skipped.verdict == GateVerdict::kSkipped);
  CHECK(skipped.loss_scale == 1024.0f);
}

TEST_CASE("a dynamic scale backs off when a round is skipped and grows after as many good ones as it should") {
  const GateConfig config = scaled("dynamic");
  GateDecision state = first_gate_state(config);
  const auto good = [&] { state = decide_gate(config, state, std::vector{facts_of(1.0)}); };
  const auto bad = [&] { state = decide_gate(config, state, std::vector{facts_of(1.0), facts_of(1.0, 1, false)}); };
  good(), good();
  CHECK(state.loss_scale == 1024.0f);
  CHECK(state.good_rounds == 2);
  good();
  CHECK(state.loss_scale == 2048.0f);
  CHECK(state.good_rounds == 0);
  CHECK(state.coefficient == 1.0 / 1024.0);  // of the scale that this round had
  good(), bad();
  CHECK(state.verdict == GateVerdict::kSkipped);
  CHECK_FALSE(state.applies());
  CHECK(state.loss_scale == 1024.0f);
  CHECK(state.good_rounds == 0);
  bad();
  CHECK(state.loss_scale == 512.0f);
  // A round without samples is neither.
  state = decide_gate(config, state, std::vector{facts_of(0.0, 0, false)});
  CHECK(state.verdict == GateVerdict::kVoid);
  CHECK(state.loss_scale == 512.0f);
  for (int i = 0; i < 500; ++i) bad();
  CHECK(state.loss_scale == kMinLossScale);
  for (int i = 0; i < 2000; ++i) good();
  CHECK(state.loss_scale == kMaxLossScale);
}

TEST_CASE("the gate decides when all chunks' facts are there, in any order, once") {
  RoundGate gate(clipping(1.0), 3, Round(0));
  CHECK_FALSE(gate.on_facts(told(1, {chunk(2, 16.0)}))->decision);
  CHECK_FALSE(gate.on_facts(told(1, {chunk(2, 16.0)}))->decision);  // a second copy counts once
  CHECK_FALSE(gate.on_facts(told(1, {chunk(0, 9.0)}))->decision);
  const auto reply = gate.on_facts(told(1, {chunk(1, 0.0)}));
  REQUIRE(reply->decision);
  CHECK(reply->for_all);
  CHECK(reply->decision->round == Round(1));
  CHECK(reply->decision->decision.norm == 5.0);
  RoundGate other(clipping(1.0), 3, Round(0));
  const auto same = other.on_facts(told(1, {chunk(0, 9.0), chunk(1, 0.0), chunk(2, 16.0)}));
  CHECK(same->decision->decision == reply->decision->decision);
  SUBCASE("who asks again is told again, alone") {
    const auto again = gate.on_facts(told(1, {chunk(2, 77.0)}));
    REQUIRE(again->decision);
    CHECK_FALSE(again->for_all);
    CHECK(again->decision->decision == reply->decision->decision);
  }
  SUBCASE("late facts of an older round change nothing") {
    CHECK_FALSE(gate.on_facts(told(2, {chunk(0, 1.0), chunk(1, 1.0)}))->decision);
    CHECK_FALSE(gate.on_facts(told(0, {chunk(2, 1.0)}))->decision);
    CHECK(gate.on_facts(told(1, {chunk(2, 1.0)}))->decision->round == Round(1));
    REQUIRE(gate.on_facts(told(2, {chunk(2, 2.0)}))->decision);
    CHECK(gate.decided().norm == 2.0);
  }
}

TEST_CASE("a round that somebody has already is not decided again") {
  RoundGate gate(clipping(1.0), 2, Round(3));
  RoundFacts known = told(4, {});
  known.decided = GateDecision{GateVerdict::kClipped, 0.25, 4.0, 1.0f, 0};
  SUBCASE("told before others ask") {
    CHECK_FALSE(gate.on_facts(known)->decision);
    const auto reply = gate.on_facts(told(4, {chunk(1, 100.0)}));
    REQUIRE(reply->decision);
    CHECK_FALSE(reply->for_all);
    CHECK(reply->decision->decision == known.decided);
  }
  SUBCASE("told after others have asked") {
    CHECK_FALSE(gate.on_facts(told(4, {chunk(1, 100.0)}))->decision);
    const auto reply = gate.on_facts(known);
    REQUIRE(reply->decision);
    CHECK(reply->for_all);
    CHECK(reply->decision->decision == known.decided);
  }
  // Told of an older one, it knows better.
  known.round = Round(3);
  known.decided.coefficient = 0.5;
  CHECK_FALSE(gate.on_facts(known)->decision);
  CHECK(gate.decided().coefficient != 0.5);
  REQUIRE_FALSE(gate.on_facts(told(5, {chunk(0, 0.0)}))->decision);
  CHECK(gate.on_facts(told(5, {chunk(1, 0.0)}))->decision->round == Round(5));
}

TEST_CASE("a server can neither decide rounds that are not open, nor keep the others' facts out") {
  RoundGate gate(clipping(1.0), 2, Round(5));
  for (const std::uint64_t round : {7ull, 8ull, ~0ull}) {
    RoundFacts said = told(round, {chunk(0, 1.0)});
    SUBCASE("by facts") {}
    SUBCASE("by what it says was decided") {
      said.decided = GateDecision{GateVerdict::kSkipped, 0.25, 4.0, 1.0f, 0};
    }
    const auto refused = failure_of(gate.on_facts(said));
    CHECK(refused.code == ErrorCode::kMalformed);
    CHECK(testing::contains(refused.message, "round 6 is the next to be decided"));
  }
  REQUIRE_FALSE(gate.on_facts(told(6, {chunk(0, 1.0)}))->decision);
  CHECK(gate.on_facts(told(6, {chunk(1, 1.0)}))->decision->round == Round(6));
  CHECK(gate.on_facts(told(7, {chunk(0, 1.0)})));
  CHECK_FALSE(gate.on_facts(told(8, {chunk(0, 1.0)})));
}

TEST_CASE("facts of chunks that a job does not have are refused") {
  RoundGate gate(clipping(1.0), 2, Round(0));
  const auto refused = failure_of(gate.on_facts(told(1, {chunk(2, 1.0)})));
  CHECK(refused.code == ErrorCode::kMalformed);
}

}  // namespace tributary::round_gate_test
