#include <doctest/doctest.h>

#include <cstring>
#include <memory>

#include "server/memory_formula.h"

namespace tributary {
namespace {

TEST_CASE("the formula counts state, one copy of answers, held and arriving frames, and what a snapshot keeps") {
  ShardMemory shard;
  shard.elements = 100'000'000;
  shard.chunks = 400;
  shard.slots = 2;
  shard.nodes = 3;
  shard.lanes = 2;
  shard.push = EncodingId::kBf16;
  shard.pull = EncodingId::kFp32;
  shard.max_held_bytes = 12'345;
  shard.snapshot_bytes = 777;
  const MemoryTerms terms = memory_formula(shard);
  CHECK(terms.state == 1'200'000'000);
  CHECK(terms.answers == 400'000'000);
  CHECK(terms.held == 12'345);
  CHECK(terms.arriving == 3 * 2 * kAssumedWindowBytes);
  CHECK(terms.snapshot == 777);
  CHECK(terms.mapped == 0);
  CHECK(terms.total() == terms.state + terms.answers + terms.held + terms.arriving + terms.snapshot);
}

TEST_CASE("what nodes on the same machine share is counted, with two frames and residuals where they keep them") {
  ShardMemory shard;
  shard.elements = 2560;
  shard.nodes = 3;
  shard.local_nodes = 2;
  CHECK(memory_formula(shard).mapped == 3 * 4 * 2560);
  shard.push = EncodingId::kInt8;
  CHECK(memory_formula(shard).mapped == 2 * 2 * (2560 + 48 + 4 * 2560) + 4 * 2560);
}

TEST_CASE("answers in 16 bits are kept encoded, and no more arrives than the shard has") {
  ShardMemory shard;
  shard.elements = 1000;
  shard.nodes = 2;
  shard.push = EncodingId::kFp16;
  shard.pull = EncodingId::kBf16;
  const MemoryTerms terms = memory_formula(shard);
  CHECK(terms.answers == 2000);
  CHECK(terms.arriving == 4000);
}

TEST_CASE("with a delta encoding the server also holds what the workers hold") {
  ShardMemory shard;
  shard.elements = 2560;
  shard.pull = EncodingId::kInt8Delta;
  const MemoryTerms terms = memory_formula(shard);
  CHECK(terms.estimate == 4 * 2560);
  CHECK(terms.answers == 2560 + 48);  // 10 scales, up to a multiple of 16 bytes
}

TEST_CASE("where nodes have clocks, what each was answered is kept for it") {
  ShardMemory shard;
  shard.elements = 1000;
  shard.nodes = 3;
  shard.clocks = true;
  CHECK(memory_formula(shard).told == 3 * 4000);
  shard.pull = EncodingId::kBf16;
  CHECK(memory_formula(shard).told == 3 * 2000);
}

TEST_CASE("rounds that wait for a gate are kept as one sum") {
  ShardMemory shard;
  shard.elements = 1000;
  shard.nodes = 3;
  const std::uint64_t without = memory_formula(shard).total();
  shard.gate = true;
  CHECK(memory_formula(shard).sums == 4000);
  CHECK(memory_formula(shard).total() == without + 4000);
}

TEST_CASE("terms of several jobs add up") {
  MemoryTerms sum;
  sum += MemoryTerms{1, 2, 3, 4, 5, 6, 7};
  sum += MemoryTerms{10, 20, 30, 40, 50, 60, 70};
  CHECK(sum.total() == 308);
  CHECK(sum.estimate == 33);
}

TEST_CASE("resident memory grows when memory is touched") {
  const std::uint64_t before = resident_bytes();
  REQUIRE(before > 0);
  constexpr std::size_t kBytes = 64u << 20;
  const auto block = std::make_unique<char[]>(kBytes);
  std::memset(block.get(), 1, kBytes);
  CHECK(block[kBytes / 2] == 1);
  CHECK(resident_bytes() >= before + kBytes / 2);
}

}  // namespace
}  // namespace tributary
