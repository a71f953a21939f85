// int8 with a residual, for gradients (kernels/int8.h), and int8-delta, the same of how an estimate changes, for
// parameters.
#pragma once

#include <string>

#include "common/math/encoding_frames.h"
#include "common/math/encoding_kind.h"

namespace tributary {

// Base of the two encodings of 8 bits: the frame, and the reading of its values.
class Int8Frames : public Encoding {
 public:
  std::size_t bytes(std::size_t elements) const override { return Int8Frame::bytes(elements); }
  std::size_t granularity() const override { return kernels::kInt8Block; }

  // Decodes the values; with int8-delta the change itself.
  void decode(const std::byte* frame, std::size_t elements, std::size_t first, std::size_t count,
              float* out) const override {
    kernels::int8_decode(frame, int8_values(frame, elements), first, count, out);
  }

 protected:
  static const std::int8_t* int8_values(const std::byte* frame, std::size_t elements) {
    return reinterpret_cast<const std::int8_t*>(frame + Int8Frame::values_at(elements));
  }
  // Where the values from `first` on, and their scales, go in a frame that is being written.
  struct Place {
    float* scale;
    std::int8_t* values;
  };
  static Place begin(std::byte* frame, std::size_t elements, std::size_t first) {
    if (first == 0) clear_padding(frame, Int8Frame::scales(elements), Int8Frame::values_at(elements));
    return {frame_floats(frame) + first / kernels::kInt8Block,
            reinterpret_cast<std::int8_t*>(frame + Int8Frame::values_at(elements)) + first};
  }
};

class Int8Encoding final : public Int8Frames {
 public:
  EncodingSpec spec() const override { return EncodingId::kInt8; }
  std::string name() const override { return "int8"; }
  bool keeps_residual() const override { return true; }

  void encode(const float* values, std::size_t elements, std::size_t first, std::size_t count, float* residual,
              std::byte* frame) const override {
    const Place at = begin(frame, elements, first);
    kernels::int8_encode(values, count, residual + first, at.scale, at.values);
  }
};

class Int8DeltaEncoding final : public Int8Frames {
 public:
  EncodingSpec spec() const override { return EncodingId::kInt8Delta; }
  std::string name() const override { return "int8-delta"; }
  bool is_delta() const override { return true; }

  void encode(const float*, std::size_t, std::size_t, std::size_t, float*, std::byte*) const override {
    TRIB_ASSERT(false && "int8-delta encodes updates of an estimate");
  }

  void encode_update(const float* values, std::size_t elements, std::size_t first, std::size_t count, float* estimate,
                     std::byte* frame) const override {
    const Place at = begin(frame, elements, first);
    kernels::int8_encode_delta(values, count, estimate, at.scale, at.values);
  }

  void apply(const std::byte* frame, std::size_t elements, float* parameters) const override {
    kernels::int8_decode_add(frame, int8_values(frame, elements), 0, elements, parameters);
  }
};

inline constexpr EncodingKind kInt8Kind = {EncodingId::kInt8,  "int8",  "int8",
                                           EncodingUse::kPush, nullptr, the_only<Int8Encoding>};
inline constexpr EncodingKind kInt8DeltaKind = {EncodingId::kInt8Delta, "int8-delta", "int8-delta",
                                                EncodingUse::kPull,     nullptr,      the_only<Int8DeltaEncoding>};

}  // namespace tributary
