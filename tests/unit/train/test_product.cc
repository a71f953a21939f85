#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "train/counter_rng.h"
#include "train/product.h"

namespace tributary::train::product_test {
namespace {

std::vector<float> values(std::size_t count, std::uint64_t seed) {
  const CounterRng rng(seed, 1, 2);
  std::vector<float> result(count);
  for (std::size_t i = 0; i < count; ++i) result[i] = rng.symmetric(i);
  return result;
}

// The definition: one sum an element, in ascending order.
std::vector<float> by_definition(const Matrix& a, const Matrix& b, const ProductShape& shape,
                                 const std::vector<float>& before, bool accumulate) {
  std::vector<float> out = before;
  for (std::size_t r = 0; r < shape.rows; ++r) {
    for (std::size_t c = 0; c < shape.columns; ++c) {
      volatile float sum = 0.0f;  // no vectors, whatever the compiler would like
      for (std::size_t k = 0; k < shape.inner; ++k) {
        const volatile float product = a.data[r * a.row + k * a.column] * b.data[k * b.row + c * b.column];
        sum = sum + product;
      }
      float& element = out[r * shape.columns + c];
      element = accumulate ? element + sum : sum;
    }
  }
  return out;
}

TEST_CASE(
    "A product has the bits of its definition, for every number of rows and columns, with either matrix transposed") {
  for (const ProductShape& shape : {ProductShape{1, 1, 1}, ProductShape{6, 7, 16}, ProductShape{13, 784, 33},
                                    ProductShape{5, 64, 10}, ProductShape{64, 10, 48}, ProductShape{11, 3, 17}}) {
    const auto left = values(shape.rows * shape.inner, 3), right = values(shape.inner * shape.columns, 4);
    const auto before = values(shape.rows * shape.columns, 5);
    for (const Matrix& a : {Matrix{left.data(), shape.inner, 1}, Matrix{left.data(), 1, shape.rows}}) {
      for (const Matrix& b : {Matrix{right.data(), shape.columns, 1}, Matrix{right.data(), 1, shape.inner}}) {
        for (const bool accumulate : {false, true}) {
          CAPTURE(shape.rows);
          CAPTURE(shape.columns);
          std::vector<float> out = before;
          multiply(a, b, shape, out.data(), accumulate);
          const auto expected = by_definition(a, b, shape, before, accumulate);
          CHECK(std::memcmp(out.data(), expected.data(), out.size() * sizeof(float)) == 0);
        }
      }
    }
  }
}

TEST_CASE("exp is rounded as the exact value is, down to 0") {
  CHECK(exp_not_positive(0.0f) == 1.0f);
  CHECK(exp_not_positive(-200.0f) == 0.0f);
  CHECK(exp_not_positive(-INFINITY) == 0.0f);
  CHECK(std::isnan(exp_not_positive(NAN)));  // of training that diverges
  for (float x = -110.0f; x < 0.0f; x += 0.00937f) {
    const auto exact = static_cast<float>(std::exp(static_cast<double>(x)));
    CHECK(exp_not_positive(x) == exact);
  }
}

}  // namespace
}  // namespace tributary::train::product_test
