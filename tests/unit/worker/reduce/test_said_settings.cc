// Trainers' settings of a step, on their way: node gather, ring, push, shard.
#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

#include "common/wire/codec.h"
#include "tests/unit/required.h"
#include "tests/unit/server/shard/core_fixture.h"
#include "worker/reduce/node_gather.h"
#include "worker/reduce/redo_ring.h"

namespace tributary::said_settings_test {

using namespace testing;

namespace {

std::shared_ptr<const Layout> two_groups() {
  return std::make_shared<const Layout>(*Layout::unowned({{"a", {500}}, {"b", {500}, 1}, {"c", {600}}}, kChunk));
}

void push(Shard& shard, std::uint32_t node, std::uint64_t round, const HeldSettings& settings, bool redo = false) {
  Push said{Shard::key(node), Round(round), 1, EncodingId::kFp32};
  said.settings = settings;
  said.redo = redo;
  shard.core.on_push(peer_of(node), said, payload_of(frame_of(kChunk, 1.0f)));
}

}  // namespace

TEST_CASE("a chunk has settings of each group in it, that of all ranks, until its next round") {
  LaneChunks chunks(two_groups(), Round(0));
  NodeGather gather(chunks, 2);
  std::vector<LaneChunk*> done;
  const auto ready = [&](std::uint32_t rank, std::size_t tensor, std::uint64_t round, double rate) {
    return gather.on_tensor(rank, tensor, Round(round), 1, {.lr = rate}, done);
  };
  for (LaneChunk& chunk : chunks) NodeGather::answered(chunk);
  for (const std::uint32_t rank : {1u, 0u}) {
    CHECK(ready(rank, 2, 1, 0.5));
    CHECK(ready(rank, 1, 1, 0.25));
    CHECK(ready(rank, 0, 1, 0.5));
  }
  REQUIRE(done.size() == 2);
  for (const LaneChunk* each : done) {
    std::vector<StepSettings> expected{{.lr = 0.5}};
    if (each->index == ChunkIndex(0)) expected.push_back({.lr = 0.25});
    CHECK(std::ranges::equal(each->gradient.settings, expected));
  }
  // A round in which nobody says any: as the job has them.
  for (LaneChunk& chunk : chunks) NodeGather::answered(chunk);
  done.clear();
  for (const std::uint32_t rank : {1u, 0u}) {
    for (const std::size_t tensor : {0, 1, 2}) CHECK(ready(rank, tensor, 2, StepSettings::kConfigured));
  }
  REQUIRE(done.size() == 2);
  CHECK(done[0]->gradient.settings.empty());
  CHECK(done[1]->gradient.settings.empty());
}

TEST_CASE("ranks that say different settings are told who, what and in which round") {
  const auto refusal = [](const StepSettings& first, const StepSettings& second) {
    LaneChunks chunks(two_groups(), Round(0));
    NodeGather gather(chunks, 2);
    for (LaneChunk& chunk : chunks) NodeGather::answered(chunk);
    std::vector<LaneChunk*> done;
    Status status = gather.on_tensor(0, 0, Round(1), 1, first, done);
    if (status) status = gather.on_tensor(1, 0, Round(1), 1, second, done);
    return status ? std::string("(accepted)") : status.error().message;
  };
  const StepSettings half{.lr = 0.5, .weight_decay = 0.25, .momentum = 0.75};
  CHECK(refusal(half, half) == "(accepted)");
  const std::string differs = refusal({.lr = 0.5}, {.lr = 0.25});
  CHECK(contains(differs, "local rank 1, tensor 'a'"));
  CHECK(contains(differs, "lr 0.25 in round 1 differs from lr 0.5"));
  CHECK(contains(differs, "group 0"));
  CHECK(contains(refusal({.lr = 0.5}, {}), "nothing in round 1"));
  CHECK(contains(refusal(half, {.lr = 0.5, .weight_decay = 0.25}), "from lr 0.5, weight_decay 0.25, momentum 0.75"));
  for (const double wrong : {-0.5, std::nan(""), HUGE_VAL}) {
    CHECK(contains(refusal({.lr = wrong}, {}), "a finite number from 0 on"));
    CHECK(contains(refusal({.weight_decay = wrong}, {}), "a finite number from 0 on"));
    CHECK(contains(refusal({.momentum = wrong}, {}), "a finite number from 0 on"));
  }
}

TEST_CASE("the ring keeps a round's settings, and a round that says none has none") {
  const auto layout = two_groups();
  const auto ring = *RedoRing::create(JobId(1), NodeRank(0), *layout, EncodingId::kFp32, 3);
  for (std::uint64_t round = 1; round <= 8; ++round) {
    const auto said = [](std::uint64_t in) {
      return std::vector<StepSettings>{{.lr = 0.5 / static_cast<double>(in)}, {.weight_decay = 0.25, .momentum = 0.5}};
    };
    const std::vector<StepSettings> settings = said(round);
    const bool says = round % 3 != 0;
    ring->frame(ChunkIndex(0), Round(round));
    CHECK_FALSE(ring->find(ChunkIndex(0), Round(round)));
    ring->publish(ChunkIndex(0), Round(round), 7, says ? SaidSettings(settings) : SaidSettings());
    const auto kept = required(ring->find(ChunkIndex(0), Round(round)));
    CHECK(std::ranges::equal(kept.settings, says ? SaidSettings(settings) : SaidSettings()));
    if (round >= 2 && round % 3 != 1) {
      CHECK(std::ranges::equal(ring->find(ChunkIndex(0), Round(round - 1))->settings, said(round - 1)));
    }
  }
}

TEST_CASE("a push carries settings of up to as many steps as there can be groups") {
  alignas(8) std::byte out[kMaxErrorHeader];
  for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{kMaxGroups}}) {
    Push said{Shard::key(1), Round(9), 32, EncodingId::kFp32};
    for (std::size_t i = 0; i < count; ++i) {
      const double value = std::ldexp(1.0, -static_cast<int>(i));
      said.settings.push_back({.lr = value, .weight_decay = 3 * value, .momentum = 5 * value});
    }
    const auto back = required(decode_data(encode_data(said, out)));
    CHECK(std::get<Push>(back).settings == said.settings);
    CHECK(std::get<Push>(back).weight == 32);
  }
  Push too_many{Shard::key(1), Round(9), 32, EncodingId::kFp32};
  too_many.settings.assign(kMaxGroups + 1, {.lr = 0.5});
  const auto refused = decode_data(encode_data(too_many, out));
  REQUIRE_FALSE(refused);
  CHECK(contains(refused.error().message, "the settings of steps"));
}

TEST_CASE("a round is stepped at the rate that its pushes say, and at the schedule's if they say none") {
  Shard shard({.nodes = 2, .lr = 1.0});
  shard.init(10.0f);
  for (const std::uint32_t node : {0u, 1u}) push(shard, node, 1, {{.lr = 0.5}});
  CHECK(all_equal(shard.params(), 9.5f));
  for (const std::uint32_t node : {0u, 1u}) push(shard, node, 2, {});
  CHECK(all_equal(shard.params(), 8.5f));
  for (const std::uint32_t node : {0u, 1u}) push(shard, node, 3, {{.lr = 0.0}}, true);
  CHECK(shard.version() == 3);
  CHECK(all_equal(shard.params(), 8.5f));
}

TEST_CASE("a round's step decays weights, and has the momentum, as its pushes say") {
  Shard shard({.nodes = 1, .lr = 1.0});
  shard.init(8.0f);
  push(shard, 0, 1, {{.lr = 0.5, .weight_decay = 0.25}});
  CHECK(all_equal(shard.params(), 8.0f - 0.5f * (1.0f + 0.25f * 8.0f)));
  push(shard, 0, 2, {});
  CHECK(all_equal(shard.params(), 5.5f));

  Shard heavy({.nodes = 1, .options = {{"momentum", 0.5}}, .lr = 1.0});
  heavy.init(8.0f);
  push(heavy, 0, 1, {});
  push(heavy, 0, 2, {{.momentum = 0.75}});
  CHECK(all_equal(heavy.params(), 7.0f - (0.75f + 1.0f)));
  push(heavy, 0, 3, {});
  CHECK(all_equal(heavy.params(), 5.25f - (0.5f * 1.75f + 1.0f)));
}

TEST_CASE("nodes that say different settings are told so by the server, and the round waits for the right ones") {
  Shard shard({.nodes = 2});
  shard.init(10.0f);
  push(shard, 1, 1, {{.lr = 0.5}});
  push(shard, 0, 1, {{.lr = 0.25}});
  REQUIRE(shard.out.errors.size() == 1);
  CHECK(shard.out.errors[0].first == peer_of(0));
  CHECK(shard.out.errors[0].second.code == ErrorCode::kConfigMismatch);
  CHECK(contains(shard.out.errors[0].second.message, "'s lr 0.25 differs from node 1's lr 0.5"));
  push(shard, 0, 1, {});
  REQUIRE(shard.out.errors.size() == 2);
  CHECK(contains(shard.out.errors[1].second.message, "'s nothing differs"));
  push(shard, 0, 1, {{.lr = 0.5, .weight_decay = 0.1}});
  REQUIRE(shard.out.errors.size() == 3);
  push(shard, 0, 1, {{.lr = 0.5}});
  CHECK(shard.version() == 1);
}

TEST_CASE("settings that cannot be are refused") {
  Shard shard({.nodes = 1});
  shard.init(10.0f);
  const std::vector<HeldSettings> wrong = {
      {{.lr = 0.5}, {.lr = 0.5}},   {{.lr = -0.5}},      {{.lr = std::nan("")}},
      {{.weight_decay = HUGE_VAL}}, {{.momentum = 0.5}},  // this optimizer has no room for it
  };
  for (const HeldSettings& settings : wrong) {
    push(shard, 0, 1, settings);
    CHECK(shard.version() == 0);
  }
  REQUIRE(shard.out.errors.size() == wrong.size());
  CHECK(contains(shard.out.errors[0].second.message, "says settings of 2 steps, for 1 groups"));
}

TEST_CASE("with optimizer mean nodes get the mean gradient") {
  Shard shard({.nodes = 2, .optimizer = "mean"});
  shard.init(10.0f);
  shard.push(0, 1, 6.0f, 0, 3);
  shard.push(1, 1, 2.0f, 0, 1);
  REQUIRE(shard.out.answers.size() == 2);
  CHECK(all_equal(shard.out.answers[1].payload.floats(), 2.0f));  // (6 + 2) / (3 + 1)
  CHECK(chunk_arrays(shard.core.job()).state == 1);
}

}  // namespace tributary::said_settings_test
