// Products of fp32 matrices, and exp, whose bits depend on the operands alone, not on the processor.
//
// An element of a product is one sum in ascending order of the inner index, rounded after each product and each addition.
// The instruction set decides only how many elements are summed at a time (kernels/dispatch.h).
#pragma once

#include <cstddef>

namespace tributary::train {

// A matrix of fp32, read through strides in elements. A transposed matrix has its strides exchanged.
struct Matrix {
  const float* data;
  std::size_t row;     // from an element to the one below
  std::size_t column;  // from an element to the one on its right
};

struct ProductShape {
  std::size_t rows, inner, columns;
};

// out[rows x columns], row by row, = a[rows x inner] · b[inner x columns], or += with `accumulate`. `out` overlaps neither.
void multiply(const Matrix& a, const Matrix& b, const ProductShape& shape, float* out, bool accumulate);

// e^x of an x of at most 0, as softmax needs it; NaN of NaN. Rounded from a double whose relative error is below 1e-14.
float exp_not_positive(float x);

}  // namespace tributary::train
