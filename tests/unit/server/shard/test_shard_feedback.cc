// Error feedback and delta encodings on a shard: residuals and estimates are state, and part of snapshots.
#include <doctest/doctest.h>

#include <cstring>

#include "tests/unit/server/shard/core_fixture.h"

namespace tributary::testing::shard_feedback_test {
namespace {

constexpr std::size_t kValues = kChunk * sizeof(float);

std::vector<std::byte> bytes_of(const std::vector<float>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(float));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

// A push with a residual of `left` everywhere behind its frame.
std::vector<std::byte> with_residual(float gradient, float left, EncodingSpec spec) {
  std::vector<std::byte> payload = frame_of(kChunk, gradient, spec);
  payload.resize(residual_offset(payload.size()));
  const auto residual = bytes_of(std::vector<float>(kChunk, left));
  payload.insert(payload.end(), residual.begin(), residual.end());
  return payload;
}

void push_with(Shard& shard, std::uint32_t node, std::uint64_t round, float left, std::uint32_t chunk = 0) {
  Push push{Shard::key(node, chunk), Round(round), 1, shard.core.job().plan().config.push.id, ResidualUse::kBehind};
  shard.core.on_push(peer_of(node), push, payload_of(with_residual(0.5f, left, shard.core.job().plan().config.push)));
}

void residual_alone(Shard& shard, std::uint32_t node, std::uint64_t round, float left, std::uint32_t chunk = 0) {
  Push push{Shard::key(node, chunk), Round(round), 0, shard.core.job().plan().config.push.id, ResidualUse::kAlone};
  shard.core.on_push(peer_of(node), push, payload_of(bytes_of(std::vector<float>(kChunk, left))));
}

bool holds(const NodeResidual& held, std::uint32_t node, float left) {
  return held.node == node && std::ranges::equal(held.bytes(), bytes_of(std::vector<float>(kChunk, left)));
}

const ShardSetup kInt8Pair{.nodes = 2, .push = EncodingId::kInt8};

TEST_CASE("answers name the next snapshot, its pushes bring their residuals, and the snapshot has them by node") {
  Shard shard(kInt8Pair, 1.0f);
  CHECK_FALSE(shard.core.snapshot_at(Round(1)));  // the nodes have their first parameters and may push at any moment
  REQUIRE(shard.core.snapshot_at(Round(2)));
  shard.push(0, 1, 0.5f);
  shard.push(1, 1, 0.5f);
  REQUIRE(shard.out.answers.size() == 2);
  for (const auto& sent : shard.out.answers) CHECK(sent.header.snapshot_round == Round(2));
  push_with(shard, 1, 2, 0.25f);
  push_with(shard, 0, 2, 0.125f);
  REQUIRE(shard.out.snapshots.size() == 1);
  const ChunkSnapshot& snapshot = shard.out.snapshots[0];
  CHECK(snapshot.state.nodes == 2);
  REQUIRE(snapshot.state.residuals.size() == 2);
  CHECK(holds(snapshot.state.residuals[0], 0, 0.125f));
  CHECK(holds(snapshot.state.residuals[1], 1, 0.25f));
  CHECK(shard.out.errors.empty());
}

TEST_CASE("a push of a snapshot's round without its residual is refused, and the right one is taken afterwards") {
  Shard shard({.push = EncodingId::kOneBit}, 1.0f);
  REQUIRE(shard.core.snapshot_at(Round(2)));
  shard.push(0, 1, 0.5f);
  shard.push(0, 2, 0.5f);
  REQUIRE(shard.out.errors.size() == 1);
  CHECK(shard.out.errors[0].second.code == ErrorCode::kMalformed);
  CHECK(contains(shard.out.errors[0].second.message, "lacks the residual"));
  CHECK(shard.version() == 1);
  push_with(shard, 0, 2, 0.5f);
  CHECK(shard.version() == 2);
  CHECK(shard.out.snapshots.size() == 1);
}

TEST_CASE("residuals of another length, of encodings without any, or of another round are refused") {
  Shard int8(kInt8Pair, 1.0f);
  Push push{Shard::key(0), Round(1), 1, EncodingId::kInt8, ResidualUse::kBehind};
  int8.core.on_push(peer_of(0), push, payload_of(frame_of(kChunk, 1.0f, EncodingId::kInt8)));
  REQUIRE(int8.out.errors.size() == 1);
  CHECK(int8.out.errors[0].second.code == ErrorCode::kWrongLength);
  residual_alone(int8, 0, 1, 0.5f);
  REQUIRE(int8.out.errors.size() == 2);
  CHECK(int8.out.errors[1].second.code == ErrorCode::kWrongRound);
  CHECK(contains(int8.out.errors[1].second.message, "version 0"));

  Shard plain;
  plain.init(1.0f);
  push_with(plain, 0, 1, 0.5f);
  REQUIRE(plain.out.errors.size() == 1);
  CHECK(plain.out.errors[0].second.code == ErrorCode::kConfigMismatch);
  CHECK(contains(plain.out.errors[0].second.message, "fp32 keeps none"));
  CHECK(plain.version() == 0);
}

TEST_CASE("a top-k frame that contradicts itself is refused and nobody else notices") {
  Shard shard({.nodes = 2, .push = *parse_encoding("topk:0.01")}, 1.0f);
  auto frame = frame_of(kChunk, 1.0f, shard.core.job().plan().config.push);
  frame[0] ^= std::byte{1};
  shard.core.on_push(peer_of(0), Push{Shard::key(0), Round(1), 1, EncodingId::kTopK}, payload_of(frame));
  REQUIRE(shard.out.errors.size() == 1);
  CHECK(shard.out.errors[0].second.code == ErrorCode::kMalformed);
  CHECK(contains(shard.out.errors[0].second.message, "topk:0.01"));
  shard.push(0, 1, 1.0f);
  shard.push(1, 1, 1.0f);
  CHECK(shard.version() == 1);
}

TEST_CASE("a stop waits until every node has sent the residuals of all its chunks") {
  Shard shard({.elements = 2 * kChunk, .nodes = 2, .push = EncodingId::kInt8}, 1.0f);
  for (std::uint32_t chunk = 0; chunk < 2; ++chunk) {
    shard.push(0, 1, 0.5f, chunk);
    shard.push(1, 1, 0.5f, chunk);
  }
  residual_alone(shard, 0, 1, 0.1f, 0);  // before the stop is known here
  CHECK(shard.out.acks.back().second.residual_kept);
  CHECK(shard.core.stop(true, Round(1)));
  CHECK(shard.core.keeping());
  residual_alone(shard, 1, 1, 0.2f, 0);
  residual_alone(shard, 0, 1, 0.3f, 1);
  residual_alone(shard, 0, 1, 0.3f, 1);  // twice
  CHECK(shard.core.keeping());
  CHECK(shard.out.snapshots.empty());
  residual_alone(shard, 1, 1, 0.4f, 1);
  CHECK_FALSE(shard.core.keeping());
  REQUIRE(shard.out.snapshots.size() == 2);
  REQUIRE(shard.out.snapshots[1].state.residuals.size() == 2);
  CHECK(holds(shard.out.snapshots[0].state.residuals[1], 1, 0.2f));
  CHECK(holds(shard.out.snapshots[1].state.residuals[0], 0, 0.3f));
}

TEST_CASE("a resumed node gets its residual before the parameters, and another number of nodes their sum") {
  const std::vector<float> b(kChunk, 0.5f);
  ChunkState kept = state_at(7, std::vector<float>(kChunk, 1.0f));
  kept.nodes = 2;
  kept.residuals = {NodeResidual::of(0, array_of(std::vector<float>(kChunk, 0.25f))), NodeResidual::of(1, array_of(b))};
  Shard same(kInt8Pair);
  REQUIRE(same.core.restore(ChunkIndex(0), kept));
  same.core.on_pull(peer_of(1), Pull{Shard::key(1)});
  REQUIRE(same.out.residuals.size() == 1);
  CHECK(same.out.residuals[0].to == peer_of(1));
  CHECK(same.out.residuals[0].header.version == Version(7));
  CHECK(same.out.residuals[0].values == bytes_of(b));
  REQUIRE(same.out.answers.size() == 1);
  CHECK(same.out.answers[0].header.residual_sent);
  // A residual is of no use once its round is complete.
  same.push(0, 8, 0.5f);
  same.push(1, 8, 0.5f);
  same.out.clear();
  same.core.on_pull(peer_of(1), Pull{Shard::key(1)});
  CHECK(same.out.residuals.empty());
  CHECK_FALSE(same.out.answers.back().header.residual_sent);

  Shard fewer({.nodes = 1, .push = EncodingId::kInt8});
  REQUIRE(fewer.core.restore(ChunkIndex(0), kept));
  fewer.core.on_pull(peer_of(0), Pull{Shard::key(0)});
  REQUIRE(fewer.out.residuals.size() == 1);
  CHECK(fewer.out.residuals[0].values == bytes_of(std::vector<float>(kChunk, 0.75f)));
}

TEST_CASE("a job that is resumed and stopped at once keeps the residuals it was resumed with") {
  ChunkState kept = state_at(7, std::vector<float>(kChunk, 1.0f));
  kept.nodes = 1;
  kept.residuals = {NodeResidual::of(0, array_of(std::vector<float>(kChunk, 0.25f)))};
  Shard shard({.nodes = 1, .push = EncodingId::kInt8});
  REQUIRE(shard.core.restore(ChunkIndex(0), kept));
  CHECK(shard.core.stop(true, Round(7)));
  CHECK_FALSE(shard.core.keeping());
  REQUIRE(shard.out.snapshots.size() == 1);
  REQUIRE(shard.out.snapshots[0].state.residuals.size() == 1);
  CHECK(holds(shard.out.snapshots[0].state.residuals[0], 0, 0.25f));
}

TEST_CASE("with a delta encoding pulls are answered with the estimate and rounds with its change") {
  Shard shard({.nodes = 1, .pull = EncodingId::kInt8Delta}, 1.0f);
  shard.core.on_pull(peer_of(0), Pull{Shard::key(0)});
  REQUIRE(shard.out.answers.size() == 1);
  CHECK(shard.out.answers[0].header.encoding == EncodingId::kFp32);
  CHECK(all_equal(shard.out.answers[0].payload.floats(), 1.0f));
  const BufferRef first = shard.out.answers[0].payload;  // still being sent
  const auto encoding = make_encoding(EncodingId::kInt8Delta);
  std::vector<float> seen(kChunk, 1.0f);
  for (std::uint64_t round = 1; round <= 3; ++round) {
    shard.push(0, round, 0.3f * static_cast<float>(round));
    const auto& sent = shard.out.answers.back();
    REQUIRE(sent.header.encoding == EncodingId::kInt8Delta);
    REQUIRE(sent.payload.size() == encoding->bytes(kChunk));
    encoding->apply(sent.payload.data(), kChunk, seen.data());
  }
  CHECK(all_equal(first.floats(), 1.0f));
  shard.core.on_pull(peer_of(0), Pull{Shard::key(0)});
  CHECK(std::ranges::equal(shard.out.answers.back().payload.floats(), seen));
  for (std::size_t i = 0; i < kChunk; ++i) REQUIRE(seen[i] == doctest::Approx(shard.params()[i]).epsilon(1e-3));
}

TEST_CASE("a round without samples sends no change, even while the last change is still being sent") {
  Shard shard({.nodes = 1, .pull = EncodingId::kInt8Delta}, 1.0f);
  shard.push(0, 1, 0.5f);
  const BufferRef change = shard.out.answers.back().payload;
  const std::vector<std::byte> copy(change.bytes().begin(), change.bytes().end());
  shard.push(0, 2, 0.5f, 0, 0);
  CHECK(shard.version() == 2);
  std::vector<float> seen(kChunk, 3.0f);
  make_encoding(EncodingId::kInt8Delta)->apply(shard.out.answers.back().payload.data(), kChunk, seen.data());
  CHECK(all_equal(seen, 3.0f));
  CHECK(std::ranges::equal(change.bytes(), copy));
}

TEST_CASE("a delta job that is restored goes on with the same bits as one that never stopped") {
  const ShardSetup setup{.optimizer = "adam", .lr = 0.01, .pull = EncodingId::kInt8Delta};
  Shard whole(setup), first(setup), second(setup);
  for (Shard* shard : {&whole, &first}) {
    shard->init(1.0f);
    for (std::uint64_t r = 1; r <= 3; ++r) shard->push(0, r, 0.1f * static_cast<float>(r));
  }
  REQUIRE(first.core.stop(true, Round(3)));
  const ChunkSnapshot& s = first.out.snapshots.at(0);
  REQUIRE(static_cast<bool>(s.state.estimate));
  REQUIRE(second.core.restore(s.chunk, s.state));
  whole.push(0, 4, 0.7f);
  second.push(0, 4, 0.7f);
  CHECK(std::ranges::equal(whole.params(), second.params()));
  CHECK(std::ranges::equal(whole.out.answers.back().payload.bytes(), second.out.answers.back().payload.bytes()));
}

TEST_CASE("the estimate of a snapshot does not change under its reader") {
  Shard shard({.optimizer = "adam", .pull = EncodingId::kInt8Delta}, 1.0f);
  REQUIRE(shard.core.snapshot_at(Round(1)));
  shard.push(0, 1, 0.5f);
  REQUIRE(shard.out.snapshots.size() == 1);
  const auto held = shard.out.snapshots[0].state.estimate.floats();
  const std::vector<float> before(held.begin(), held.end());
  shard.push(0, 2, -3.0f);
  CHECK(std::ranges::equal(held, before));
}

}  // namespace
}  // namespace tributary::testing::shard_feedback_test
