// The sign of each value, and a scale for a block of them, with a residual (kernels/onebit.h).
#pragma once

#include <string>

#include "common/math/encoding_frames.h"
#include "common/math/encoding_kind.h"

namespace tributary {

class OneBitEncoding final : public Encoding {
 public:
  EncodingSpec spec() const override { return EncodingId::kOneBit; }
  std::string name() const override { return "onebit"; }
  std::size_t bytes(std::size_t elements) const override { return OneBitFrame::bytes(elements); }
  std::size_t granularity() const override { return kernels::kOneBitBlock; }
  bool keeps_residual() const override { return true; }

  void encode(const float* values, std::size_t elements, std::size_t first, std::size_t count, float* residual,
              std::byte* frame) const override {
    if (first == 0) clear_padding(frame, OneBitFrame::scales(elements), OneBitFrame::signs_at(elements));
    kernels::onebit_encode(values, count, residual + first, frame_floats(frame) + first / kernels::kOneBitBlock,
                           reinterpret_cast<std::uint8_t*>(frame + OneBitFrame::signs_at(elements)) + first / 8);
  }

  void decode(const std::byte* frame, std::size_t elements, std::size_t first, std::size_t count,
              float* out) const override {
    const auto* signs = reinterpret_cast<const std::uint8_t*>(frame + OneBitFrame::signs_at(elements));
    kernels::onebit_decode(frame, signs, first, count, out);
  }
};

inline constexpr EncodingKind kOneBitKind = {EncodingId::kOneBit, "onebit", "onebit",
                                             EncodingUse::kPush,  nullptr,  the_only<OneBitEncoding>};

}  // namespace tributary
