// Every target is compiled without floating-point contraction (cmake/TributaryOptions.cmake): this one is compiled as
// all others are, for a processor that has fused multiply-add.
#include <doctest/doctest.h>

namespace {

// 1 + 2^-12: its square is 1 + 2^-11 + 2^-24, of which fp32 keeps the first two terms.
constexpr float kValue = 1.0f + 1.0f / 4096;

[[gnu::noinline, gnu::target("fma")]] float product_less(float a, float b, float c) {
  return a * b - c;
}

}  // namespace

TEST_CASE("a product that is added to is rounded first") {
  if (!__builtin_cpu_supports("fma")) return;  // nothing to contract with
  const volatile float value = kValue;         // unknown to the compiler
  CHECK(product_less(value, value, 1.0f + 1.0f / 2048) == 0.0f);
}
