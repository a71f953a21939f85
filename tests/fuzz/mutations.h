// Mutations: small changes of an input that parsers tend to miss, the same for the same seed.
#pragma once

#include <algorithm>
#include <cstring>
#include <iterator>
#include <random>

#include "tests/fuzz/fuzz_target.h"

namespace tributary::fuzz {

class Mutations {
 public:
  explicit Mutations(std::uint64_t seed) : random_(seed) {}
  std::size_t below(std::size_t bound) { return bound == 0 ? 0 : random_() % bound; }

  // other: of which a piece may come in.
  Bytes of(Bytes input, const Bytes& other) {
    for (std::size_t changes = 1 + below(4); changes > 0; --changes) change(input, other);
    return input;
  }

 private:
  void change(Bytes& input, const Bytes& other) {
    static constexpr std::uint64_t kOdd[] = {0, 1, 0x7f, 0x80, 0xff, 0x7fff'ffff, 0x8000'0000, 0xffff'ffff, ~0ull};
    const std::size_t at = below(input.size() + 1), left = input.size() - at;
    const auto here = input.begin() + static_cast<std::ptrdiff_t>(at);
    switch (below(6)) {
      case 0:
        if (left > 0) *here ^= static_cast<std::byte>(1u << below(8));
        break;
      case 1:
        if (left > 0) *here = static_cast<std::byte>(below(256));
        break;
      case 2: {  // a number of 1, 2, 4 or 8 bytes
        const std::uint64_t value = kOdd[below(std::size(kOdd))];
        const std::size_t bytes = std::min<std::size_t>(std::size_t{1} << below(4), left);
        if (bytes > 0) std::memcpy(&*here, &value, bytes);
        break;
      }
      case 3:
        input.erase(here, here + static_cast<std::ptrdiff_t>(piece(left)));
        break;
      case 4: {  // once more
        const Bytes again(here, here + static_cast<std::ptrdiff_t>(piece(left)));
        input.insert(input.begin() + static_cast<std::ptrdiff_t>(below(input.size() + 1)), again.begin(), again.end());
        break;
      }
      default: {
        const std::size_t from = below(other.size() + 1);
        const auto begin = other.begin() + static_cast<std::ptrdiff_t>(from);
        const Bytes copied(begin, begin + static_cast<std::ptrdiff_t>(piece(other.size() - from)));
        input.insert(here, copied.begin(), copied.end());
      }
    }
  }
  // Mostly short, at times all there is.
  std::size_t piece(std::size_t left) { return below(1 + (below(4) == 0 ? left : std::min<std::size_t>(left, 16))); }

  std::mt19937_64 random_;
};

}  // namespace tributary::fuzz
