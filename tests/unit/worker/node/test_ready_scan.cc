#include <doctest/doctest.h>

#include <limits>
#include <memory>
#include <vector>

#include "tests/unit/expect.h"
#include "worker/node/ready_scan.h"

namespace tributary::ready_scan_test {

namespace {

constexpr std::size_t kTensors = 10'000;

// A rank's words, as a region has them.
struct Rank {
  Rank() : memory(sizeof(RankHeader) + kTensors * sizeof(TensorWord) + ready_blocks(kTensors) * sizeof(ReadyBlock)) {
    words = RankWords::behind(new (memory.data()) RankHeader, kTensors);
    new (words.tensors) TensorWord[kTensors];
    new (words.blocks) ReadyBlock[ready_blocks(kTensors)];
  }
  std::vector<std::byte> memory;
  RankWords words;
};

std::vector<std::uint32_t> found(ReadyScan& scan, std::uint32_t rank, const Rank& of) {
  std::vector<std::uint32_t> tensors;
  const Status looked = scan.look(rank, of.words, [&](std::uint32_t tensor, const TensorWord&, Round) -> Status {
    tensors.push_back(tensor);
    return {};
  });
  REQUIRE(looked);
  return tensors;
}

// Every third tensor.
std::vector<std::uint32_t> of_lane() {
  std::vector<std::uint32_t> tensors;
  for (std::uint32_t t = 0; t < kTensors; t += 3) tensors.push_back(t);
  return tensors;
}

}  // namespace

TEST_CASE("a lane finds the tensors of its own that a rank has become ready with, once") {
  const std::vector<std::uint32_t> lane = of_lane();
  ReadyScan scan(lane, 2, Round(4));
  Rank first, second;
  for (std::size_t t = 0; t < kTensors; ++t) {
    for (const Rank* rank : {&first, &second}) rank->words.tensors[t].round.store(4);
  }
  CHECK(found(scan, 0, first).empty());
  second.words.say(9'999, 5);
  second.words.say(9'998, 5);  // not this lane's
  second.words.say(0, 5);
  CHECK(found(scan, 0, first).empty());
  CHECK(found(scan, 1, second) == std::vector<std::uint32_t>{0, 9'999});
  CHECK(found(scan, 1, second).empty());
  for (std::size_t t = 0; t < kTensors; ++t) first.words.say(t, 5);
  CHECK(found(scan, 0, first) == lane);
}

TEST_CASE("a lane looks at the blocks that have counted, and at no other word") {
  ReadyScan scan(of_lane(), 1, Round(0));
  Rank rank;
  rank.words.tensors[6'000].round.store(1);  // without a count
  rank.words.say(3, 1);
  CHECK(found(scan, 0, rank) == std::vector<std::uint32_t>{3});
  // Whatever a trainer writes there, nothing is found that is not there.
  for (const std::uint64_t nonsense : {std::numeric_limits<std::uint64_t>::max(), std::uint64_t{0}}) {
    rank.words.header->ready.store(nonsense);
    for (std::size_t b = 0; b < ready_blocks(kTensors); ++b) rank.words.blocks[b].ready.store(nonsense);
    CHECK(found(scan, 0, rank) == (nonsense == 0 ? std::vector<std::uint32_t>{} : std::vector<std::uint32_t>{6'000}));
  }
}

TEST_CASE("a lane hears of the first tensor that cannot be, and looks no further") {
  ReadyScan scan(of_lane(), 1, Round(0));
  Rank rank;
  rank.words.say(3, 7);
  rank.words.say(6, 1);
  int calls = 0;
  const Status looked = scan.look(0, rank.words, [&](std::uint32_t, const TensorWord&, Round) -> Status {
    ++calls;
    return fail(ErrorCode::kInvalidArgument, "a round that is not due");
  });
  CHECK_FALSE(looked);
  CHECK(calls == 1);
}

}  // namespace tributary::ready_scan_test
