// Counter-based random numbers: value i of a stream is a pure function of the stream's key and i, so that nothing about
// them needs to be saved for a resume, and every rank gets the same ones. The mixing function is the one of SplitMix64
// (Steele, Lea and Flood 2014). Spelled out here because the standard library's distributions
// and std::shuffle differ between libraries.
#pragma once

#include <cstdint>

namespace tributary::train {

class CounterRng {
 public:
  // Streams of different (seed, purpose, index) are independent for all practical ends.
  constexpr CounterRng(std::uint64_t seed, std::uint64_t purpose, std::uint64_t index)
      : key_(mix(mix(mix(seed + kGamma) + purpose + kGamma) + index + kGamma)) {}

  constexpr std::uint64_t at(std::uint64_t counter) const { return mix(key_ + (counter + 1) * kGamma); }

  // Returns a multiple of 2^-23 in [-1, 1): exact in fp32.
  constexpr float symmetric(std::uint64_t counter) const {
    const auto top = static_cast<std::int64_t>(at(counter) >> 40);
    return static_cast<float>(top - (std::int64_t{1} << 23)) * 0x1p-23f;
  }

  // Uniform in [0, n), n >= 1, without bias (Lemire 2019). Advances `counter` by as many values as it used up.
  constexpr std::uint32_t below(std::uint32_t n, std::uint64_t& counter) const {
    const std::uint32_t reject_below = static_cast<std::uint32_t>(-n) % n;
    for (;;) {
      const std::uint64_t product = (at(counter++) >> 32) * n;
      if (static_cast<std::uint32_t>(product) >= reject_below) return static_cast<std::uint32_t>(product >> 32);
    }
  }

 private:
  static constexpr std::uint64_t kGamma = 0x9e3779b97f4a7c15ull;

  static constexpr std::uint64_t mix(std::uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }

  std::uint64_t key_;
};

// The purposes of streams; part of their key.
inline constexpr std::uint64_t kStreamShuffle = 1;
inline constexpr std::uint64_t kStreamInitialValues = 2;
inline constexpr std::uint64_t kStreamSampleSums = 4;

}  // namespace tributary::train
