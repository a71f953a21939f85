#include <limits>

#include "tests/gpu/kernel_twins.h"

namespace tributary::twins {
namespace {

float special(std::mt19937& random) {
  const float values[] = {std::bit_cast<float>(0x7fc00000u),  // quiet NaN, its negative, one with a payload
                          std::bit_cast<float>(0xffc00000u),
                          std::bit_cast<float>(0x7fd12345u),
                          std::bit_cast<float>(0xff923456u),  // signalling
                          std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::max(),
                          std::numeric_limits<float>::lowest(),
                          std::numeric_limits<float>::min(),
                          std::numeric_limits<float>::denorm_min(),
                          -std::numeric_limits<float>::denorm_min(),
                          0.0f,
                          -0.0f,
                          65519.0f,  // rounds to the largest half, and to infinity
                          65520.0f};
  return values[random() % std::size(values)];
}

float any_of(Values kind, std::mt19937& random) {
  const float unit = std::ldexp(static_cast<float>(static_cast<std::int32_t>(random())), -31);  // in [-1, 1]
  const auto scaled = [&](int low, int high) {
    return std::ldexp(unit, low + static_cast<int>(random() % static_cast<unsigned>(high - low + 1)));
  };
  switch (kind) {
    case Values::kWild:
      return scaled(-30, 30);
    case Values::kTies:
      return static_cast<float>(static_cast<int>(random() % 9) - 4) * (random() % 2 == 0 ? 0.25f : -0.25f);
    case Values::kDenormal:
      return scaled(-149, -120);
    case Values::kHuge:
      return scaled(126, 128);
    default:
      return 0.01f * (unit + std::ldexp(static_cast<float>(static_cast<std::int32_t>(random())), -31));
  }
}

}  // namespace

std::vector<float> make_values(Values kind, std::size_t count, std::uint32_t seed) {
  std::mt19937 random(seed * 977u + static_cast<std::uint32_t>(kind));
  std::vector<float> values(count);
  for (float& value : values) value = any_of(kind, random);
  if (kind == Values::kSpecial) {
    // Some in the first quarter of every 8192 elements.
    for (std::size_t i = random() % 200; i < count; i += 1 + random() % 400) {
      if (i % 8192 < 2048) values[i] = special(random);
    }
  }
  return values;
}

std::vector<std::vector<float>> make_arrays(Values kind, std::size_t arrays, std::size_t count, std::uint32_t seed) {
  std::vector<std::vector<float>> all;
  for (std::size_t k = 0; k < arrays; ++k) {
    all.push_back(make_values(kind, count, seed + 31 * static_cast<std::uint32_t>(k)));
  }
  return all;
}

const std::vector<std::size_t>& sizes() {
  static const std::vector<std::size_t> small = {
      0, 1, 3, 4, 5, 255, 256, 257, 1000, 4095, 4096, 4097, 4352, 8191, 3 * 4096 + 517, 65536 + 4096 + 3};
  static const std::vector<std::size_t> all = [] {
    std::vector<std::size_t> sizes = small;
    if (fast()) sizes.insert(sizes.end(), {(1u << 20) + 1, (4u << 20) - 4093});
    return sizes;
  }();
  return all;
}

}  // namespace tributary::twins
