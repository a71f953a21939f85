#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <random>
#include <set>

#include "common/base/weight.h"
#include "tests/unit/expect.h"
#include "tests/unit/required.h"
#include "worker/reduce/node_gather.h"

namespace tributary::node_gather_test {

using testing::contains;

namespace {

constexpr std::uint64_t kChunkElements = kMinChunkBytes / sizeof(float);

std::shared_ptr<const Layout> layout_of(std::vector<std::uint64_t> sizes, std::uint16_t lanes = 1) {
  std::vector<TensorSpec> tensors;
  for (std::size_t i = 0; i < sizes.size(); ++i)
    tensors.push_back({std::string("t").append(std::to_string(i)), {sizes[i]}});
  const ShardSlots one{lanes, 1.0};
  auto layout = required(Layout::make(tensors, kChunkElements, {&one, 1}));
  return std::make_shared<const Layout>(std::move(layout));
}

struct Gather {
  explicit Gather(std::vector<std::uint64_t> sizes, std::uint32_t ranks, Round start = Round(0))
      : layout(layout_of(std::move(sizes))), chunks(layout, start), gather(chunks, ranks) {
    answered();
  }
  void answered() {
    for (LaneChunk& chunk : chunks) NodeGather::answered(chunk);
  }
  Status ready(std::uint32_t rank, std::size_t tensor, std::uint64_t round, std::uint64_t weight = 1,
               StepSettings settings = {}) {
    done.clear();
    return gather.on_tensor(rank, tensor, Round(round), weight, settings, done);
  }
  std::string refusal(std::uint32_t rank, std::size_t tensor, std::uint64_t round, std::uint64_t weight = 1) {
    const auto status = failure_of(ready(rank, tensor, round, weight));
    CHECK(done.empty());
    return status.message;
  }
  std::shared_ptr<const Layout> layout;
  LaneChunks chunks;
  NodeGather gather;
  std::vector<LaneChunk*> done;
};

}  // namespace

TEST_CASE("a chunk is complete when all ranks are ready with all tensors in it, with the sum of their weights") {
  Gather g({100, 200}, 2);  // both tensors in one chunk
  REQUIRE(g.layout->chunks() == 1);
  CHECK(g.ready(0, 1, 1, 5));
  CHECK(g.ready(1, 1, 1, 3));
  CHECK(g.ready(1, 0, 1, 3));
  CHECK(g.done.empty());
  CHECK(g.ready(0, 0, 1, 5));
  REQUIRE(g.done.size() == 1);
  CHECK(g.done[0]->index == ChunkIndex(0));
  CHECK(g.done[0]->gradient.round == Round(1));
  CHECK(g.done[0]->gradient.weight == 8);
}

TEST_CASE("a tensor over several chunks completes those that wait for nothing else") {
  Gather g({kChunkElements / 2, 3 * kChunkElements, kChunkElements / 2}, 1, Round(41));
  REQUIRE(g.layout->chunks() == 4);
  CHECK(g.ready(0, 1, 42));
  std::vector<std::uint32_t> chunks;
  for (const LaneChunk* done : g.done) chunks.push_back(done->index.value);
  CHECK(chunks == std::vector<std::uint32_t>{1, 2});
  CHECK(g.ready(0, 2, 42));
  REQUIRE(g.done.size() == 1);
  CHECK(g.done[0]->index == ChunkIndex(3));
}

TEST_CASE("a lane sees only the tensors that overlap its own chunks") {
  const auto layout = layout_of({kChunkElements, kChunkElements, kChunkElements, 50}, 2);
  LaneChunks chunks(layout, Round(0), 1, 2);
  NodeGather gather(chunks, 1);
  CHECK(gather.tensors() == std::vector<std::uint32_t>{1, 3});
}

TEST_CASE("a trainer that calls ready twice, skips a round or goes back is told the round that was due") {
  Gather g({100, 100}, 2);
  CHECK(g.ready(0, 0, 1));
  CHECK(contains(g.refusal(0, 0, 1), "local rank 0, tensor 't0': ready for round 1 came where round 2 was due"));
  CHECK(contains(g.refusal(1, 0, 2), "ready for round 2 came where round 1 was due"));
  CHECK(contains(g.refusal(1, 0, 0), "ready for round 0 came where round 1 was due"));
}

TEST_CASE("ready before the answer of the last round is refused: the gradient may still be in use") {
  Gather g({100}, 1);
  CHECK(g.ready(0, 0, 1));
  REQUIRE(g.done.size() == 1);
  CHECK(contains(g.refusal(0, 0, 2), "came before the parameters of round 1 were there"));

  Gather waiting({100}, 2);  // rank 1 has not even been ready for round 1
  CHECK(waiting.ready(0, 0, 1));
  CHECK(contains(waiting.refusal(0, 0, 2), "came before the parameters of round 1"));

  const auto layout = layout_of({100});
  LaneChunks chunks(layout, Round(7));
  NodeGather unopened(chunks, 1);
  std::vector<LaneChunk*> done;
  const auto early = failure_of(unopened.on_tensor(0, 0, Round(8), 1, {}, done));
  CHECK(contains(early.message, "before the parameters of round 7"));
}

TEST_CASE("weights that differ within a round, or are absurd, are refused with both numbers") {
  Gather g({100, 100}, 1);
  CHECK(g.ready(0, 0, 1, 32));
  const std::string message = g.refusal(0, 1, 1, 33);
  CHECK(contains(message, "weight 33"));
  CHECK(contains(message, "weight 32"));
  Gather huge({100}, 1);
  CHECK(contains(huge.refusal(0, 0, 1, kMaxWeight + 1), "over the limit"));
  Gather zero({100}, 1);
  CHECK(zero.ready(0, 0, 1, 0));
  REQUIRE(zero.done.size() == 1);
  CHECK(zero.done[0]->gradient.weight == 0);
}

TEST_CASE("in every order of calls each chunk is complete exactly once a round, at the last call that it needs") {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    std::mt19937_64 random(seed);
    const std::uint32_t ranks = 1 + random() % 3;
    std::vector<std::uint64_t> sizes(1 + random() % 6);
    for (auto& size : sizes) size = 1 + random() % (3 * kChunkElements);
    Gather g(sizes, ranks);
    for (std::uint64_t round = 1; round <= 4; ++round) {
      std::vector<std::pair<std::uint32_t, std::size_t>> calls;
      for (std::uint32_t rank = 0; rank < ranks; ++rank) {
        for (std::size_t t = 0; t < sizes.size(); ++t) calls.emplace_back(rank, t);
      }
      std::shuffle(calls.begin(), calls.end(), random);
      std::set<std::pair<std::uint32_t, std::size_t>> called;
      std::set<std::uint32_t> complete;
      for (const auto& call : calls) {
        called.insert(call);
        REQUIRE(g.ready(call.first, call.second, round, 10 + call.first));
        for (const LaneChunk* done : g.done) {
          CHECK(done->gradient.round == Round(round));
          CHECK(done->gradient.weight == 10 * ranks + ranks * (ranks - 1) / 2);
          CHECK(complete.insert(done->index.value).second);
        }
        for (std::uint32_t c = 0; c < g.layout->chunks(); ++c) {
          const auto [first, last] = g.layout->tensors_of(ChunkIndex(c));
          bool all = true;
          for (std::uint32_t rank = 0; rank < ranks; ++rank) {
            for (std::size_t t = first; t < last; ++t) all = all && called.contains({rank, t});
          }
          CHECK(all == complete.contains(c));
        }
      }
      g.answered();
    }
  }
}

namespace {

constexpr std::size_t kTensors = 10'000;

// A lane with every third tensor, of one chunk each, and the words of its ranks, as their regions have them.
struct Lane {
  explicit Lane(std::uint32_t ranks, std::uint64_t round)
      : layout(layout_of(std::vector<std::uint64_t>(kTensors, kChunkElements), 3)),
        chunks(layout, Round(round), 0, 3),
        gather(chunks, ranks) {
    for (LaneChunk& chunk : chunks) NodeGather::answered(chunk);
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      memory.emplace_back(sizeof(RankHeader) + kTensors * sizeof(TensorWord) +
                          ready_blocks(kTensors) * sizeof(ReadyBlock));
      words.push_back(RankWords::behind(new (memory.back().data()) RankHeader, kTensors));
      new (words.back().tensors) TensorWord[kTensors];
      new (words.back().blocks) ReadyBlock[ready_blocks(kTensors)];
      for (std::size_t t = 0; t < kTensors; ++t) words.back().tensors[t].round.store(round);
    }
  }
  Status look(std::uint32_t rank) {
    done.clear();
    return gather.look(rank, words[rank], done);
  }
  // The chunks, which have their tensors' numbers, that a look completes.
  std::vector<std::uint32_t> found(std::uint32_t rank) {
    REQUIRE(look(rank));
    std::vector<std::uint32_t> numbers;
    for (const LaneChunk* chunk : done) numbers.push_back(chunk->index.value);
    return numbers;
  }
  std::shared_ptr<const Layout> layout;
  LaneChunks chunks;
  NodeGather gather;
  std::vector<std::vector<std::byte>> memory;
  std::vector<RankWords> words;
  std::vector<LaneChunk*> done;
};

}  // namespace

// One that were found twice would be refused: its round is not due then.
TEST_CASE("a lane finds the tensors of its own that a rank has become ready with, once") {
  Lane lane(2, 4);
  REQUIRE(lane.gather.tensors().size() == (kTensors + 2) / 3);
  for (std::size_t t = 0; t < kTensors; ++t) lane.words[0].say(t, 5);
  CHECK(lane.found(1).empty());
  lane.words[1].say(9'999, 5);
  lane.words[1].say(9'998, 5);  // not this lane's
  lane.words[1].say(0, 5);
  CHECK(lane.found(0).empty());
  CHECK(lane.found(0).empty());
  CHECK(lane.found(1) == std::vector<std::uint32_t>{0, 9'999});
  CHECK(lane.found(1).empty());
  for (std::size_t t = 0; t < kTensors; ++t) lane.words[1].say(t, 5);
  std::vector<std::uint32_t> rest;
  for (std::uint32_t t = 3; t < 9'999; t += 3) rest.push_back(t);
  CHECK(lane.found(1) == rest);
}

TEST_CASE("a lane looks at the blocks that have counted, and at no other word") {
  Lane lane(1, 0);
  const RankWords& words = lane.words[0];
  words.tensors[6'000].round.store(1);  // without a count
  words.say(3, 1);
  CHECK(lane.found(0) == std::vector<std::uint32_t>{3});
  // Whatever a trainer writes there, nothing is found that is not there.
  for (const std::uint64_t nonsense : {std::numeric_limits<std::uint64_t>::max(), std::uint64_t{0}}) {
    words.header->ready.store(nonsense);
    for (std::size_t b = 0; b < ready_blocks(kTensors); ++b) words.blocks[b].ready.store(nonsense);
    CHECK(lane.found(0) == (nonsense == 0 ? std::vector<std::uint32_t>{} : std::vector<std::uint32_t>{6'000}));
  }
}

TEST_CASE("a lane hears of the first tensor that cannot be, and looks no further") {
  Lane lane(1, 0);
  lane.words[0].say(3, 7);
  lane.words[0].say(6, 1);
  const auto looked = failure_of(lane.look(0));
  CHECK(contains(looked.message, "'t3': ready for round 7 came where round 1 was due"));
  CHECK(lane.done.empty());
}

}  // namespace tributary::node_gather_test
