#include <doctest/doctest.h>

#include <cstring>
#include <memory>

#include "common/config/config_check.h"
#include "common/config/job_plan.h"
#include "server/memory_formula.h"
#include "server/shard/shard_core.h"

namespace tributary::memory_formula_test {
namespace {

// A shard whose arrays of all chunks take so many bytes.
constexpr std::uint64_t array(std::uint64_t chunks, std::uint64_t largest) {
  return chunks * (4 * largest + kBlockSlack);
}

ShardMemory shard_of(std::uint64_t elements, std::uint32_t chunks, std::uint32_t nodes = ShardMemory().nodes) {
  return {.elements = elements, .chunks = chunks, .largest_chunk = elements, .nodes = nodes};
}

TEST_CASE("the formula counts state, one copy of answers, held and arriving frames, and what a snapshot keeps") {
  ShardMemory shard{.elements = 100'000'000, .chunks = 400, .largest_chunk = 250'000};
  shard.arrays.state = 3;
  shard.nodes = 3;
  shard.lanes = 2;
  shard.push = EncodingId::kBf16;
  shard.max_held_bytes = 12'345;
  shard.snapshot_bytes = 777;
  const MemoryTerms terms = memory_formula(shard);
  CHECK(terms.state == 3 * array(400, 250'000));
  CHECK(terms.answers == array(400, 250'000));
  CHECK(terms.held == 12'345);
  CHECK(terms.arriving == 3 * 2 * kAssumedWindowBytes);
  CHECK(terms.snapshot == 777);
  CHECK(terms.total() == terms.state + terms.answers + terms.held + terms.arriving + terms.snapshot);
}

TEST_CASE("answers in 16 bits are kept in blocks of the same size, and no more arrives than the shard has") {
  ShardMemory shard = shard_of(1000, 1, 2);
  shard.push = EncodingId::kFp16;
  shard.arrays.encoded = 1;
  const MemoryTerms terms = memory_formula(shard);
  CHECK(terms.answers == array(1, 1000));
  CHECK(terms.arriving == 4000);
}

TEST_CASE("with a delta encoding the server also holds what the workers hold") {
  ShardMemory shard = shard_of(2560, 1);
  shard.arrays.encoded = shard.arrays.estimate = 1;
  const MemoryTerms terms = memory_formula(shard);
  CHECK(terms.estimate == array(1, 2560));
  CHECK(terms.answers == array(1, 2560));
}

TEST_CASE("where nodes have clocks, what each was answered is kept for it") {
  ShardMemory shard = shard_of(1000, 1, 3);
  shard.arrays.told = 3;
  CHECK(memory_formula(shard).told == 3 * array(1, 1000));
}

TEST_CASE("rounds that wait for a gate are kept as one sum") {
  ShardMemory shard = shard_of(1000, 1, 3);
  const std::uint64_t without = memory_formula(shard).total();
  shard.arrays.sums = 1;
  CHECK(memory_formula(shard).sums == array(1, 1000));
  CHECK(memory_formula(shard).total() == without + array(1, 1000));
}

TEST_CASE("what nodes have yet to say comes out of a snapshot as one array a node") {
  ShardMemory shard = shard_of(1000, 2, 3);
  const std::uint64_t without = memory_at_most(shard, true);
  shard.arrays.residuals = 3;
  CHECK(memory_formula(shard).residuals == 3 * array(2, 1000));
  CHECK(memory_at_most(shard, true) == without + 3 * array(2, 1000));
}

TEST_CASE("what a job keeps of a chunk follows from its optimizer, its encodings and its mode") {
  const auto job_of = [](const JobConfig& config, bool recovers) {
    ShardJob job{.view = std::make_shared<const ViewPlan>(ViewPlan{.plan = JobPlan::of(config), .nodes = 3}),
                 .recovers = recovers};
    return job;
  };
  JobConfig config;
  config.optimizer = default_optimizer("adamw");
  const ShardJob plain = job_of(config, false);
  CHECK(chunk_arrays(plain).steady() == 3);
  CHECK(chunk_arrays(plain).most() == 7);
  JobConfig encoded = config;
  encoded.push = EncodingId::kInt8;
  encoded.pull = EncodingId::kInt8Delta;
  const ShardJob recovers = job_of(encoded, true);
  CHECK(chunk_arrays(recovers).steady() == 3 + 2 + 1);
  CHECK(chunk_arrays(recovers).snapshot() == 4);
  CHECK(chunk_arrays(recovers).most() == 6 + 6 + 1 + 3);
  JobConfig async = config;
  async.mode = Mode::kAsync;
  const ShardJob clocks = job_of(async, false);
  CHECK(chunk_arrays(clocks).steady() == 3 + 3);
  CHECK(chunk_arrays(clocks).most() == 6 + 3 + 1);
}

TEST_CASE("a job may take what the formula says, and a second copy of what snapshots have where there are some") {
  ShardMemory shard = shard_of(1000, 1);
  shard.arrays.state = 3;
  shard.arrays.previous = 1;
  CHECK(memory_at_most(shard, false) == memory_formula(shard).total());
  CHECK(memory_at_most(shard, true) == memory_formula(shard).total() + 3 * array(1, 1000));
}

TEST_CASE("terms of several jobs add up") {
  MemoryTerms sum;
  sum += MemoryTerms{1, 2, 3, 4, 5, 6, 7};
  sum += MemoryTerms{10, 20, 30, 40, 50, 60, 70};
  CHECK(sum.total() == 308);
  CHECK(sum.estimate == 33);
}

TEST_CASE("anonymous memory grows when memory is touched") {
  const std::uint64_t before = anonymous_bytes();
  REQUIRE(before > 0);
  constexpr std::size_t kBytes = 64u << 20;
  const auto block = std::make_unique<char[]>(kBytes);
  std::memset(block.get(), 1, kBytes);
  CHECK(block[kBytes / 2] == 1);
  CHECK(anonymous_bytes() >= before + kBytes / 2);
}

}  // namespace
}  // namespace tributary::memory_formula_test
