#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <doctest/doctest.h>

#include "kernels/cast.h"
#include "kernels/stream_copy.h"
#include "kernels/tree_sum.h"

namespace tributary::kernels_test {

namespace {

std::uint32_t bits_of(float value) {
  return std::bit_cast<std::uint32_t>(value);
}

bool same_bits(const float* a, const float* b, std::size_t count) {
  return count == 0 || std::memcmp(a, b, count * sizeof(float)) == 0;
}

// Magnitudes from 2^-20 to 2^20, so that a sum in another order has other bits.
std::vector<float> wild_values(std::size_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> values(count);
  for (float& v : values) {
    v = std::ldexp(static_cast<float>(static_cast<std::int32_t>(random())), static_cast<int>(random() % 41) - 51);
  }
  return values;
}

// The definition in kernels/tree_sum.h, level by level.
float reference_sum(std::vector<float> level) {
  while (level.size() > 1) {
    std::vector<float> next;
    for (std::size_t i = 0; i + 1 < level.size(); i += 2) next.push_back(level[i] + level[i + 1]);
    if (level.size() % 2 == 1) next.push_back(level.back());
    level = next;
  }
  return level[0];
}

// n arrays that start `offset` floats past an aligned address.
struct Inputs {
  std::vector<std::vector<float>> arrays;
  std::vector<const float*> at;
  Inputs(std::size_t n, std::size_t count, std::size_t offset) {
    for (std::size_t k = 0; k < n; ++k) {
      arrays.push_back(wild_values(count + offset, static_cast<std::uint32_t>(1000 * n + k)));
      at.push_back(arrays.back().data() + offset);
    }
  }
  std::vector<float> expected(std::size_t count) const {
    std::vector<float> sum(count);
    for (std::size_t i = 0; i < count; ++i) {
      std::vector<float> leaves;
      for (const float* input : at) leaves.push_back(input[i]);
      sum[i] = reference_sum(leaves);
    }
    return sum;
  }
};

TEST_CASE("stream_copy copies, whatever the size and the alignment, and nothing more") {
  std::vector<unsigned char> from(5000), to(5200);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<unsigned char>(i * 31 + 7);
  for (const std::size_t bytes : {0u, 1u, 63u, 64u, 65u, 1000u, 4096u, 4999u}) {
    for (const std::size_t shift : {0u, 4u, 16u, 64u, 97u}) {
      CAPTURE(bytes);
      CAPTURE(shift);
      std::ranges::fill(to, static_cast<unsigned char>(0xee));
      kernels::stream_copy(from.data() + 1, bytes, to.data() + shift);
      CHECK(std::memcmp(to.data() + shift, from.data() + 1, bytes) == 0);
      CHECK(to[shift + bytes] == 0xee);
      CHECK((shift == 0 || to[shift - 1] == 0xee));
    }
  }
}

TEST_CASE("tree_sum adds in the documented tree, bit for bit, for every number of inputs, length and alignment") {
  std::vector<std::size_t> ns = {33, 64, 100, 255};
  for (std::size_t n = 1; n <= 17; ++n) ns.push_back(n);
  for (std::size_t n : ns) {
    for (std::size_t count : {0, 1, 5, 16, 63, 1024, 1025, 2500}) {
      for (std::size_t offset : {0, 3}) {
        CAPTURE(n);
        CAPTURE(count);
        CAPTURE(offset);
        Inputs inputs(n, count, offset);
        const std::vector<float> expected = inputs.expected(count);
        std::vector<float> out(count + offset + 1, 7.0f);
        kernels::tree_sum(inputs.at, count, out.data() + offset);
        CHECK(same_bits(out.data() + offset, expected.data(), count));
        CHECK(out.back() == 7.0f);
        kernels::tree_sum(inputs.at, count, const_cast<float*>(inputs.at[0]));
        CHECK(same_bits(inputs.at[0], expected.data(), count));
      }
    }
  }
}

TEST_CASE("tree_sum takes the largest number of inputs") {
  Inputs inputs(kernels::kMaxSumInputs, 70, 0);
  std::vector<float> out(70);
  kernels::tree_sum(inputs.at, 70, out.data());
  CHECK(same_bits(out.data(), inputs.expected(70).data(), 70));
}

TEST_CASE("the test's inputs tell the tree from a running sum") {
  Inputs inputs(8, 2000, 0);
  const std::vector<float> expected = inputs.expected(2000);
  std::size_t differing = 0;
  for (std::size_t i = 0; i < 2000; ++i) {
    float running = 0.0f;
    for (const float* input : inputs.at) running += input[i];
    differing += bits_of(running) != bits_of(expected[i]);
  }
  CHECK(differing > 100);
}

TEST_CASE("summing 2^k ranks inside each node first gives the bits of the flat sum") {
  constexpr std::size_t kCount = 1500;
  for (std::size_t nodes : {1, 2, 3, 4, 5, 7, 16}) {
    for (std::size_t ranks : {1, 2, 4, 8, 16}) {
      CAPTURE(nodes);
      CAPTURE(ranks);
      Inputs inputs(nodes * ranks, kCount, 0);
      std::vector<float> flat(kCount);
      kernels::tree_sum(inputs.at, kCount, flat.data());
      std::vector<std::vector<float>> node_sums(nodes, std::vector<float>(kCount));
      std::vector<const float*> at;
      for (std::size_t node = 0; node < nodes; ++node) {
        kernels::tree_sum(std::span(inputs.at).subspan(node * ranks, ranks), kCount, node_sums[node].data());
        at.push_back(node_sums[node].data());
      }
      std::vector<float> nested(kCount);
      kernels::tree_sum(at, kCount, nested.data());
      CHECK(same_bits(flat.data(), nested.data(), kCount));
    }
  }
}

TEST_CASE("scale multiplies each value once") {
  for (std::size_t count : {0, 1, 15, 16, 17, 333}) {
    std::vector<float> values = wild_values(count + 1, 5);
    const std::vector<float> before = values;
    const float third = 1.0f / 3.0f;
    kernels::scale(values.data(), count, third);
    for (std::size_t i = 0; i < count; ++i) CHECK(bits_of(values[i]) == bits_of(before[i] * third));
    CHECK(bits_of(values[count]) == bits_of(before[count]));
  }
}

// Rounds |value| to `digits` significand bits (fewer below 2^min_exponent) with the double's own rounding to nearest
// even; an implementation that shares nothing with kernels/cast.cc.
double round_to_format(double value, int digits, int min_exponent) {
  int exponent = 0;
  std::frexp(value, &exponent);  // value = f * 2^exponent, f in [0.5, 1)
  const int unit = std::max(exponent - digits, min_exponent - digits + 1);
  return std::ldexp(std::nearbyint(std::ldexp(value, -unit)), unit);
}

std::uint16_t reference_fp16(float value) {
  const std::uint16_t sign = static_cast<std::uint16_t>((bits_of(value) >> 16) & 0x8000u);
  if (std::isnan(value)) return static_cast<std::uint16_t>(sign | 0x7e00u | ((bits_of(value) & 0x7fffffu) >> 13));
  const double rounded = round_to_format(std::fabs(static_cast<double>(value)), 11, -14);
  if (!(rounded < 65536.0)) return sign | 0x7c00u;
  if (rounded < std::ldexp(1.0, -14)) return sign | static_cast<std::uint16_t>(std::ldexp(rounded, 24));
  int exponent = 0;
  const double fraction = std::frexp(rounded, &exponent);
  return static_cast<std::uint16_t>(sign | ((exponent + 14) << 10) |
                                    (static_cast<int>(std::ldexp(fraction, 11)) & 0x3ff));
}

std::uint16_t reference_bf16(float value) {
  if (std::isnan(value)) return static_cast<std::uint16_t>((bits_of(value) >> 16) | 0x40u);
  const float rounded = static_cast<float>(round_to_format(value, 8, -126));  // overflows to infinity in the cast
  return static_cast<std::uint16_t>(bits_of(rounded) >> 16);
}

float reference_from_fp16(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000u) << 16;
  const int exponent = (half >> 10) & 31, fraction = half & 0x3ff;
  if (exponent == 31) {
    const std::uint32_t quiet = fraction ? 0x00400000u : 0u;
    return std::bit_cast<float>(sign | 0x7f800000u | quiet | (static_cast<std::uint32_t>(fraction) << 13));
  }
  const double magnitude = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
  return std::bit_cast<float>(bits_of(static_cast<float>(magnitude)) | sign);
}

std::vector<float> interesting_floats() {
  std::vector<float> values;
  // Every sign, exponent and top 12 bits of the significand, with low bits just below, at and just above a tie.
  for (std::uint32_t top = 0; top < 1u << 21; top += 7) {
    for (std::uint32_t low : {0u, 1u, 0x3ffu, 0x400u, 0x7ffu})
      values.push_back(std::bit_cast<float>((top << 11) | low));
  }
  // Around each half and the middle between it and the next one, the same for bf16.
  for (std::uint32_t half = 0; half < 0x7c00u; ++half) {
    const std::uint32_t at = bits_of(reference_from_fp16(static_cast<std::uint16_t>(half)));
    const std::uint32_t next = bits_of(reference_from_fp16(static_cast<std::uint16_t>(half + 1)));
    const double middle = (static_cast<double>(std::bit_cast<float>(at)) +
                           (half == 0x7bffu ? 65536.0 : static_cast<double>(std::bit_cast<float>(next)))) /
                          2;
    const std::uint32_t tie = bits_of(static_cast<float>(middle));
    for (std::uint32_t b : {at, tie - 1, tie, tie + 1}) values.push_back(std::bit_cast<float>(b));
  }
  for (std::uint32_t top = 0; top < 0x10000u; ++top) {
    for (std::uint32_t low : {0u, 0x7fffu, 0x8000u, 0x8001u}) values.push_back(std::bit_cast<float>((top << 16) | low));
  }
  std::mt19937 random(11);
  for (int i = 0; i < 1000000; ++i) values.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(random())));
  for (float v : {65504.0f, 65519.996f, 65520.0f, 65536.0f, 0x1p-24f, 0x1p-25f, 0x1.000002p-25f, 0x1p-126f, 0x1p-149f,
                  std::numeric_limits<float>::max(), std::numeric_limits<float>::infinity(), 0.0f}) {
    values.push_back(v);
    values.push_back(-v);
  }
  return values;
}

template <class In, class Out, class Reference>
void check_each(const std::vector<In>& in, const std::vector<Out>& out, Reference reference) {
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < in.size(); ++i) {
    const Out expected = reference(in[i]);
    if (std::memcmp(&expected, &out[i], sizeof(Out)) != 0 && wrong++ < 5) {
      CAPTURE(i);
      std::uint64_t in_bits = 0, got = 0, want = 0;
      std::memcpy(&in_bits, &in[i], sizeof(In));
      std::memcpy(&got, &out[i], sizeof(Out));
      std::memcpy(&want, &expected, sizeof(Out));
      CAPTURE(in_bits);
      CHECK(got == want);
    }
  }
  CHECK(wrong == 0);
}

std::vector<std::uint16_t> all_halves() {
  std::vector<std::uint16_t> halves(0x10000);
  for (std::size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<std::uint16_t>(i);
  return halves;
}

TEST_CASE("fp32 to fp16 rounds to nearest even, with subnormals, overflow and quietened NaN") {
  const std::vector<float> values = interesting_floats();
  std::vector<std::uint16_t> halves(values.size());
  kernels::fp32_to_fp16(values.data(), values.size(), halves.data());
  check_each(values, halves, reference_fp16);
}

TEST_CASE("fp32 to bf16 rounds to nearest even, with subnormals, overflow and quietened NaN") {
  const std::vector<float> values = interesting_floats();
  std::vector<std::uint16_t> halves(values.size());
  kernels::fp32_to_bf16(values.data(), values.size(), halves.data());
  check_each(values, halves, reference_bf16);
}

TEST_CASE("every fp16 value becomes its fp32 value, and comes back") {
  const std::vector<std::uint16_t> halves = all_halves();
  std::vector<float> values(halves.size());
  kernels::fp16_to_fp32(halves.data(), halves.size(), values.data());
  check_each(halves, values, reference_from_fp16);
  std::vector<std::uint16_t> back(halves.size());
  kernels::fp32_to_fp16(values.data(), values.size(), back.data());
  check_each(halves, back, [](std::uint16_t half) {
    const bool signalling = (half & 0x7fffu) > 0x7c00u && !(half & 0x0200u);
    return static_cast<std::uint16_t>(signalling ? half | 0x0200u : half);
  });
}

TEST_CASE("every bf16 value becomes its fp32 value, and comes back") {
  const std::vector<std::uint16_t> halves = all_halves();
  const auto quiet = [](std::uint16_t half) {
    return static_cast<std::uint16_t>((half & 0x7fffu) > 0x7f80u ? half | 0x0040u : half);
  };
  std::vector<float> values(halves.size());
  kernels::bf16_to_fp32(halves.data(), halves.size(), values.data());
  check_each(halves, values,
             [&](std::uint16_t half) { return std::bit_cast<float>(static_cast<std::uint32_t>(quiet(half)) << 16); });
  std::vector<std::uint16_t> back(halves.size());
  kernels::fp32_to_bf16(values.data(), values.size(), back.data());
  check_each(halves, back, quiet);
}

TEST_CASE("casts give the same bits in the vector loop and in its tail, and write nothing past the end") {
  const std::vector<float> values = wild_values(200, 3);
  std::vector<std::uint16_t> fp16(200), bf16(200);
  for (std::size_t i = 0; i < values.size(); ++i) {
    fp16[i] = reference_fp16(values[i]);
    bf16[i] = reference_bf16(values[i]);
  }
  for (std::size_t first : {0, 1, 2, 3}) {
    for (std::size_t count = 0; count < 130; ++count) {
      CAPTURE(first);
      CAPTURE(count);
      std::vector<std::uint16_t> halves(count + 1, 0xabcd);
      kernels::fp32_to_fp16(values.data() + first, count, halves.data());
      CHECK(std::memcmp(halves.data(), fp16.data() + first, 2 * count) == 0);
      CHECK(halves[count] == 0xabcd);
      kernels::fp32_to_bf16(values.data() + first, count, halves.data());
      CHECK(std::memcmp(halves.data(), bf16.data() + first, 2 * count) == 0);
      CHECK(halves[count] == 0xabcd);
      std::vector<float> floats(count + 1, 7.0f);
      kernels::fp16_to_fp32(fp16.data() + first, count, floats.data());
      for (std::size_t i = 0; i < count; ++i) REQUIRE(floats[i] == reference_from_fp16(fp16[first + i]));
      CHECK(floats[count] == 7.0f);
      kernels::bf16_to_fp32(bf16.data() + first, count, floats.data());
      for (std::size_t i = 0; i < count; ++i) REQUIRE((bits_of(floats[i]) >> 16) == bf16[first + i]);
      CHECK(floats[count] == 7.0f);
    }
  }
}

#if defined(__x86_64__)
__attribute__((target("avx,f16c"))) std::uint16_t hardware_fp16(float value) {
  return static_cast<std::uint16_t>(_mm_extract_epi16(_mm_cvtps_ph(_mm_set_ss(value), _MM_FROUND_TO_NEAREST_INT), 0));
}
__attribute__((target("avx,f16c"))) float hardware_from_fp16(std::uint16_t half) {
  return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(half)));
}

TEST_CASE("fp16 casts agree with the processor's own instructions") {
  if (!__builtin_cpu_supports("f16c")) {
    MESSAGE("this processor has none: nothing to compare with");
    return;
  }
  const std::vector<float> values = interesting_floats();
  std::vector<std::uint16_t> halves(values.size());
  kernels::fp32_to_fp16(values.data(), values.size(), halves.data());
  check_each(values, halves, hardware_fp16);
  const std::vector<std::uint16_t> all = all_halves();
  std::vector<float> floats(all.size());
  kernels::fp16_to_fp32(all.data(), all.size(), floats.data());
  check_each(all, floats, hardware_from_fp16);
}
#endif

}  // namespace

}  // namespace tributary::kernels_test
