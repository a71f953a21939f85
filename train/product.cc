#include "train/product.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/dispatch.h"

namespace tributary::train {
namespace {

constexpr std::size_t kWidth = 16;  // columns of a tile: a register of AVX-512, two of AVX2
constexpr std::size_t kRows = 6;    // rows of a tile: with AVX2 its sums take 12 of 16 registers

typedef float Lanes __attribute__((vector_size(kWidth * sizeof(float))));

struct Tile {
  const float* a;
  std::size_t a_row, a_column;
  const float* panel;  // inner x kWidth values of b
  std::size_t inner;
  float* out;
  std::size_t out_row;
  std::size_t width;  // columns that are written, at most kWidth
  bool accumulate;
};

template <std::size_t kTileRows>
TRIBUTARY_INLINE void sum_tile(const Tile& tile) {
  Lanes sums[kTileRows] = {};
  for (std::size_t k = 0; k < tile.inner; ++k) {
    Lanes b;
    std::memcpy(&b, tile.panel + k * kWidth, sizeof b);
    const float* a = tile.a + k * tile.a_column;
#pragma GCC unroll 8
    for (std::size_t r = 0; r < kTileRows; ++r) sums[r] += a[r * tile.a_row] * b;
  }
#pragma GCC unroll 8
  for (std::size_t r = 0; r < kTileRows; ++r) {
    float* out = tile.out + r * tile.out_row;
    for (std::size_t c = 0; c < tile.width; ++c) out[c] = tile.accumulate ? out[c] + sums[r][c] : sums[r][c];
  }
}

TRIBUTARY_INLINE void sum_rest(const Tile& tile, std::size_t rows) {
  switch (rows) {
    case 1:
      return sum_tile<1>(tile);
    case 2:
      return sum_tile<2>(tile);
    case 3:
      return sum_tile<3>(tile);
    case 4:
      return sum_tile<4>(tile);
    case 5:
      return sum_tile<5>(tile);
    default:
      return;
  }
}

// All rows of the columns that `tile` begins at.
TRIBUTARY_MULTIVERSION void sum_columns(Tile tile, std::size_t rows) {
  for (; rows >= kRows; rows -= kRows) {
    sum_tile<kRows>(tile);
    tile.a += kRows * tile.a_row;
    tile.out += kRows * tile.out_row;
  }
  sum_rest(tile, rows);
}

}  // namespace

void multiply(const Matrix& a, const Matrix& b, const ProductShape& shape, float* out, bool accumulate) {
  std::vector<float> panel(shape.inner * kWidth);
  for (std::size_t c = 0; c < shape.columns; c += kWidth) {
    const std::size_t width = std::min(kWidth, shape.columns - c);
    if (width < kWidth) std::fill(panel.begin(), panel.end(), 0.0f);
    for (std::size_t k = 0; k < shape.inner; ++k) {
      const float* from = b.data + k * b.row + c * b.column;
      for (std::size_t i = 0; i < width; ++i) panel[k * kWidth + i] = from[i * b.column];
    }
    sum_columns({.a = a.data,
                 .a_row = a.row,
                 .a_column = a.column,
                 .panel = panel.data(),
                 .inner = shape.inner,
                 .out = out + c,
                 .out_row = shape.columns,
                 .width = width,
                 .accumulate = accumulate},
                shape.rows);
  }
}

float exp_not_positive(float x) {
  // e^x = 2^n · e^r with |r| <= ln 2 / 2, and e^r by its Taylor series; ln 2 in two parts, the first without its last bits.
  constexpr double kLog2E = 1.4426950408889634, kLn2High = 0.693147180369123816490,
                   kLn2Low = 1.90821492927058770002e-10;
  if (!(x >= -104.0f)) return std::isnan(x) ? x : 0.0f;  // below half of the smallest fp32
  const double n = std::nearbyint(x * kLog2E);
  const double r = (x - n * kLn2High) - n * kLn2Low;
  double sum = 1.0;
  for (int k = 13; k >= 1; --k) sum = 1.0 + sum * r / k;
  return static_cast<float>(std::ldexp(sum, static_cast<int>(n)));
}

}  // namespace tributary::train
