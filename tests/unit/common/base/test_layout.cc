#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "common/base/layout.h"
#include "tests/unit/expect.h"
#include "tests/unit/required.h"

namespace tributary::layout_test {
namespace {

using testing::contains;

constexpr std::uint64_t kSmallest = kMinChunkBytes / sizeof(float);

std::vector<ShardSlots> equal_shards(std::size_t count, std::uint16_t lanes = 1) {
  return std::vector<ShardSlots>(count, ShardSlots{lanes, 1.0});
}

// The refusal's message, or a text that no check below accepts.
template <class T>
std::string refusal(const Result<T>& result) {
  if (result) return "(accepted)";
  return result.error().code == ErrorCode::kInvalidArgument ? result.error().message : "(wrong code)";
}

std::vector<TensorSpec> random_tensors(std::mt19937_64& random) {
  auto upto = [&random](std::uint64_t n) { return random() % n + 1; };
  std::vector<TensorSpec> tensors(upto(20));
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    tensors[i].name = "tensor" + std::to_string(i);
    for (std::uint64_t d = random() % 4; d > 0; --d) tensors[i].shape.push_back(upto(random() % 8 == 0 ? 90 : 12));
  }
  return tensors;
}

std::vector<ShardSlots> random_shards(std::mt19937_64& random) {
  std::vector<ShardSlots> shards(random() % 7 + 1);
  const bool weighted = random() % 2 == 0;
  for (ShardSlots& s : shards) {
    s.lanes = static_cast<std::uint16_t>(random() % 4 + 1);
    if (weighted) s.weight = static_cast<double>(random() % 200 + 1) / 10.0;
  }
  return shards;
}

}  // namespace

TEST_CASE("a tensor starts at a multiple of the alignment and chunks cut the flat space evenly") {
  const auto layout = required(Layout::make({{"a", {5}}, {"b", {40, 50}}, {"c", {}}}, kSmallest, equal_shards(2)));
  CHECK(layout.parameters() == 5 + 2000 + 1);
  CHECK(layout.tensor_offset(0) == 0);
  CHECK(layout.tensor_offset(1) == 16);
  CHECK(layout.tensor_offset(2) == 16 + 2000);
  CHECK(layout.flat_elements() == 16 + 2000 + 16);
  REQUIRE(layout.chunks() == 2);
  CHECK(layout.chunk(ChunkIndex(0)).begin == 0);
  CHECK(layout.chunk(ChunkIndex(0)).elements == kSmallest);
  CHECK(layout.chunk(ChunkIndex(1)).begin == kSmallest);
  CHECK(layout.chunk(ChunkIndex(1)).elements == 2032 - kSmallest);
  CHECK(layout.tensors_of(ChunkIndex(0)) == std::pair<std::size_t, std::size_t>(0, 2));
  CHECK(layout.tensors_of(ChunkIndex(1)) == std::pair<std::size_t, std::size_t>(1, 3));
  CHECK(layout.chunks_of(1) == std::pair<std::uint32_t, std::uint32_t>(0, 2));
  CHECK(layout.chunks_of(2) == std::pair<std::uint32_t, std::uint32_t>(1, 2));
}

TEST_CASE("every element of every tensor lies in exactly one chunk, for random declarations") {
  std::mt19937_64 random(1);
  for (int repeat = 0; repeat < 300; ++repeat) {
    const std::vector<TensorSpec> tensors = random_tensors(random);
    const std::uint64_t chunk_elements = kSmallest + kTensorAlign * (random() % 60);
    const auto layout = required(Layout::make(tensors, chunk_elements, random_shards(random)));

    std::vector<int> covered(layout.flat_elements(), 0);
    for (std::uint32_t c = 0; c < layout.chunks(); ++c) {
      const ChunkRange range = layout.chunk(ChunkIndex(c));
      REQUIRE(range.elements > 0);
      REQUIRE(range.begin + range.elements <= layout.flat_elements());
      CHECK((c + 1 == layout.chunks() || range.elements == chunk_elements));
      for (std::uint64_t e = 0; e < range.elements; ++e) ++covered[range.begin + e];
    }
    CHECK(std::all_of(covered.begin(), covered.end(), [](int times) { return times == 1; }));

    // Tensors do not overlap, and only padding lies between them.
    std::uint64_t end = 0, parameters = 0;
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      CHECK(layout.tensor_offset(t) % kTensorAlign == 0);
      CHECK(layout.tensor_offset(t) >= end);
      CHECK(layout.tensor_offset(t) < end + kTensorAlign);
      end = layout.tensor_offset(t) + tensors[t].elements();
      parameters += tensors[t].elements();
    }
    CHECK(layout.flat_elements() - end < kTensorAlign);
    CHECK(layout.parameters() == parameters);
  }
}

TEST_CASE("tensors_of and chunks_of are inverse to each other") {
  std::mt19937_64 random(2);
  for (int repeat = 0; repeat < 200; ++repeat) {
    const auto layout = required(Layout::make(random_tensors(random), kSmallest, random_shards(random)));
    for (std::uint32_t c = 0; c < layout.chunks(); ++c) {
      const auto [first, last] = layout.tensors_of(ChunkIndex(c));
      REQUIRE(first < last);
      for (std::size_t t = 0; t < layout.tensors().size(); ++t) {
        const auto [chunk_first, chunk_last] = layout.chunks_of(t);
        CHECK((first <= t && t < last) == (chunk_first <= c && c < chunk_last));
        const ChunkRange range = layout.chunk(ChunkIndex(c));
        const std::uint64_t begin = layout.tensor_offset(t), end = begin + layout.tensors()[t].elements();
        CHECK((first <= t && t < last) == (begin < range.begin + range.elements && range.begin < end));
      }
    }
  }
}

TEST_CASE("equal weights give plain round-robin over shards and, within a shard, over lanes") {
  for (std::uint16_t shards : {1, 2, 3, 5}) {
    for (std::uint16_t lanes : {1, 2, 3}) {
      const auto layout = required(Layout::make({{"w", {kSmallest * 100}}}, kSmallest, equal_shards(shards, lanes)));
      for (std::uint32_t c = 0; c < layout.chunks(); ++c) {
        CHECK(layout.owner(ChunkIndex(c)).shard.value == c % shards);
        CHECK(layout.owner(ChunkIndex(c)).lane.value == c / shards % lanes);
      }
    }
  }
}

TEST_CASE("at every prefix each shard has its weighted share of the chunks to within one, and lanes are level") {
  std::mt19937_64 random(3);
  for (int repeat = 0; repeat < 100; ++repeat) {
    const std::vector<ShardSlots> shards = random_shards(random);
    const auto layout = required(Layout::make({{"w", {kSmallest * (random() % 500 + 1)}}}, kSmallest, shards));
    double total = 0;
    for (const ShardSlots& s : shards) total += s.weight;
    std::vector<double> dealt(shards.size(), 0);
    std::vector<std::map<std::uint16_t, int>> by_lane(shards.size());
    for (std::uint32_t c = 0; c < layout.chunks(); ++c) {
      const ChunkOwner owner = layout.owner(ChunkIndex(c));
      REQUIRE(owner.shard.value < shards.size());
      REQUIRE(owner.lane.value < shards[owner.shard.value].lanes);
      dealt[owner.shard.value] += 1;
      ++by_lane[owner.shard.value][owner.lane.value];
      for (std::size_t s = 0; s < shards.size(); ++s) {
        const double off_share = dealt[s] - (c + 1) * shards[s].weight / total;
        CHECK(std::abs(off_share) < 1.0 + 1e-9);
      }
    }
    for (std::size_t s = 0; s < shards.size(); ++s) {
      int most = 0, least = std::numeric_limits<int>::max();
      for (std::uint16_t lane = 0; lane < shards[s].lanes; ++lane) {
        most = std::max(most, by_lane[s][lane]);
        least = std::min(least, by_lane[s][lane]);
      }
      CHECK(most - least <= 1);
    }
  }
}

TEST_CASE("a shard of weight 0 owns nothing, and the others are dealt as if it were not there") {
  const std::vector<TensorSpec> tensors = {{"w", {kSmallest * 100}}};
  const std::vector<ShardSlots> with = {{1, 0.0}, {2, 3.0}, {1, 0.0}, {1, 1.0}, {3, 0.0}},
                                without = {{2, 3.0}, {1, 1.0}};
  const auto a = Layout::make(tensors, kSmallest, with), b = Layout::make(tensors, kSmallest, without);
  REQUIRE(a);
  REQUIRE(b);
  for (std::uint32_t c = 0; c < a->chunks(); ++c) {
    const ChunkOwner owner = b->owner(ChunkIndex(c));
    CHECK(a->owner(ChunkIndex(c)).shard.value == (owner.shard.value == 0 ? 1 : 3));
    CHECK(a->owner(ChunkIndex(c)).lane == owner.lane);
  }
}

TEST_CASE("weights for which the greatest-deficit rule falls behind are still dealt to within one chunk") {
  std::vector<ShardSlots> shards;
  double total = 0;
  for (double weight : {50, 50, 1, 3, 1, 3, 3, 50}) {
    shards.push_back({1, weight});
    total += weight;
  }
  const auto layout = required(Layout::make({{"w", {kSmallest * 600}}}, kSmallest, shards));
  std::vector<double> dealt(shards.size(), 0);
  for (std::uint32_t c = 0; c < layout.chunks(); ++c) {
    dealt[layout.owner(ChunkIndex(c)).shard.value] += 1;
    for (std::size_t s = 0; s < shards.size(); ++s) {
      CHECK(std::abs(dealt[s] - (c + 1) * shards[s].weight / total) < 1.0);
    }
  }
}

TEST_CASE("the chunks of all shards and lanes together are all chunks, each ascending") {
  const std::vector<ShardSlots> shards = {{2, 1.0}, {1, 2.5}, {3, 0.5}};
  const auto layout = required(Layout::make({{"w", {kSmallest * 77}}}, kSmallest, shards));
  std::vector<std::uint32_t> all;
  for (std::uint16_t s = 0; s < shards.size(); ++s) {
    for (std::uint16_t l = 0; l < shards[s].lanes; ++l) {
      const auto mine = layout.chunks_owned_by(ShardIndex(s), LaneIndex(l));
      CHECK(std::is_sorted(mine.begin(), mine.end()));
      for (ChunkIndex c : mine) all.push_back(c.value);
    }
  }
  std::sort(all.begin(), all.end());
  REQUIRE(all.size() == layout.chunks());
  for (std::uint32_t c = 0; c < all.size(); ++c) CHECK(all[c] == c);
}

TEST_CASE("the same declaration gives the same layout, and given owners restore it") {
  std::mt19937_64 random(4);
  for (int repeat = 0; repeat < 50; ++repeat) {
    const auto tensors = random_tensors(random);
    const auto shards = random_shards(random);
    const auto a = Layout::make(tensors, kSmallest, shards), b = Layout::make(tensors, kSmallest, shards);
    REQUIRE(a);
    REQUIRE(b);
    CHECK(a->owners() == b->owners());
    CHECK(a->hash() == b->hash());
    const auto restored = required(Layout::with_owners(tensors, kSmallest, a->owners()));
    CHECK(restored.owners() == a->owners());
    CHECK(restored.hash() == a->hash());
    CHECK(restored.flat_elements() == a->flat_elements());
  }
}

TEST_CASE("the hash depends on names, shapes, order and chunk size, and not on owners") {
  const std::vector<TensorSpec> tensors = {{"a", {4, 6}}, {"b", {10}}};
  const std::uint64_t hash = Layout::make(tensors, kSmallest, equal_shards(1))->hash();
  CHECK(Layout::make(tensors, kSmallest, equal_shards(3, 2))->hash() == hash);
  CHECK(Layout::make(tensors, 2 * kSmallest, equal_shards(1))->hash() != hash);
  const std::vector<std::vector<TensorSpec>> others = {
      {{"a", {4, 6}}, {"c", {10}}},
      {{"a", {6, 4}}, {"b", {10}}},
      {{"a", {24}}, {"b", {10}}},
      {{"b", {10}}, {"a", {4, 6}}},
      {{"a", {4, 6}}},
      {{"a", {4, 6}}, {"b", {10}}, {"c", {}}},
      {{"a", {4, 6}}, {"b", {10, 1}}},
      {{"a", {4}}, {"b", {6, 10}}},
  };
  for (const auto& other : others) {
    const auto layout = required(Layout::make(other, kSmallest, equal_shards(1)));
    CHECK(layout.hash() != hash);
  }
}

TEST_CASE("the hash is the same on every machine and in every release") {
  // Stored with every job: a change of this number makes every store unreadable.
  CHECK(Layout::make({{"fc.weight", {3, 4}}, {"fc.bias", {4}}}, 262144, equal_shards(2))->hash() ==
        7501639843661839455ull);
}

TEST_CASE("impossible declarations are refused with the tensor's name and the cure") {
  const auto shards = equal_shards(1);
  auto make = [&shards](std::vector<TensorSpec> t) { return refusal(Layout::make(std::move(t), kSmallest, shards)); };
  CHECK(contains(make({}), "at least one"));
  CHECK(contains(make({{"a", {1}}, {"", {1}}}), "tensor 1 has an empty name"));
  CHECK(contains(make({{"a", {1}}, {"b", {2}}, {"a", {3}}}), "tensor 2 has the name 'a' of an earlier one"));
  CHECK(contains(make({{"a", {3, 0}}}), "'a' of shape [3, 0] has a dimension of 0"));
  CHECK(contains(make({{"a", {1ull << 41}}}), "the limit"));
  CHECK(contains(make({{"a", {1ull << 33, 1ull << 33, 1ull << 33}}}), "the limit"));  // wraps to 0 in 64 bits
  CHECK(contains(make({{"a", {1ull << 40}}, {"b", {1}}}), "with tensor 'b'"));
  CHECK(contains(make({{"a", {1ull << 32}}}), "set a larger chunk_bytes"));
  CHECK(contains(make({{std::string(5000, 'x') + "\n", {0}}}), "xxx...'"));
}

TEST_CASE("impossible chunk sizes, shards and owners are refused") {
  const std::vector<TensorSpec> tensors = {{"a", {100}}};
  for (std::uint64_t elements : {0ull, 16ull, 1032ull, 1ull << 25, ~0ull}) {
    CHECK(
        contains(refusal(Layout::make(tensors, elements, equal_shards(1))), "a chunk of " + std::to_string(elements)));
  }
  CHECK(contains(refusal(Layout::make(tensors, kSmallest, {})), "at least one server"));
  const std::vector<ShardSlots> no_lanes = {{1, 1.0}, {0, 1.0}};
  CHECK(contains(refusal(Layout::make(tensors, kSmallest, no_lanes)), "shard 1 has 0 lanes"));
  for (double weight : {-1.0, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    const std::vector<ShardSlots> bad = {{1, weight}};
    CHECK(contains(refusal(Layout::make(tensors, kSmallest, bad)), "shard 0 has weight"));
  }
  const std::vector<ShardSlots> nobody = {{1, 0.0}, {1, 0.0}};
  CHECK(contains(refusal(Layout::make(tensors, kSmallest, nobody)), "all 2 shards have weight 0"));
  CHECK(contains(refusal(Layout::with_owners(tensors, kSmallest, {})), "1 chunks but owners for 0"));
  CHECK(contains(refusal(Layout::with_owners(tensors, kSmallest, std::vector<ChunkOwner>(2))), "owners for 2"));
}

TEST_CASE(
    "buckets of all-reduce jobs are an eighth of the model up to 4 MiB, then a sixteenth up to 16, and have one "
    "owner") {
  constexpr std::uint64_t kMiB = (1u << 20) / sizeof(float);
  CHECK(default_bucket_elements(1024 * kMiB) == 16 * kMiB);
  CHECK(default_bucket_elements(256 * kMiB) == 16 * kMiB);
  CHECK(default_bucket_elements(255 * kMiB) == 8 * kMiB);
  CHECK(default_bucket_elements(64 * kMiB) == 4 * kMiB);
  CHECK(default_bucket_elements(32 * kMiB) == 4 * kMiB);
  CHECK(default_bucket_elements(31 * kMiB) == 2 * kMiB);
  CHECK(default_bucket_elements(kMiB) == kMiB / 2);
  CHECK(default_bucket_elements(100) == kMiB / 2);
  const auto whole = required(bucket_layout({{"a", {1000}}, {"b", {9 * kMiB}}}, 0));
  CHECK(whole.chunk_elements() == kMiB);
  CHECK(whole.chunks() == 10);
  for (const ChunkOwner& owner : whole.owners()) CHECK(owner == ChunkOwner{ShardIndex(0), LaneIndex(0)});
  const auto fine = required(bucket_layout({{"a", {10'000}}}, 4096));
  CHECK(fine.chunk_elements() == 1024);
  CHECK_FALSE(bucket_layout({{"a", {0}}}, 0));
}

TEST_CASE(
    "on one machine the default chunk is 1 MiB for large models and shrinks until every lane has eight, down to 64 "
    "KiB") {
  constexpr std::uint64_t kMiB = (1u << 20) / sizeof(float);
  CHECK(default_chunk_elements(1024 * kMiB, equal_shards(2, 2), 2, true) == kMiB);
  CHECK(default_chunk_elements(32 * kMiB, equal_shards(2, 2), 2, true) == kMiB);
  CHECK(default_chunk_elements(31 * kMiB, equal_shards(2, 2), 2, true) == kMiB / 2);
  CHECK(default_chunk_elements(4 * kMiB, equal_shards(2, 2), 2, true) == kMiB / 8);
  CHECK(default_chunk_elements(100, equal_shards(2, 2), 2, true) == kMiB / 16);
  // Where devices add gradients up, with as many for every lane.
  CHECK(default_chunk_elements(1024 * kMiB, equal_shards(2, 2), 2, true, kLargestDeviceChunkBytes) == 4 * kMiB);
  CHECK(default_chunk_elements(32 * kMiB, equal_shards(2, 2), 2, true, kLargestDeviceChunkBytes) == kMiB);
  const std::vector<ShardSlots> uneven = {{1, 3.0}, {1, 1.0}};  // the second gets a quarter
  CHECK(default_chunk_elements(32 * kMiB, uneven, 2, true) == kMiB);
  CHECK(default_chunk_elements(31 * kMiB, uneven, 2, true) == kMiB / 2);
}

TEST_CASE("over a network the default chunk keeps the end of a round short, from 16 KiB to 1 MiB") {
  constexpr std::uint64_t kKiB = 1024 / sizeof(float), kMiB = 1024 * kKiB;
  // 2 % of 16 MB over 2 * 4 + 4 chunks are 27 KB, over 2 * 8 + 8 they are 13 KB.
  CHECK(default_chunk_elements(4'000'000, equal_shards(4, 1), 4, false) == 32 * kKiB);
  CHECK(default_chunk_elements(4'000'000, equal_shards(8, 1), 8, false) == 16 * kKiB);
  CHECK(default_chunk_elements(100, equal_shards(2, 2), 2, false) == 16 * kKiB);
  CHECK(default_chunk_elements(256 * kMiB, equal_shards(4, 1), 4, false) == 512 * kKiB);
  CHECK(default_chunk_elements(1024 * kMiB, equal_shards(4, 1), 4, false) == kMiB);
  // Enough for every lane all the same.
  CHECK(default_chunk_elements(16 * kMiB, equal_shards(1, 32), 1, false) == 64 * kKiB);
}

TEST_CASE("the first difference of two declarations is named with both sides") {
  const std::vector<TensorSpec> ours = {{"fc1.weight", {784, 256}}, {"fc1.bias", {256}}};
  CHECK(describe_difference(ours, ours).empty());

  std::vector<TensorSpec> theirs = ours;
  theirs[1].shape = {128};
  std::string text = describe_difference(ours, theirs);
  CHECK(contains(
      text, "tensor 1 is 'fc1.bias' of shape [256] in the job, but 'fc1.bias' of shape [128] in your declaration"));

  theirs[0].name = "conv";
  text = describe_difference(ours, theirs);
  CHECK(contains(text, "tensor 0 is 'fc1.weight'"));
  CHECK(contains(text, "'conv' of shape [784, 256] in your"));

  theirs = ours;
  theirs.push_back({"fc2.weight", {10}});
  text = describe_difference(ours, theirs);
  CHECK(contains(text, "the job has 2 tensors, but your declaration has 3"));
  CHECK(contains(text, "tensor 2, 'fc2.weight' of shape [10], is only in your declaration"));
  CHECK(contains(describe_difference(theirs, ours), "is only in the job"));
}

}  // namespace tributary::layout_test
