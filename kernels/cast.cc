#include "kernels/cast.h"

#include <bit>

#include "kernels/half_bits.h"

namespace tributary::kernels {
namespace {

TRIBUTARY_MULTIVERSION
void encode_bf16(const float* in, std::size_t count, std::uint16_t* out) {
  TRIBUTARY_ELEMENTWISE
  for (std::size_t i = 0; i < count; ++i) out[i] = bf16_of(std::bit_cast<std::uint32_t>(in[i]));
}

TRIBUTARY_MULTIVERSION
void decode_bf16(const std::uint16_t* in, std::size_t count, float* out) {
  TRIBUTARY_ELEMENTWISE
  for (std::size_t i = 0; i < count; ++i) out[i] = std::bit_cast<float>(fp32_of_bf16(in[i]));
}

TRIBUTARY_MULTIVERSION
void encode_fp16(const float* in, std::size_t count, std::uint16_t* out) {
  TRIBUTARY_ELEMENTWISE
  for (std::size_t i = 0; i < count; ++i) out[i] = fp16_of(std::bit_cast<std::uint32_t>(in[i]));
}

TRIBUTARY_MULTIVERSION
void decode_fp16(const std::uint16_t* in, std::size_t count, float* out) {
  TRIBUTARY_ELEMENTWISE
  for (std::size_t i = 0; i < count; ++i) out[i] = std::bit_cast<float>(fp32_of_fp16(in[i]));
}

}  // namespace

void fp32_to_bf16(const float* in, std::size_t count, std::uint16_t* out) {
  encode_bf16(in, count, out);
}
void bf16_to_fp32(const std::uint16_t* in, std::size_t count, float* out) {
  decode_bf16(in, count, out);
}
void fp32_to_fp16(const float* in, std::size_t count, std::uint16_t* out) {
  encode_fp16(in, count, out);
}
void fp16_to_fp32(const std::uint16_t* in, std::size_t count, float* out) {
  decode_fp16(in, count, out);
}

}  // namespace tributary::kernels
