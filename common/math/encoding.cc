#include "common/math/encoding.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "common/base/assert.h"
#include "common/math/encoding_feedback.h"
#include "common/math/encoding_frames.h"
#include "kernels/cast.h"
#include "kernels/tree_sum.h"

namespace tributary {
namespace {

static_assert(std::endian::native == std::endian::little, "frames are little-endian and are used without conversion");

template <class T>
bool is_aligned(const std::byte* at) {
  return reinterpret_cast<std::uintptr_t>(at) % alignof(T) == 0;
}

class Fp32Encoding final : public Encoding {
 public:
  EncodingSpec spec() const override { return EncodingId::kFp32; }
  std::string name() const override { return "fp32"; }
  std::size_t bytes(std::size_t elements) const override { return elements * sizeof(float); }

  void encode(const float* values, std::size_t /*elements*/, std::size_t first, std::size_t count, float* /*residual*/,
              std::byte* frame) const override {
    if (count != 0) std::memcpy(frame + bytes(first), values, bytes(count));
  }

  void decode(const std::byte* frame, std::size_t /*elements*/, std::size_t first, std::size_t count,
              float* out) const override {
    if (count != 0) std::memcpy(out, frame + bytes(first), bytes(count));
  }

  const float* as_fp32(const std::byte* frame) const override {
    return is_aligned<float>(frame) ? reinterpret_cast<const float*>(frame) : nullptr;
  }
};

// bf16 and fp16: two bytes a value.
class HalfEncoding final : public Encoding {
 public:
  using ToHalf = void (*)(const float*, std::size_t, std::uint16_t*);
  using FromHalf = void (*)(const std::uint16_t*, std::size_t, float*);

  constexpr HalfEncoding(EncodingId id, ToHalf to_half, FromHalf from_half)
      : id_(id), to_half_(to_half), from_half_(from_half) {}

  EncodingSpec spec() const override { return id_; }
  std::string name() const override { return std::string(encoding_name(id_)); }
  std::size_t bytes(std::size_t elements) const override { return elements * sizeof(std::uint16_t); }
  float push_scale(std::uint64_t weight) const override {
    if (id_ != EncodingId::kFp16 || weight == 0) return 1.0f;
    return std::ldexp(1.0f, -static_cast<int>(std::bit_width(weight - 1)));
  }

  void encode(const float* values, std::size_t /*elements*/, std::size_t first, std::size_t count, float* /*residual*/,
              std::byte* frame) const override {
    std::byte* at = frame + bytes(first);
    if (is_aligned<std::uint16_t>(at)) return to_half_(values, count, reinterpret_cast<std::uint16_t*>(at));
    std::array<std::uint16_t, kOddPiece> piece;
    for (std::size_t done = 0; done < count; done += kOddPiece) {
      const std::size_t n = std::min(kOddPiece, count - done);
      to_half_(values + done, n, piece.data());
      std::memcpy(at + bytes(done), piece.data(), bytes(n));
    }
  }

  void decode(const std::byte* frame, std::size_t /*elements*/, std::size_t first, std::size_t count,
              float* out) const override {
    const std::byte* at = frame + bytes(first);
    if (is_aligned<std::uint16_t>(at)) return from_half_(reinterpret_cast<const std::uint16_t*>(at), count, out);
    std::array<std::uint16_t, kOddPiece> piece;
    for (std::size_t done = 0; done < count; done += kOddPiece) {
      const std::size_t n = std::min(kOddPiece, count - done);
      std::memcpy(piece.data(), at + bytes(done), bytes(n));
      from_half_(piece.data(), n, out + done);
    }
  }

 private:
  static constexpr std::size_t kOddPiece = 512;  // values at a time through the stack, for frames at odd addresses

  EncodingId id_;
  ToHalf to_half_;
  FromHalf from_half_;
};

const Fp32Encoding kFp32Instance;
const HalfEncoding kBf16Instance(EncodingId::kBf16, kernels::fp32_to_bf16, kernels::bf16_to_fp32);
const HalfEncoding kFp16Instance(EncodingId::kFp16, kernels::fp32_to_fp16, kernels::fp16_to_fp32);

constexpr std::string_view kNames[] = {"fp32", "bf16", "fp16", "int8", "topk", "onebit", "int8-delta"};

// "0.01" as parts of a million: an exact decimal, so that a job's text is its identity.
std::optional<std::uint32_t> parse_ppm(std::string_view text) {
  constexpr std::size_t kDigits = 6;
  if (text == "1" || text == "1.0") return static_cast<std::uint32_t>(TopKFrame::kMillion);
  if (!text.starts_with("0.")) return std::nullopt;
  text.remove_prefix(2);
  if (text.empty() || text.size() > kDigits ||
      !std::ranges::all_of(text, [](unsigned char c) { return std::isdigit(c); })) {
    return std::nullopt;
  }
  std::uint32_t ppm = 0;
  std::from_chars(text.data(), text.data() + text.size(), ppm);
  for (std::size_t i = text.size(); i < kDigits; ++i) ppm *= 10;
  return ppm == 0 ? std::nullopt : std::optional(ppm);
}

}  // namespace

void Encoding::finish(std::size_t, float*, std::byte*, std::span<std::uint32_t>) const {}

void Encoding::encode_update(const float* values, std::size_t elements, std::size_t first, std::size_t count,
                             float* /*estimate*/, std::byte* frame) const {
  encode(values, elements, first, count, nullptr, frame);
}

void Encoding::apply(const std::byte* frame, std::size_t elements, float* parameters) const {
  decode(frame, elements, 0, elements, parameters);
}

void decode_push(const Encoding& encoding, const std::byte* frame, std::uint64_t weight, std::size_t elements,
                 std::size_t first, std::size_t count, float* out) {
  encoding.decode(frame, elements, first, count, out);
  if (const float scale = encoding.push_scale(weight); scale != 1.0f) kernels::scale(out, count, 1.0f / scale);
}

std::string_view encoding_name(EncodingId id) {
  return kNames[static_cast<std::size_t>(id)];
}

const Encoding& encoding_for(EncodingId id) {
  switch (id) {
    case EncodingId::kFp32:
      return kFp32Instance;
    case EncodingId::kBf16:
      return kBf16Instance;
    case EncodingId::kFp16:
      return kFp16Instance;
    case EncodingId::kInt8:
      return int8_encoding();
    case EncodingId::kOneBit:
      return onebit_encoding();
    case EncodingId::kInt8Delta:
      return int8_delta_encoding();
    case EncodingId::kTopK:
      break;
  }
  TRIB_ASSERT(false && "not an encoding without parameters");
}

std::shared_ptr<const Encoding> make_encoding(EncodingSpec spec) {
  if (spec.id == EncodingId::kTopK) return make_topk_encoding(spec);
  return {std::shared_ptr<const Encoding>(), &encoding_for(spec.id)};  // shared and static: nothing to own
}

std::optional<EncodingSpec> parse_encoding(std::string_view name) {
  for (std::size_t id = 0; id < std::size(kNames); ++id) {
    if (name == kNames[id] && static_cast<EncodingId>(id) != EncodingId::kTopK) return static_cast<EncodingId>(id);
  }
  constexpr std::string_view kPrefix = "topk:";
  if (!name.starts_with(kPrefix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  EncodingSpec spec = EncodingId::kTopK;
  const auto ppm = parse_ppm(name);
  if (!ppm) return std::nullopt;
  spec.keep_ppm = *ppm;
  return spec;
}

bool usable_for_push(EncodingSpec spec) {
  return spec.id != EncodingId::kInt8Delta;
}

bool usable_for_pull(EncodingSpec spec) {
  return spec.id == EncodingId::kFp32 || spec.id == EncodingId::kBf16 || spec.id == EncodingId::kFp16 ||
         spec.id == EncodingId::kInt8Delta;
}

}  // namespace tributary
