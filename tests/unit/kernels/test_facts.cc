#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "kernels/cast.h"
#include "kernels/facts.h"
#include "tests/unit/kernels/kernel_values.h"

namespace tributary::facts_test {

namespace {

using namespace testing;
using kernels::GradientFacts;

GradientFacts reference(const std::vector<float>& values) {
  GradientFacts facts;
  std::vector<double> sums;
  for (std::size_t first = 0; first < values.size(); first += 4096) {
    std::vector<double> squares;
    for (std::size_t i = first; i < std::min(values.size(), first + 4096); ++i) {
      squares.push_back(static_cast<double>(values[i]) * static_cast<double>(values[i]));
      facts.non_finite += !std::isfinite(values[i]);
    }
    sums.push_back(lane_sum(squares));
  }
  facts.sum_squares = lane_sum(sums);
  return facts;
}

bool same(const GradientFacts& a, const GradientFacts& b) {
  const bool sums = std::bit_cast<std::uint64_t>(a.sum_squares) == std::bit_cast<std::uint64_t>(b.sum_squares) ||
                    (std::isnan(a.sum_squares) && std::isnan(b.sum_squares));
  return sums && a.non_finite == b.non_finite;
}

std::vector<std::size_t> fact_sizes() {
  std::vector<std::size_t> all = sizes();
  all.push_back(0);
  all.push_back(1025 * 4096 + 5);  // more blocks than lanes
  return all;
}

TEST_CASE(
    "gradient facts have the bits of the definition, alone and with the casts, for every size and kind of value") {
  for (Values kind : kAllValues) {
    for (std::size_t count : fact_sizes()) {
      CAPTURE(static_cast<int>(kind));
      CAPTURE(count);
      const std::vector<float> values = make_values(kind, count, static_cast<std::uint32_t>(count));
      const GradientFacts expected = reference(values);
      CHECK(same(kernels::gradient_facts(values.data(), count), expected));
      for (const auto& [cast, cast_with_facts] : {std::pair{&kernels::fp32_to_bf16, &kernels::fp32_to_bf16_facts},
                                                  std::pair{&kernels::fp32_to_fp16, &kernels::fp32_to_fp16_facts}}) {
        std::vector<std::uint16_t> plain(count + 1, 7), with(count + 1, 7);
        cast(values.data(), count, plain.data());
        CHECK(same(cast_with_facts(values.data(), count, with.data()), expected));
        CHECK(plain == with);
      }
    }
  }
}

TEST_CASE("the test's values tell the order of the squared norm from a running one") {
  const std::vector<float> values = make_values(Values::kWild, 50000, 2);
  double running = 0.0;
  for (float value : values) running += static_cast<double>(value) * static_cast<double>(value);
  CHECK(running != reference(values).sum_squares);
  CHECK(running == doctest::Approx(reference(values).sum_squares));
}

TEST_CASE("one value that is not finite is found wherever it is, and the sum says so too") {
  for (float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::signaling_NaN(),
                    std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()}) {
    for (std::size_t count : {1u, 100u, 4096u, 9000u}) {
      for (std::size_t at : {std::size_t{0}, count / 2, count - 1}) {
        std::vector<float> values = make_values(Values::kHuge, count, 1);
        values[at] = bad;
        const GradientFacts facts = kernels::gradient_facts(values.data(), count);
        CHECK(facts.non_finite == 1);
        CHECK_FALSE(std::isfinite(facts.sum_squares));
      }
    }
  }
}

TEST_CASE("the largest floats have a finite sum of squares") {
  const std::vector<float> values(100000, -std::numeric_limits<float>::max());
  const GradientFacts facts = kernels::gradient_facts(values.data(), values.size());
  CHECK(facts.non_finite == 0);
  CHECK(std::isfinite(facts.sum_squares));
}

}  // namespace

}  // namespace tributary::facts_test
