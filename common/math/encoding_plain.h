// fp32, bf16 and fp16: the values themselves, rounded.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>

#include "common/math/encoding_kind.h"
#include "kernels/cast.h"

namespace tributary {

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
class HalfEncoding : public Encoding {
 public:
  using ToHalf = void (*)(const float*, std::size_t, std::uint16_t*);
  using FromHalf = void (*)(const std::uint16_t*, std::size_t, float*);

  HalfEncoding(EncodingId id, std::string name, ToHalf to_half, FromHalf from_half)
      : id_(id), name_(std::move(name)), to_half_(to_half), from_half_(from_half) {}

  EncodingSpec spec() const override { return id_; }
  std::string name() const override { return name_; }
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
  std::string name_;
  ToHalf to_half_;
  FromHalf from_half_;
};
struct Bf16Encoding final : HalfEncoding {
  Bf16Encoding() : HalfEncoding(EncodingId::kBf16, "bf16", kernels::fp32_to_bf16, kernels::bf16_to_fp32) {}
};
struct Fp16Encoding final : HalfEncoding {
  Fp16Encoding() : HalfEncoding(EncodingId::kFp16, "fp16", kernels::fp32_to_fp16, kernels::fp16_to_fp32) {}
};

inline constexpr EncodingKind kFp32Kind = {EncodingId::kFp32,  "fp32",  "fp32",
                                           EncodingUse::kBoth, nullptr, the_only<Fp32Encoding>};
inline constexpr EncodingKind kBf16Kind = {EncodingId::kBf16,  "bf16",  "bf16",
                                           EncodingUse::kBoth, nullptr, the_only<Bf16Encoding>};
inline constexpr EncodingKind kFp16Kind = {EncodingId::kFp16,  "fp16",  "fp16",
                                           EncodingUse::kBoth, nullptr, the_only<Fp16Encoding>};

}  // namespace tributary
