#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/lane_sum.h"
#include "kernels/onebit.h"
#include "tests/unit/kernels/kernel_values.h"

namespace tributary::onebit_test {

namespace {

using namespace testing;
using kernels::kOneBitBlock;

struct Frame {
  std::vector<float> scales;
  std::vector<std::uint8_t> bits;
  explicit Frame(std::size_t count) : scales(kernels::onebit_blocks(count), 7.0f), bits((count + 7) / 8, 0xee) {}
  std::vector<float> decoded(std::size_t count) const {
    std::vector<float> out(count);
    kernels::onebit_decode(reinterpret_cast<const std::byte*>(scales.data()), bits.data(), 0, count, out.data());
    return out;
  }
};

struct Reference {
  Frame frame;
  std::vector<float> sent, left;
  explicit Reference(const std::vector<float>& x) : frame(x.size()), sent(x.size()), left(x.size()) {
    std::fill(frame.bits.begin(), frame.bits.end(), std::uint8_t{0});
    for (std::size_t block = 0; block < frame.scales.size(); ++block) {
      const std::size_t first = block * kOneBitBlock, end = std::min(x.size(), first + kOneBitBlock);
      std::vector<float> magnitudes;
      for (std::size_t i = first; i < end; ++i) magnitudes.push_back(std::fabs(x[i]));
      const float sum = lane_sum(magnitudes);
      const bool bad = !std::isfinite(sum);
      const float scale = bad ? std::numeric_limits<float>::quiet_NaN() : sum / static_cast<float>(end - first);
      frame.scales[block] = scale;
      for (std::size_t i = first; i < end; ++i) {
        const bool negative = !bad && x[i] < 0.0f;
        if (negative) frame.bits[i / 8] = static_cast<std::uint8_t>(frame.bits[i / 8] | (1u << (i % 8)));
        sent[i] = negative ? -scale : scale;
        left[i] = bad ? 0.0f : x[i] - sent[i];
      }
    }
  }
};

TEST_CASE("1-bit encode gives the bits of the definition for every size and kind of value") {
  for (Values kind : kAllValues) {
    for (std::size_t count : sizes()) {
      CAPTURE(static_cast<int>(kind));
      CAPTURE(count);
      const std::vector<float> values = make_values(kind, count, static_cast<std::uint32_t>(count));
      std::vector<float> residual = make_values(kind, count, static_cast<std::uint32_t>(count + 7));
      std::vector<float> x(count);
      for (std::size_t i = 0; i < count; ++i) x[i] = values[i] + residual[i];
      const Reference expected(x);
      Frame frame(count);
      kernels::onebit_encode(values.data(), count, residual.data(), frame.scales.data(), frame.bits.data());
      CHECK(differing(frame.scales, expected.frame.scales) == 0);
      CHECK(frame.bits == expected.frame.bits);
      CHECK(differing(residual, expected.left) == 0);
      CHECK(differing(frame.decoded(count), expected.sent) == 0);
    }
  }
}

TEST_CASE("the test's values tell the order of the 1-bit scale's sum from a running one") {
  std::size_t other = 0;
  for (std::uint32_t seed = 0; seed < 20; ++seed) {
    std::vector<float> x = make_values(Values::kWild, kOneBitBlock, seed);
    float running = 0.0f;
    for (float& value : x) running += value = std::fabs(value);
    other += bits_of(running) != bits_of(lane_sum(x));
  }
  CHECK(other > 10);
}

TEST_CASE("1-bit: residual and sent add up to the input, to the last bit of the larger of the two") {
  for (Values kind : {Values::kGradients, Values::kWild, Values::kTiny, Values::kEqual}) {
    for (std::size_t count : {1u, 100u, 4096u, 70000u}) {
      CAPTURE(static_cast<int>(kind));
      const std::vector<float> x = make_values(kind, count, 5);
      std::vector<float> residual(count, 0.0f);
      Frame frame(count);
      kernels::onebit_encode(x.data(), count, residual.data(), frame.scales.data(), frame.bits.data());
      const std::vector<float> sent = frame.decoded(count);
      for (std::size_t i = 0; i < count; ++i) {
        REQUIRE(std::fabs(sent[i]) == frame.scales[i / kOneBitBlock]);
        REQUIRE(std::signbit(sent[i]) == (x[i] < 0.0f));  // both zeros are sent as positive
        const double exact = static_cast<double>(x[i]) - static_cast<double>(sent[i]);
        const float larger = std::max(std::fabs(x[i]), std::fabs(sent[i]));
        const double last_bit = static_cast<double>(std::nextafter(larger, INFINITY)) - static_cast<double>(larger);
        REQUIRE(std::fabs(exact - static_cast<double>(residual[i])) <= last_bit);
      }
    }
  }
}

TEST_CASE("a 1-bit block whose sum is not finite is sent as NaN, and the residual forgets it") {
  const float kMax = std::numeric_limits<float>::max();
  for (float bad : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity(), kMax}) {
    CAPTURE(bad);
    std::vector<float> values = make_values(Values::kGradients, 2 * kOneBitBlock + 100, 1);
    std::vector<float> residual(values.size(), 0.5f);
    values[kOneBitBlock + 3] = values[kOneBitBlock + 9] = bad;  // two of kMax overflow
    Frame frame(values.size());
    kernels::onebit_encode(values.data(), values.size(), residual.data(), frame.scales.data(), frame.bits.data());
    const std::vector<float> sent = frame.decoded(values.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      const bool within = i / kOneBitBlock == 1;
      REQUIRE(std::isnan(sent[i]) == within);
      if (within) {
        REQUIRE(bits_of(residual[i]) == 0);
        REQUIRE(frame.bits[i / 8] == 0);
      }
    }
  }
}

TEST_CASE("spare bits of a 1-bit frame are 0") {
  for (std::size_t count = 1; count < 600; ++count) {
    const std::vector<float> values(count, -1.0f);
    std::vector<float> residual(count, 0.0f);
    Frame frame(count);
    kernels::onebit_encode(values.data(), count, residual.data(), frame.scales.data(), frame.bits.data());
    for (std::size_t i = 0; i < 8 * frame.bits.size(); ++i) {
      REQUIRE(((frame.bits[i / 8] >> (i % 8)) & 1) == (i < count ? 1 : 0));
    }
  }
}

TEST_CASE(
    "1-bit error feedback: what was sent over many rounds follows the sum of the inputs, the residual stays bounded") {
  constexpr std::size_t kCount = 5000;
  std::vector<double> given(kCount), received(kCount);
  std::vector<float> residual(kCount, 0.0f);
  float largest_late = 0.0f;
  for (std::uint32_t round = 0; round < 600; ++round) {
    std::vector<float> values = make_values(Values::kGradients, kCount, round);
    for (std::size_t i = 0; i < kCount; ++i)
      values[i] += i % 3 == 0 ? 0.005f : 0.0f;  // a direction that must get through
    Frame frame(kCount);
    kernels::onebit_encode(values.data(), kCount, residual.data(), frame.scales.data(), frame.bits.data());
    const std::vector<float> sent = frame.decoded(kCount);
    for (std::size_t i = 0; i < kCount; ++i) {
      given[i] += static_cast<double>(values[i]);
      received[i] += static_cast<double>(sent[i]);
      if (round >= 300) largest_late = std::max(largest_late, std::fabs(residual[i]));
    }
  }
  for (std::size_t i = 0; i < kCount; ++i) {
    REQUIRE(std::fabs(given[i] - received[i] - static_cast<double>(residual[i])) < 600 * 0x1p-22);
  }
  // The inputs of 600 rounds sum to 3 in each third place; what is still owed does not grow with the rounds.
  CHECK(largest_late < 0.25f);
}

TEST_CASE("any part of a 1-bit frame, with scales at any address, decodes to that part of the whole") {
  constexpr std::size_t kCount = 9001;
  const std::vector<float> values = make_values(Values::kWild, kCount, 8);
  std::vector<float> residual(kCount, 0.0f);
  Frame frame(kCount);
  kernels::onebit_encode(values.data(), kCount, residual.data(), frame.scales.data(), frame.bits.data());
  const std::vector<float> whole = frame.decoded(kCount);
  for (std::size_t offset : {0u, 1u, 2u, 3u}) {
    Unaligned scales(frame.scales.data(), frame.scales.size() * sizeof(float), offset);
    Unaligned bits(frame.bits.data(), frame.bits.size(), offset);
    for (std::size_t first : {0u, 8u, 128u, 4088u, 4096u, 5000u, 8992u, 9000u}) {
      for (std::size_t count : {0u, 1u, 7u, 9u, 128u, 4001u}) {
        if (first + count > kCount) continue;
        CAPTURE(first);
        CAPTURE(count);
        std::vector<float> out(count + 1, 3.0f);
        kernels::onebit_decode(scales.data(), reinterpret_cast<const std::uint8_t*>(bits.data()), first, count,
                               out.data());
        CHECK(std::equal(out.begin(), out.end() - 1, whole.begin() + static_cast<std::ptrdiff_t>(first)));
        CHECK(out.back() == 3.0f);
      }
    }
  }
}

}  // namespace

}  // namespace tributary::onebit_test
