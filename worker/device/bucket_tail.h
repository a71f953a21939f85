// The tail that travels behind a bucket's gradients: the number of samples in a node's sum, and now and then a digest
// of the node's replica (worker/allreduce/replica_digests.h). It is written as floats whose sum is exact in any order.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tributary {

struct BucketTail {
  std::uint64_t weight = 0;
  std::uint64_t digest = 0;
};

// Parts of 8 bits: exact for up to this many members.
inline constexpr std::size_t kBytesOfWord = 8;
inline constexpr std::size_t kTailParts = 2 * kBytesOfWord;
inline constexpr std::size_t kMaxTailMembers = 1u << 16;

inline void put_tail(const BucketTail& tail, float* parts) {
  for (std::size_t i = 0; i < kBytesOfWord; ++i) {
    parts[i] = static_cast<float>((tail.weight >> (8 * i)) & 0xff);
    parts[kBytesOfWord + i] = static_cast<float>((tail.digest >> (8 * i)) & 0xff);
  }
}

// Returns the members' total weight, from the sum of their tails.
inline std::uint64_t take_weight(const float* parts) {
  std::uint64_t weight = 0;
  for (std::size_t i = 0; i < kBytesOfWord; ++i) weight += static_cast<std::uint64_t>(parts[i]) << (8 * i);
  return weight;
}

// Returns whether all `nodes` brought the digest `own`; one member of each brought one. (If the digests differ, at
// least two nodes have another byte than the mean, and notice it.)
inline bool same_digest(std::uint64_t own, std::uint32_t nodes, const float* parts) {
  for (std::size_t i = 0; i < kBytesOfWord; ++i) {
    if (static_cast<std::uint64_t>(parts[kBytesOfWord + i]) != nodes * ((own >> (8 * i)) & 0xff)) return false;
  }
  return true;
}

}  // namespace tributary
