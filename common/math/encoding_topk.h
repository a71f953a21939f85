// The values that are largest, with a residual (kernels/topk.h).
#pragma once

#include <cctype>
#include <charconv>
#include <string>

#include "common/math/encoding_frames.h"
#include "common/math/encoding_kind.h"

namespace tributary {

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

  // Adds the values to the residual; finish() chooses the largest when all of the chunk is there.
  void encode(const float* values, std::size_t /*elements*/, std::size_t first, std::size_t count, float* residual,
              std::byte* /*frame*/) const override {
    for (std::size_t i = 0; i < count; ++i) residual[first + i] += values[i];
  }

  void finish(std::size_t elements, float* residual, std::byte* frame,
              std::span<std::uint32_t> scratch) const override {
    TRIB_ASSERT(scratch.size() >= scratch_words(elements));
    const TopKFrame at = parts(elements);
    float* values = frame_floats(frame + at.values_at());
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
    kernels::topk_decode(frame, frame + at.values_at(), frame + at.offsets_at(), at.kept, first, count, out);
  }

  // "0.01" as parts of a million: an exact decimal, so that a job's text is its identity.
  static std::optional<EncodingSpec> parse(std::string_view text);
  static std::shared_ptr<const Encoding> make(EncodingSpec spec) { return std::make_shared<TopKEncoding>(spec); }

 private:
  TopKFrame parts(std::size_t elements) const { return {elements, spec_.keep_ppm}; }

  const EncodingSpec spec_;
};

inline std::optional<EncodingSpec> TopKEncoding::parse(std::string_view text) {
  constexpr std::size_t kDigits = 6;
  EncodingSpec spec = EncodingId::kTopK;
  spec.keep_ppm = TopKFrame::kMillion;
  if (text == "1" || text == "1.0") return spec;
  if (!text.starts_with("0.")) return std::nullopt;
  text.remove_prefix(2);
  if (text.empty() || text.size() > kDigits ||
      !std::ranges::all_of(text, [](unsigned char c) { return std::isdigit(c); })) {
    return std::nullopt;
  }
  std::from_chars(text.data(), text.data() + text.size(), spec.keep_ppm);
  for (std::size_t i = text.size(); i < kDigits; ++i) spec.keep_ppm *= 10;
  return spec.keep_ppm == 0 ? std::nullopt : std::optional(spec);
}

inline constexpr EncodingKind kTopKKind = {
    EncodingId::kTopK, "topk", "topk:R (R from 0.000001 to 1)", EncodingUse::kPush, TopKEncoding::parse,
    TopKEncoding::make};

}  // namespace tributary
