#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/int8.h"
#include "tests/unit/kernels/kernel_values.h"

namespace tributary::int8_test {

namespace {

using namespace testing;
using kernels::kInt8Block;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Frame {
  std::vector<float> scales;
  std::vector<std::int8_t> q;
  explicit Frame(std::size_t count) : scales(kernels::int8_blocks(count), 7.0f), q(count, 77) {}
  const std::byte* scale_bytes() const { return reinterpret_cast<const std::byte*>(scales.data()); }
  std::vector<float> decoded() const {
    std::vector<float> out(q.size());
    kernels::int8_decode(scale_bytes(), q.data(), 0, q.size(), out.data());
    return out;
  }
};

// The definition in kernels/int8.h, one value after another. x becomes x - D; `sent` is D.
struct Reference {
  Frame frame;
  std::vector<float> sent, left;
  explicit Reference(const std::vector<float>& x) : frame(x.size()), sent(x.size()), left(x.size()) {
    for (std::size_t block = 0; block < frame.scales.size(); ++block) {
      const std::size_t first = block * kInt8Block, end = std::min(x.size(), first + kInt8Block);
      float a = 0.0f;
      bool bad = false;
      for (std::size_t i = first; i < end; ++i) {
        bad = bad || !(std::fabs(x[i]) < kernels::kInt8Overflow);
        if (std::fabs(x[i]) > a) a = std::fabs(x[i]);
      }
      const bool tiny = a < kernels::kInt8Smallest;
      const float scale = bad ? kNan : tiny ? 0.0f : a / 127.0f;
      frame.scales[block] = scale;
      for (std::size_t i = first; i < end; ++i) {
        const double rounded = bad || tiny ? 0.0 : std::nearbyint(static_cast<double>(x[i] * (127.0f / a)));
        frame.q[i] = static_cast<std::int8_t>(rounded);
        sent[i] = static_cast<float>(rounded) * scale + 0.0f;
        left[i] = bad ? 0.0f : x[i] - sent[i];
      }
    }
  }
};

std::vector<float> plus(const std::vector<float>& a, const std::vector<float>& b) {
  std::vector<float> sum(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) sum[i] = a[i] + b[i];
  return sum;
}

void check_frame(const Frame& frame, const Reference& expected) {
  CHECK(differing(frame.scales, expected.frame.scales) == 0);
  CHECK(frame.q == expected.frame.q);
  CHECK(differing(frame.decoded(), expected.sent) == 0);
}

TEST_CASE("int8 encode gives the bits of the definition for every size and kind of value") {
  for (Values kind : kAllValues) {
    for (std::size_t count : sizes()) {
      CAPTURE(static_cast<int>(kind));
      CAPTURE(count);
      const std::vector<float> values = make_values(kind, count, static_cast<std::uint32_t>(count));
      std::vector<float> residual = make_values(kind, count, static_cast<std::uint32_t>(count + 7));
      const Reference expected(plus(values, residual));
      Frame frame(count);
      kernels::int8_encode(values.data(), count, residual.data(), frame.scales.data(), frame.q.data());
      check_frame(frame, expected);
      CHECK(differing(residual, expected.left) == 0);

      const Reference alone(values);
      Frame without(count);
      kernels::int8_encode(values.data(), count, nullptr, without.scales.data(), without.q.data());
      check_frame(without, alone);
    }
  }
}

TEST_CASE("int8 keeps what it does not send: residual and sent add up to the input bit by bit") {
  std::size_t all = 0, inexact = 0;
  for (Values kind : kFiniteValues) {
    for (std::size_t count : {1u, 100u, 256u, 70000u}) {
      CAPTURE(static_cast<int>(kind));
      const std::vector<float> x = make_values(kind, count, 5);
      std::vector<float> residual(count, 0.0f);
      Frame frame(count);
      kernels::int8_encode(x.data(), count, residual.data(), frame.scales.data(), frame.q.data());
      const std::vector<float> sent = frame.decoded();
      for (std::size_t i = 0; i < count; ++i) {
        const float scale = frame.scales[i / kInt8Block];
        const double left = static_cast<double>(x[i]) - static_cast<double>(sent[i]);
        // Half a scale, and the roundings of x * (127 / a), a / 127 and q * scale, each 2^-24 of at most 127 scales.
        REQUIRE(std::fabs(left) <= (scale == 0.0f ? 0x1p-100 : static_cast<double>(scale) * (0.5 + 127 * 0x1p-22)));
        // The edge that the header names: the difference may need a bit more than a float has.
        const bool edge =
            std::fabs(std::fabs(left) - 0.5 * static_cast<double>(scale)) < 0x1p-15 * static_cast<double>(scale);
        ++all;
        inexact += static_cast<double>(residual[i]) != left;
        if (!edge) REQUIRE(static_cast<double>(residual[i]) == left);
        REQUIRE(residual[i] + sent[i] == x[i]);
      }
    }
  }
  CHECK(inexact * 1000 <= all);
}

TEST_CASE("a block of zeros or of less than the smallest magnitude stays in the residual whole") {
  for (float magnitude : {0.0f, 0x1p-149f, 0x1p-126f, std::nextafter(kernels::kInt8Smallest, 0.0f)}) {
    std::vector<float> values = {magnitude, -magnitude, 0.0f, -0.0f}, residual(4, 0.0f);
    Frame frame(4);
    kernels::int8_encode(values.data(), 4, residual.data(), frame.scales.data(), frame.q.data());
    CHECK(bits_of(frame.scales[0]) == 0);
    CHECK(frame.q == std::vector<std::int8_t>{0, 0, 0, 0});
    CHECK(residual[0] == magnitude);
    CHECK(residual[1] == -magnitude);
  }
  std::vector<float> value = {kernels::kInt8Smallest}, residual = {0.0f};
  Frame frame(1);
  kernels::int8_encode(value.data(), 1, residual.data(), frame.scales.data(), frame.q.data());
  CHECK(frame.q[0] == 127);
  CHECK(std::fabs(residual[0]) <= 0x1p-107f);
}

TEST_CASE("a block that is not finite or could overflow is sent as NaN, and the residual forgets it") {
  for (float bad : {kNan, kInfinity, -kInfinity, std::numeric_limits<float>::max(), -kernels::kInt8Overflow}) {
    for (std::size_t at : {0u, 100u, 255u}) {
      CAPTURE(bad);
      std::vector<float> values = make_values(Values::kGradients, 3 * kInt8Block, 1), residual(values.size(), 0.5f);
      values[kInt8Block + at] = bad;
      Frame frame(values.size());
      kernels::int8_encode(values.data(), values.size(), residual.data(), frame.scales.data(), frame.q.data());
      const std::vector<float> sent = frame.decoded();
      for (std::size_t i = 0; i < values.size(); ++i) {
        const bool within = i / kInt8Block == 1;
        REQUIRE(std::isnan(sent[i]) == within);
        if (within) {
          REQUIRE(bits_of(residual[i]) == 0);
          REQUIRE(frame.q[i] == 0);
        }
      }
    }
  }
  // The largest magnitude that is sent as a number decodes to one.
  std::vector<float> value = {std::nextafter(kernels::kInt8Overflow, 0.0f)}, residual = {0.0f};
  Frame frame(1);
  kernels::int8_encode(value.data(), 1, residual.data(), frame.scales.data(), frame.q.data());
  CHECK(std::isfinite(frame.decoded()[0]));
  CHECK(std::isfinite(residual[0]));
}

TEST_CASE("int8 delta: both sides' estimates stay equal bit by bit and reach a target that stands still") {
  constexpr std::size_t kCount = 1000;
  std::vector<float> target = make_values(Values::kWild, kCount, 3);
  std::vector<float> author(kCount, -0.0f), receiver(kCount, -0.0f);
  for (int round = 0; round < 12; ++round) {
    CAPTURE(round);
    std::vector<float> change(kCount);
    for (std::size_t i = 0; i < kCount; ++i) change[i] = target[i] - author[i];
    const Reference expected(change);
    Frame frame(kCount);
    kernels::int8_encode_delta(target.data(), kCount, author.data(), frame.scales.data(), frame.q.data());
    check_frame(frame, expected);
    kernels::int8_decode_add(frame.scale_bytes(), frame.q.data(), 0, kCount, receiver.data());
    REQUIRE(std::memcmp(author.data(), receiver.data(), kCount * sizeof(float)) == 0);
  }
  // Each round divides what is missing by 254; what remains is the rounding of the estimate itself.
  for (std::size_t i = 0; i < kCount; ++i) REQUIRE(std::fabs(author[i] - target[i]) <= std::fabs(target[i]) * 0x1p-23f);
  // A target that moves afterwards, also to values that are not finite.
  target = make_values(Values::kAnyBits, kCount, 4);
  Frame frame(kCount);
  kernels::int8_encode_delta(target.data(), kCount, author.data(), frame.scales.data(), frame.q.data());
  kernels::int8_decode_add(frame.scale_bytes(), frame.q.data(), 0, kCount, receiver.data());
  CHECK(differing(author, receiver) == 0);
}

TEST_CASE("int8 error feedback: what was sent over many rounds is the sum of the inputs but for one bounded residual") {
  constexpr std::size_t kCount = 700;
  std::vector<double> given(kCount), received(kCount);
  std::vector<float> residual(kCount, 0.0f);
  for (std::uint32_t round = 0; round < 500; ++round) {
    const std::vector<float> values = make_values(Values::kGradients, kCount, round);
    Frame frame(kCount);
    kernels::int8_encode(values.data(), kCount, residual.data(), frame.scales.data(), frame.q.data());
    const std::vector<float> sent = frame.decoded();
    for (std::size_t i = 0; i < kCount; ++i) {
      given[i] += static_cast<double>(values[i]);
      received[i] += static_cast<double>(sent[i]);
      REQUIRE(std::fabs(residual[i]) <= frame.scales[i / kInt8Block] * 0.50001f);
    }
  }
  for (std::size_t i = 0; i < kCount; ++i) {
    // 500 additions of values below 0.1 into a float.
    REQUIRE(std::fabs(given[i] - received[i] - static_cast<double>(residual[i])) < 500 * 0.1 * 0x1p-24);
  }
}

TEST_CASE("any part of an int8 frame, at any address, decodes to that part of the whole") {
  constexpr std::size_t kCount = 1100;
  const std::vector<float> values = make_values(Values::kWild, kCount, 8);
  Frame frame(kCount);
  kernels::int8_encode(values.data(), kCount, nullptr, frame.scales.data(), frame.q.data());
  const std::vector<float> whole = frame.decoded();
  for (std::size_t offset : {0u, 1u, 2u, 3u}) {
    Unaligned scales(frame.scales.data(), frame.scales.size() * sizeof(float), offset);
    Unaligned q(frame.q.data(), kCount, offset);
    for (std::size_t first : {0u, 1u, 8u, 128u, 255u, 256u, 300u, 1024u, 1100u}) {
      for (std::size_t count : {0u, 1u, 7u, 76u, 128u, 257u, 800u}) {
        if (first + count > kCount) continue;
        std::vector<float> out(count + 1, 3.0f);
        kernels::int8_decode(scales.data(), reinterpret_cast<const std::int8_t*>(q.data()), first, count, out.data());
        CHECK(std::equal(out.begin(), out.end() - 1, whole.begin() + static_cast<std::ptrdiff_t>(first)));
        CHECK(out.back() == 3.0f);
        std::vector<float> sum(count + 1, 3.0f);
        kernels::int8_decode_add(scales.data(), reinterpret_cast<const std::int8_t*>(q.data()), first, count,
                                 sum.data());
        for (std::size_t i = 0; i < count; ++i) REQUIRE(bits_of(sum[i]) == bits_of(3.0f + whole[first + i]));
        CHECK(sum.back() == 3.0f);
      }
    }
  }
}

TEST_CASE("int8 decodes whatever bytes arrive") {
  std::vector<std::int8_t> q(256);
  for (int i = 0; i < 256; ++i) q[static_cast<std::size_t>(i)] = static_cast<std::int8_t>(i - 128);
  for (float scale : {-1.5f, kInfinity, kNan, std::numeric_limits<float>::max(), 0x1p-149f, -0.0f}) {
    CAPTURE(scale);
    std::vector<float> out(256);
    kernels::int8_decode(reinterpret_cast<const std::byte*>(&scale), q.data(), 0, 256, out.data());
    for (std::size_t i = 0; i < 256; ++i) REQUIRE(same(out[i], static_cast<float>(q[i]) * scale));
  }
}

}  // namespace

}  // namespace tributary::int8_test
