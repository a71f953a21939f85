#include "common/math/encoding_feedback.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "common/base/assert.h"
#include "common/math/encoding_frames.h"

namespace tributary {
namespace {

float* floats(std::byte* at) {
  TRIB_ASSERT(reinterpret_cast<std::uintptr_t>(at) % alignof(float) == 0);
  return reinterpret_cast<float*>(at);
}

// The padding is part of the frame's bytes: the same for the same values.
void clear_padding(std::byte* frame, std::size_t scales, std::size_t values_at) {
  std::fill(frame + scales, frame + values_at, std::byte{0});
}

const std::int8_t* int8_values(const std::byte* frame, std::size_t elements) {
  return reinterpret_cast<const std::int8_t*>(frame + Int8Frame::values_at(elements));
}
std::int8_t* int8_values(std::byte* frame, std::size_t elements) {
  return reinterpret_cast<std::int8_t*>(frame + Int8Frame::values_at(elements));
}

// What the two encodings of 8 bits share: the frame, and how its values are read.
class Int8Frames : public Encoding {
 public:
  std::size_t bytes(std::size_t elements) const override { return Int8Frame::bytes(elements); }
  std::size_t granularity() const override { return kernels::kInt8Block; }

  // Of int8-delta: the change itself.
  void decode(const std::byte* frame, std::size_t elements, std::size_t first, std::size_t count,
              float* out) const override {
    kernels::int8_decode(frame, int8_values(frame, elements), first, count, out);
  }

 protected:
  // Where the values from `first` on, and their scales, go in a frame that is being written.
  struct Place {
    float* scale;
    std::int8_t* values;
  };
  static Place begin(std::byte* frame, std::size_t elements, std::size_t first) {
    if (first == 0) clear_padding(frame, Int8Frame::scales(elements), Int8Frame::values_at(elements));
    return {floats(frame) + first / kernels::kInt8Block, int8_values(frame, elements) + first};
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
    kernels::onebit_encode(values, count, residual + first, floats(frame) + first / kernels::kOneBitBlock,
                           reinterpret_cast<std::uint8_t*>(frame + OneBitFrame::signs_at(elements)) + first / 8);
  }

  void decode(const std::byte* frame, std::size_t elements, std::size_t first, std::size_t count,
              float* out) const override {
    const auto* signs = reinterpret_cast<const std::uint8_t*>(frame + OneBitFrame::signs_at(elements));
    kernels::onebit_decode(frame, signs, first, count, out);
  }
};

class TopKEncoding final : public Encoding {
 public:
  explicit TopKEncoding(EncodingSpec spec) : spec_(spec) {
    TRIB_ASSERT(spec.keep_ppm >= 1 && spec.keep_ppm <= TopKFrame::kMillion);
  }

  EncodingSpec spec() const override { return spec_; }
  std::string name() const override {
    std::string digits = std::to_string(TopKFrame::kMillion + spec_.keep_ppm).substr(1);
    while (digits.size() > 1 && digits.back() == '0') digits.pop_back();
    const std::string ratio = spec_.keep_ppm == TopKFrame::kMillion ? "1" : "0." + digits;
    return "topk:" + ratio;
  }
  std::size_t bytes(std::size_t elements) const override { return parts(elements).bytes(); }
  bool keeps_residual() const override { return true; }
  std::size_t scratch_words(std::size_t elements) const override { return elements; }

  // Which values are the largest is known only when all of the chunk is there: until then they are added up.
  void encode(const float* values, std::size_t /*elements*/, std::size_t first, std::size_t count, float* residual,
              std::byte* /*frame*/) const override {
    for (std::size_t i = 0; i < count; ++i) residual[first + i] += values[i];
  }

  void finish(std::size_t elements, float* residual, std::byte* frame,
              std::span<std::uint32_t> scratch) const override {
    TRIB_ASSERT(scratch.size() >= scratch_words(elements));
    const TopKFrame at = parts(elements);
    float* values = floats(frame + at.values_at());
    kernels::topk_select(residual, elements, at.kept, reinterpret_cast<std::uint32_t*>(frame), values,
                         reinterpret_cast<std::uint16_t*>(frame + at.offsets_at()), scratch.data());
  }

  bool valid(const std::byte* frame, std::size_t elements) const override {
    const TopKFrame at = parts(elements);
    return kernels::topk_valid(frame, frame + at.offsets_at(), elements, at.kept);
  }

  void decode(const std::byte* frame, std::size_t elements, std::size_t first, std::size_t count,
              float* out) const override {
    const TopKFrame at = parts(elements);
    kernels::topk_decode(frame, frame + at.values_at(), frame + at.offsets_at(), elements, first, count, out);
  }

 private:
  TopKFrame parts(std::size_t elements) const { return {elements, spec_.keep_ppm}; }

  const EncodingSpec spec_;
};

}  // namespace

const Encoding& int8_encoding() {
  static const Int8Encoding encoding;
  return encoding;
}

const Encoding& onebit_encoding() {
  static const OneBitEncoding encoding;
  return encoding;
}

const Encoding& int8_delta_encoding() {
  static const Int8DeltaEncoding encoding;
  return encoding;
}

std::shared_ptr<const Encoding> make_topk_encoding(EncodingSpec spec) {
  return std::make_shared<TopKEncoding>(spec);
}

}  // namespace tributary
