// Learning rates that trainers say, on their way: node gather, ring, push, shard.
#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

#include "common/wire/codec.h"
#include "tests/unit/server/shard/core_fixture.h"
#include "worker/reduce/node_gather.h"
#include "worker/reduce/redo_ring.h"

namespace tributary::rates_test {

using namespace testing;

namespace {

std::shared_ptr<const Layout> two_groups() {
  return std::make_shared<const Layout>(*Layout::unowned({{"a", {500}}, {"b", {500}, 1}, {"c", {600}}}, kChunk));
}

void push(Shard& shard, std::uint32_t node, std::uint64_t round, std::vector<double> rates, bool redo = false) {
  Push said{Shard::key(node), Round(round), 1, EncodingId::kFp32};
  said.rates = std::move(rates);
  said.redo = redo;
  shard.core.on_push(peer_of(node), said, payload_of(frame_of(kChunk, 1.0f)));
}

}  // namespace

TEST_CASE("a chunk has one rate for each group in it, that of all ranks, until its next round") {
  NodeGather gather(two_groups(), {ChunkIndex(0), ChunkIndex(1)}, 2, Round(0));
  std::vector<NodeGather::Complete> done;
  const auto ready = [&](std::uint32_t rank, std::size_t tensor, std::uint64_t round, double rate) {
    return gather.on_tensor(rank, tensor, Round(round), 1, rate, done);
  };
  gather.answered(ChunkIndex(0));
  gather.answered(ChunkIndex(1));
  for (const std::uint32_t rank : {1u, 0u}) {
    CHECK(ready(rank, 2, 1, 0.5));
    CHECK(ready(rank, 1, 1, 0.25));
    CHECK(ready(rank, 0, 1, 0.5));
  }
  REQUIRE(done.size() == 2);
  for (const NodeGather::Complete& each : done) {
    const std::vector<double> expected = each.chunk == ChunkIndex(0) ? std::vector{0.5, 0.25} : std::vector{0.5};
    CHECK(std::ranges::equal(each.rates, expected));
    CHECK(std::ranges::equal(gather.rates(each.chunk), expected));
  }
  // A round in which nobody says one: the schedule's.
  gather.answered(ChunkIndex(0));
  gather.answered(ChunkIndex(1));
  done.clear();
  for (const std::uint32_t rank : {1u, 0u}) {
    for (const std::size_t tensor : {0, 1, 2}) CHECK(ready(rank, tensor, 2, kScheduledRate));
  }
  REQUIRE(done.size() == 2);
  CHECK(done[0].rates.empty());
  CHECK(done[1].rates.empty());
}

TEST_CASE("ranks that say different rates are told who, what and in which round") {
  const auto refusal = [](double first, double second) {
    NodeGather gather(two_groups(), {ChunkIndex(0), ChunkIndex(1)}, 2, Round(0));
    gather.answered(ChunkIndex(0));
    gather.answered(ChunkIndex(1));
    std::vector<NodeGather::Complete> done;
    Status status = gather.on_tensor(0, 0, Round(1), 1, first, done);
    if (status) status = gather.on_tensor(1, 0, Round(1), 1, second, done);
    return status ? std::string("(accepted)") : status.error().message;
  };
  CHECK(refusal(0.5, 0.5) == "(accepted)");
  const std::string differs = refusal(0.5, 0.25);
  CHECK(contains(differs, "local rank 1, tensor 'a'"));
  CHECK(contains(differs, "learning rate 0.25 in round 1 differs from the rate 0.5"));
  CHECK(contains(differs, "group 0"));
  CHECK(contains(refusal(0.5, kScheduledRate), "learning rate none"));
  CHECK(contains(refusal(-0.5, 0.5), "no finite number from 0 on"));
  CHECK(contains(refusal(std::nan(""), 0.5), "no finite number from 0 on"));
}

TEST_CASE("the ring keeps a round's rates, and a round that says none has none") {
  const auto layout = two_groups();
  const auto ring = *RedoRing::create(JobId(1), NodeRank(0), *layout, EncodingId::kFp32, 3);
  for (std::uint64_t round = 1; round <= 8; ++round) {
    const std::vector<double> rates{0.5 / static_cast<double>(round), 0.25};
    const bool says = round % 3 != 0;
    ring->note_rates(ChunkIndex(0), Round(round), says ? Rates(rates) : Rates());
    CHECK_FALSE(ring->find(ChunkIndex(0), Round(round)));
    ring->publish(ChunkIndex(0), Round(round), 7);
    const auto kept = ring->find(ChunkIndex(0), Round(round));
    REQUIRE(kept);
    CHECK(std::ranges::equal(kept->rates, says ? Rates(rates) : Rates()));
    if (round >= 2 && round % 3 != 1) {
      const double before = 0.5 / static_cast<double>(round - 1);
      CHECK(ring->find(ChunkIndex(0), Round(round - 1))->rates[0] == before);
    }
  }
}

TEST_CASE("a push carries up to as many rates as there can be groups") {
  alignas(8) std::byte out[kMaxErrorHeader];
  for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{kMaxGroups}}) {
    Push said{Shard::key(1), Round(9), 32, EncodingId::kFp32};
    for (std::size_t i = 0; i < count; ++i) said.rates.push_back(std::ldexp(1.0, -static_cast<int>(i)));
    const auto back = decode_data(encode_data(said, out));
    REQUIRE(back);
    CHECK(std::get<Push>(*back).rates == said.rates);
    CHECK(std::get<Push>(*back).weight == 32);
  }
  Push too_many{Shard::key(1), Round(9), 32, EncodingId::kFp32};
  too_many.rates.assign(kMaxGroups + 1, 0.5);
  const auto refused = decode_data(encode_data(too_many, out));
  REQUIRE_FALSE(refused);
  CHECK(contains(refused.error().message, "the learning rates"));
}

TEST_CASE("a round is stepped at the rate that its pushes say, and at the schedule's if they say none") {
  Shard shard({.nodes = 2, .lr = 1.0});
  shard.init(10.0f);
  for (const std::uint32_t node : {0u, 1u}) push(shard, node, 1, {0.5});
  CHECK(all_equal(shard.params(), 9.5f));
  for (const std::uint32_t node : {0u, 1u}) push(shard, node, 2, {});
  CHECK(all_equal(shard.params(), 8.5f));
  for (const std::uint32_t node : {0u, 1u}) push(shard, node, 3, {0.0}, true);
  CHECK(shard.version() == 3);
  CHECK(all_equal(shard.params(), 8.5f));
}

TEST_CASE("nodes that say different rates are told so by the server, and the round waits for the right one") {
  Shard shard({.nodes = 2});
  shard.init(10.0f);
  push(shard, 1, 1, {0.5});
  push(shard, 0, 1, {0.25});
  REQUIRE(shard.out.errors.size() == 1);
  CHECK(shard.out.errors[0].first == peer_of(0));
  CHECK(shard.out.errors[0].second.code == ErrorCode::kConfigMismatch);
  CHECK(contains(shard.out.errors[0].second.message, "'s learning rate 0.25 differs from node 1's 0.5"));
  push(shard, 0, 1, {});
  REQUIRE(shard.out.errors.size() == 2);
  CHECK(contains(shard.out.errors[1].second.message, "of the schedule"));
  push(shard, 0, 1, {0.5});
  CHECK(shard.version() == 1);
}

TEST_CASE("rates that cannot be are refused") {
  Shard shard({.nodes = 1});
  shard.init(10.0f);
  for (const std::vector<double>& rates :
       {std::vector{0.5, 0.5}, std::vector{-0.5}, std::vector{std::nan("")}, std::vector{HUGE_VAL}}) {
    push(shard, 0, 1, rates);
    CHECK(shard.version() == 0);
  }
  REQUIRE(shard.out.errors.size() == 4);
  CHECK(contains(shard.out.errors[0].second.message, "says 2 learning rates, for 1 groups"));
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

}  // namespace tributary::rates_test
