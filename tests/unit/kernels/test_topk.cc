#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/topk.h"
#include "tests/unit/kernels/kernel_values.h"

namespace tributary::topk_test {

namespace {

using namespace testing;
using kernels::kTopKGroup;

std::uint32_t key_of(float value) {
  return bits_of(value) & 0x7fffffffu;
}

struct Frame {
  std::vector<std::uint32_t> counts;
  std::vector<float> values;
  std::vector<std::uint16_t> offsets;

  const std::byte* count_bytes() const { return reinterpret_cast<const std::byte*>(counts.data()); }
  const std::byte* value_bytes() const { return reinterpret_cast<const std::byte*>(values.data()); }
  const std::byte* offset_bytes() const { return reinterpret_cast<const std::byte*>(offsets.data()); }
  bool valid(std::size_t elements) const {
    return kernels::topk_valid(count_bytes(), offset_bytes(), elements, values.size());
  }
  std::vector<float> decoded(std::size_t elements) const {
    std::vector<float> out(elements, 3.0f);
    kernels::topk_decode(count_bytes(), value_bytes(), offset_bytes(), values.size(), 0, elements, out.data());
    return out;
  }
};

Frame select(std::vector<float>& residual, std::size_t k) {
  Frame frame;
  frame.counts.assign(kernels::topk_groups(residual.size()), 0xdeadbeefu);
  frame.values.resize(k);
  frame.offsets.resize(k);
  std::vector<std::uint32_t> scratch(residual.size());
  kernels::topk_select(residual.data(), residual.size(), k, frame.counts.data(), frame.values.data(),
                       frame.offsets.data(), scratch.data());
  return frame;
}

// All places in the order of the header, by comparing everything.
std::vector<std::size_t> reference_order(const std::vector<float>& x) {
  std::vector<std::size_t> places(x.size());
  std::iota(places.begin(), places.end(), std::size_t{0});
  std::stable_sort(places.begin(), places.end(),
                   [&](std::size_t a, std::size_t b) { return key_of(x[a]) > key_of(x[b]); });
  return places;
}

// The first k of them, in index order.
std::vector<std::size_t> reference_places(std::vector<std::size_t> order, std::size_t k) {
  order.resize(k);
  std::sort(order.begin(), order.end());
  return order;
}

Frame reference_frame(const std::vector<float>& x, const std::vector<std::size_t>& places) {
  Frame frame;
  frame.counts.assign(kernels::topk_groups(x.size()), 0);
  for (std::size_t place : places) {
    ++frame.counts[place / kTopKGroup];
    frame.values.push_back(x[place]);
    frame.offsets.push_back(static_cast<std::uint16_t>(place % kTopKGroup));
  }
  return frame;
}

// Returns the residual of a value that is not sent.
float left_of(float x) {
  return std::isfinite(x) ? x : 0.0f;
}

bool same_values(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

std::vector<std::size_t> some_k(std::size_t elements) {
  std::vector<std::size_t> all;
  for (std::size_t k :
       {std::size_t{1}, std::size_t{2}, elements / 100, elements / 7, elements / 2, elements - 1, elements}) {
    if (k >= 1 && k <= elements) all.push_back(k);
  }
  return all;
}

TEST_CASE(
    "top-k takes what a stable sort by magnitude takes, exactly k, and what is left plus what is sent is the input") {
  for (Values kind : kAllValues) {
    for (std::size_t elements :
         {1u, 2u, 3u, 5u, 63u, 64u, 65u, 255u, 256u, 257u, 1000u, 65535u, 65536u, 65537u, 140001u}) {
      const std::vector<float> x = make_values(kind, elements, static_cast<std::uint32_t>(elements));
      const std::vector<std::size_t> order = reference_order(x);
      for (std::size_t k : some_k(elements)) {
        CAPTURE(static_cast<int>(kind));
        CAPTURE(elements);
        CAPTURE(k);
        const Frame expected = reference_frame(x, reference_places(order, k));
        std::vector<float> residual = x;
        const Frame frame = select(residual, k);
        CHECK(frame.counts == expected.counts);
        CHECK(frame.offsets == expected.offsets);
        CHECK(same_values(frame.values, expected.values));
        CHECK(frame.valid(elements));
        // Bit by bit: either the one or the other has the value, the other one +0.
        const std::vector<float> sent = frame.decoded(elements);
        std::size_t wrong = 0, next = 0;
        for (std::size_t group = 0, i = 0; group < frame.counts.size(); ++group) {
          for (std::size_t n = 0; n < frame.counts[group]; ++n, ++i) {
            const std::size_t place = group * kTopKGroup + frame.offsets[i];
            for (; next < place; ++next)
              wrong += bits_of(sent[next]) != 0 || bits_of(residual[next]) != bits_of(left_of(x[next]));
            wrong += bits_of(sent[place]) != bits_of(x[place]) || bits_of(residual[place]) != 0;
            next = place + 1;
          }
        }
        for (; next < elements; ++next)
          wrong += bits_of(sent[next]) != 0 || bits_of(residual[next]) != bits_of(left_of(x[next]));
        CHECK(wrong == 0);
      }
    }
  }
}

TEST_CASE("top-k error feedback: every value is sent in the end, and the residual stays bounded") {
  constexpr std::size_t kElements = 2000, kSent = 40;
  std::vector<double> given(kElements), received(kElements);
  std::vector<float> residual(kElements, 0.0f);
  float largest_early = 0.0f, largest_late = 0.0f;
  for (std::uint32_t round = 0; round < 1200; ++round) {
    const std::vector<float> values = make_values(Values::kGradients, kElements, round);
    for (std::size_t i = 0; i < kElements; ++i) {
      const float with_drift = values[i] + (i % 2 == 0 ? 0.003f : -0.003f);
      residual[i] += with_drift;
      given[i] += static_cast<double>(with_drift);
    }
    const Frame frame = select(residual, kSent);
    const std::vector<float> sent = frame.decoded(kElements);
    for (std::size_t i = 0; i < kElements; ++i) {
      received[i] += static_cast<double>(sent[i]);
      float& largest = round < 600 ? largest_early : largest_late;
      largest = std::max(largest, std::fabs(residual[i]));
    }
  }
  for (std::size_t i = 0; i < kElements; ++i) {
    REQUIRE(std::fabs(given[i] - received[i] - static_cast<double>(residual[i])) < 1200 * 0x1p-22);
    REQUIRE(received[i] != 0.0);
  }
  CHECK(largest_late < 1.25f * largest_early);
}

TEST_CASE("any part of a top-k frame, at any address, decodes to that part of the whole") {
  constexpr std::size_t kElements = 3 * kTopKGroup + 77;
  std::vector<float> x = make_values(Values::kWild, kElements, 8);
  // Nothing of the second group is sent.
  std::fill(x.begin() + kTopKGroup, x.begin() + 2 * kTopKGroup, 0.0f);
  const Frame frame = select(x, 2500);
  REQUIRE(frame.counts[1] == 0);
  const std::vector<float> whole = frame.decoded(kElements);
  for (std::size_t offset : {0u, 1u, 2u, 3u}) {
    Unaligned counts(frame.counts.data(), frame.counts.size() * sizeof(std::uint32_t), offset);
    Unaligned values(frame.values.data(), frame.values.size() * sizeof(float), offset);
    Unaligned offsets(frame.offsets.data(), frame.offsets.size() * sizeof(std::uint16_t), offset);
    CHECK(kernels::topk_valid(counts.data(), offsets.data(), kElements, 2500));
    for (std::size_t first : {std::size_t{0}, std::size_t{8}, std::size_t{1000}, kTopKGroup - 8, kTopKGroup,
                              2 * kTopKGroup - 128, 3 * kTopKGroup, 3 * kTopKGroup + 72, kElements}) {
      for (std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{128}, kTopKGroup, 2 * kTopKGroup + 77}) {
        if (first + count > kElements) continue;
        CAPTURE(first);
        CAPTURE(count);
        std::vector<float> out(count + 1, 3.0f);
        kernels::topk_decode(counts.data(), values.data(), offsets.data(), 2500, first, count, out.data());
        CHECK(std::memcmp(out.data(), whole.data() + first, count * sizeof(float)) == 0);
        CHECK(out.back() == 3.0f);
      }
    }
  }
}

TEST_CASE("topk_valid refuses every kind of damaged frame") {
  constexpr std::size_t kElements = 2 * kTopKGroup + 100, kSent = 600;
  // Places in all three groups.
  const std::vector<float> x(kElements, 1.0f);
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < kSent; ++i) places.push_back(i * (kElements - 1) / (kSent - 1));
  const Frame good = reference_frame(x, places);
  REQUIRE(good.valid(kElements));
  REQUIRE(good.counts[2] >= 1);
  const auto refused = [&](auto damage) {
    Frame frame = good;
    damage(frame);
    return !frame.valid(kElements);
  };
  CHECK(refused([](Frame& f) { ++f.counts[0]; }));
  CHECK(refused([](Frame& f) { --f.counts[2]; }));
  CHECK(refused([](Frame& f) { f.counts = {0, 0, 0}; }));
  CHECK(refused([](Frame& f) { f.counts[2] = 0xffffffffu; }));
  CHECK(refused([](Frame& f) { f.counts[0] = 0xffffffffu; }));
  // Three counts whose sum is right again in 32 bits.
  CHECK(refused([](Frame& f) { f.counts = {0x80000000u, 0x80000000u, kSent}; }));
  CHECK(refused([](Frame& f) { --f.counts[0], ++f.counts[1]; }));  // an offset of another group
  CHECK(refused([](Frame& f) { f.offsets[5] = f.offsets[4]; }));
  CHECK(refused([](Frame& f) { std::swap(f.offsets[5], f.offsets[6]); }));
  CHECK(refused([](Frame& f) { f.offsets.back() = 100; }));  // the last group has 100 elements
  CHECK(refused([](Frame& f) { f.offsets.back() = 65535; }));
  CHECK_FALSE(refused([](Frame& f) { f.offsets.back() = 99; }));

  Frame none;
  none.counts = {0, 0, 0};
  CHECK(none.valid(kElements));  // k = 0 places are what it says
  none.counts = {1, 0, 0};
  CHECK_FALSE(none.valid(kElements));
}

TEST_CASE(
    "a random frame that topk_valid lets pass decodes within its bounds, and the others are not read past the end") {
  std::mt19937 random(3);
  std::size_t passed = 0;
  for (int i = 0; i < 20000; ++i) {
    const std::size_t elements = 1 + random() % 6, k = 1 + random() % elements;
    std::vector<std::uint32_t> counts = {random() % 8 == 0 ? static_cast<std::uint32_t>(random())
                                                           : static_cast<std::uint32_t>(k)};
    std::vector<std::uint16_t> offsets(k);
    for (auto& offset : offsets) offset = static_cast<std::uint16_t>(random() % (elements + 1));
    const std::vector<float> values(k, 1.0f);
    Unaligned count_bytes(counts.data(), 4, random() % 4), offset_bytes(offsets.data(), 2 * k, random() % 4);
    if (!kernels::topk_valid(count_bytes.data(), offset_bytes.data(), elements, k)) continue;
    ++passed;
    std::vector<float> out(elements);
    kernels::topk_decode(count_bytes.data(), reinterpret_cast<const std::byte*>(values.data()), offset_bytes.data(), k,
                         0, elements, out.data());
    REQUIRE(std::count(out.begin(), out.end(), 1.0f) == static_cast<std::ptrdiff_t>(k));
  }
  CHECK(passed > 100);
}

}  // namespace

}  // namespace tributary::topk_test
