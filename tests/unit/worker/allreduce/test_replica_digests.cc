// Digests of replicas, and how they go around behind a bucket's gradients.
#include <doctest/doctest.h>

#include <array>
#include <set>

#include "tests/unit/expect.h"
#include "worker/allreduce/replica_digests.h"
#include "worker/device/bucket_tail.h"

namespace tributary::replica_digests_test {
namespace {

using Tail = std::array<float, kTailParts>;

Tail sum_of(std::initializer_list<BucketTail> tails) {
  Tail sum{};
  for (const BucketTail& tail : tails) {
    Tail parts;
    put_tail(tail, parts.data());
    for (std::size_t i = 0; i < kTailParts; ++i) sum[i] += parts[i];
  }
  return sum;
}

TEST_CASE("a tail's weight is the sum, and its digest is everybody's or not") {
  constexpr std::uint64_t kOne = 0xfedcba9876543210ull, kOther = kOne ^ (1ull << 40);
  const Tail same = sum_of({{~0ull >> 2, kOne}, {5, kOne}, {0, kOne}});
  CHECK(take_weight(same.data()) == (~0ull >> 2) + 5);
  CHECK(same_digest(kOne, 3, same.data()));
  const Tail differs = sum_of({{1, kOne}, {1, kOther}, {1, kOne}});
  CHECK(take_weight(differs.data()) == 3);
  CHECK_FALSE(same_digest(kOne, 3, differs.data()));
  CHECK_FALSE(same_digest(kOther, 3, differs.data()));
  CHECK_FALSE(same_digest(0, 2, sum_of({{1, 0}, {1, 1}}).data()));
  // In a flat ring one rank of each node brings its digest.
  CHECK(same_digest(kOne, 2, sum_of({{1, kOne}, {0, 0}, {1, kOne}, {0, 0}}).data()));
  CHECK(same_digest(0, 4, sum_of({{}, {}, {}, {}}).data()));
}

TEST_CASE("sums of as many members as there may be are exact") {
  Tail parts, sum{};
  put_tail({~0ull, ~0ull}, parts.data());
  for (std::size_t member = 0; member < kMaxTailMembers; ++member) {
    for (std::size_t i = 0; i < kTailParts; ++i) sum[i] += parts[i];
  }
  CHECK(same_digest(~0ull, kMaxTailMembers, sum.data()));
  CHECK_FALSE(same_digest(~0ull, kMaxTailMembers - 1, sum.data()));
}

TEST_CASE("every chunk has its turn, one a round at most, and one node has nobody to compare with") {
  for (const std::size_t chunks : {1, 5, 200}) {
    const ReplicaDigests digests(chunks, 2);
    const std::uint64_t period = std::max<std::uint64_t>(chunks, ReplicaDigests::kRounds);
    std::multiset<std::uint32_t> due;
    for (std::uint64_t round = 1000; round < 1000 + period; ++round) {
      std::size_t in_round = 0;
      for (std::uint32_t c = 0; c < chunks; ++c) {
        if (!digests.due(ChunkIndex(c), Round(round))) continue;
        due.insert(c);
        ++in_round;
      }
      CHECK(in_round <= 1);
    }
    CHECK(due.size() == chunks);
    for (std::uint32_t c = 0; c < chunks; ++c) CHECK(due.count(c) == 1);
    const ReplicaDigests alone(chunks, 1);
    for (std::uint64_t round = 1; round < period; ++round) CHECK_FALSE(alone.due(ChunkIndex(0), Round(round)));
  }
}

TEST_CASE("a digest is of parameters, state and step, and is brought once") {
  const std::array<float, 3> parameters{1, 2, 3}, state{4, 5, 6}, other{4, 5, 7};
  const float *one = state.data(), *two = other.data();
  ReplicaDigests digests(2, 2);
  const auto digest = [&](const float* slot, std::uint64_t step) {
    digests.take(ChunkIndex(1), parameters, {&slot, 1}, step);
    CHECK(digests.bring(ChunkIndex(0)) == 0);
    const std::uint64_t taken = digests.bring(ChunkIndex(1));
    CHECK(digests.bring(ChunkIndex(1)) == 0);
    return taken;
  };
  CHECK(digest(one, 7) == digest(one, 7));
  CHECK(digest(one, 7) != digest(two, 7));
  CHECK(digest(one, 7) != digest(one, 8));
}

TEST_CASE("a difference is told with the round, and with the last one without") {
  const ReplicaDigests digests(3, 2);
  CHECK(digests.difference(Round(66)).message.find("after round 65 the nodes hold different") == 0);
  CHECK(testing::contains(digests.difference(Round(66)).message, "the same after round 1."));
  CHECK(testing::contains(digests.difference(Round(3)).message, "had not been compared before"));
}

}  // namespace
}  // namespace tributary::replica_digests_test
