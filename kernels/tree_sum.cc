#include "kernels/tree_sum.h"

#include <algorithm>
#include <array>
#include <bit>

#include "kernels/dispatch.h"

namespace tributary::kernels {
namespace {

// Up to this many inputs are summed in one loop; more go by halves through blocks of scratch.
constexpr std::size_t kDirect = 8;
constexpr std::size_t kBlock = 1024;  // floats: 4 KiB, so that the scratch of all levels stays in the L1/L2 cache
// Levels of scratch: each halves the rest of kMaxSumInputs until kDirect inputs remain.
constexpr std::size_t kLevels = 7;
static_assert(kMaxSumInputs <= kDirect << kLevels);

TRIBUTARY_MULTIVERSION
void copy(const float* a, std::size_t count, float* out) {
  TRIBUTARY_ELEMENTWISE
  for (std::size_t i = 0; i < count; ++i) out[i] = a[i];
}

TRIBUTARY_MULTIVERSION
void sum2(const float* a, const float* b, std::size_t count, float* out) {
  TRIBUTARY_ELEMENTWISE
  for (std::size_t i = 0; i < count; ++i) out[i] = a[i] + b[i];
}

TRIBUTARY_MULTIVERSION
void sum3(const float* const* in, std::size_t count, float* out) {
  const float *a = in[0], *b = in[1], *c = in[2];
  TRIBUTARY_ELEMENTWISE
  for (std::size_t i = 0; i < count; ++i) out[i] = (a[i] + b[i]) + c[i];
}

TRIBUTARY_MULTIVERSION
void sum4(const float* const* in, std::size_t count, float* out) {
  const float *a = in[0], *b = in[1], *c = in[2], *d = in[3];
  TRIBUTARY_ELEMENTWISE
  for (std::size_t i = 0; i < count; ++i) out[i] = (a[i] + b[i]) + (c[i] + d[i]);
}

TRIBUTARY_MULTIVERSION
void sum5(const float* const* in, std::size_t count, float* out) {
  const float *a = in[0], *b = in[1], *c = in[2], *d = in[3], *e = in[4];
  TRIBUTARY_ELEMENTWISE
  for (std::size_t i = 0; i < count; ++i) out[i] = ((a[i] + b[i]) + (c[i] + d[i])) + e[i];
}

TRIBUTARY_MULTIVERSION
void sum6(const float* const* in, std::size_t count, float* out) {
  const float *a = in[0], *b = in[1], *c = in[2], *d = in[3], *e = in[4], *f = in[5];
  TRIBUTARY_ELEMENTWISE
  for (std::size_t i = 0; i < count; ++i) out[i] = ((a[i] + b[i]) + (c[i] + d[i])) + (e[i] + f[i]);
}

TRIBUTARY_MULTIVERSION
void sum7(const float* const* in, std::size_t count, float* out) {
  const float *a = in[0], *b = in[1], *c = in[2], *d = in[3], *e = in[4], *f = in[5], *g = in[6];
  TRIBUTARY_ELEMENTWISE
  for (std::size_t i = 0; i < count; ++i) out[i] = ((a[i] + b[i]) + (c[i] + d[i])) + ((e[i] + f[i]) + g[i]);
}

TRIBUTARY_MULTIVERSION
void sum8(const float* const* in, std::size_t count, float* out) {
  const float *a = in[0], *b = in[1], *c = in[2], *d = in[3], *e = in[4], *f = in[5], *g = in[6], *h = in[7];
  TRIBUTARY_ELEMENTWISE
  for (std::size_t i = 0; i < count; ++i) {
    out[i] = ((a[i] + b[i]) + (c[i] + d[i])) + ((e[i] + f[i]) + (g[i] + h[i]));
  }
}

TRIBUTARY_MULTIVERSION
void multiply(float* values, std::size_t count, float factor) {
  for (std::size_t i = 0; i < count; ++i) values[i] *= factor;
}

void sum_direct(std::span<const float* const> inputs, std::size_t count, float* out) {
  const float* const* in = inputs.data();
  switch (inputs.size()) {
    case 1:
      if (in[0] != out) copy(in[0], count, out);
      return;
    case 2:
      return sum2(in[0], in[1], count, out);
    case 3:
      return sum3(in, count, out);
    case 4:
      return sum4(in, count, out);
    case 5:
      return sum5(in, count, out);
    case 6:
      return sum6(in, count, out);
    case 7:
      return sum7(in, count, out);
    default:
      return sum8(in, count, out);
  }
}

// The values [first, first+count) of one subtree, count <= kBlock. Pairing neighbours level by level makes the left
// subtree of n leaves the largest power of two below n; so the tree can be walked from the top, a scratch block for
// each right subtree.
void sum_subtree(std::span<const float* const> inputs, std::size_t first, std::size_t count, float* out,
                 float (*scratch)[kBlock]) {
  if (inputs.size() <= kDirect) {
    std::array<const float*, kDirect> at;
    std::transform(inputs.begin(), inputs.end(), at.begin(), [first](const float* input) { return input + first; });
    return sum_direct({at.data(), inputs.size()}, count, out);
  }
  const std::size_t left = std::bit_floor(inputs.size() - 1);
  sum_subtree(inputs.first(left), first, count, out, scratch + 1);
  sum_subtree(inputs.subspan(left), first, count, *scratch, scratch + 1);
  sum2(out, *scratch, count, out);
}

}  // namespace

void tree_sum(std::span<const float* const> inputs, std::size_t count, float* out) {
  if (inputs.size() <= kDirect) return sum_direct(inputs, count, out);
  alignas(64) float scratch[kLevels][kBlock];
  for (std::size_t first = 0; first < count; first += kBlock) {
    sum_subtree(inputs, first, std::min(kBlock, count - first), out + first, scratch);
  }
}

void scale(float* values, std::size_t count, float factor) {
  multiply(values, count, factor);
}

}  // namespace tributary::kernels
