#include "common/encoding.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>

#include "common/assert.h"
#include "kernels/cast.h"

namespace tributary {
namespace {

static_assert(std::endian::native == std::endian::little, "frames are little-endian and are used without conversion");

template <class T>
bool is_aligned(const std::byte* at) {
  return reinterpret_cast<std::uintptr_t>(at) % alignof(T) == 0;
}

class Fp32Encoding final : public Encoding {
 public:
  EncodingId id() const override { return EncodingId::kFp32; }
  std::string_view name() const override { return "fp32"; }
  std::size_t bytes(std::size_t elements) const override { return elements * sizeof(float); }

  void encode(const float* values, std::size_t /*elements*/, std::size_t first, std::size_t count,
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

  constexpr HalfEncoding(EncodingId id, std::string_view name, ToHalf to_half, FromHalf from_half)
      : id_(id), name_(name), to_half_(to_half), from_half_(from_half) {}

  EncodingId id() const override { return id_; }
  std::string_view name() const override { return name_; }
  std::size_t bytes(std::size_t elements) const override { return elements * sizeof(std::uint16_t); }

  void encode(const float* values, std::size_t /*elements*/, std::size_t first, std::size_t count,
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

  const float* as_fp32(const std::byte* /*frame*/) const override { return nullptr; }

 private:
  static constexpr std::size_t kOddPiece = 512;  // values at a time through the stack, for frames at odd addresses

  EncodingId id_;
  std::string_view name_;
  ToHalf to_half_;
  FromHalf from_half_;
};

const Fp32Encoding kFp32Instance;
const HalfEncoding kBf16Instance(EncodingId::kBf16, "bf16", kernels::fp32_to_bf16, kernels::bf16_to_fp32);
const HalfEncoding kFp16Instance(EncodingId::kFp16, "fp16", kernels::fp32_to_fp16, kernels::fp16_to_fp32);

}  // namespace

const Encoding& encoding_for(EncodingId id) {
  switch (id) {
    case EncodingId::kFp32:
      return kFp32Instance;
    case EncodingId::kBf16:
      return kBf16Instance;
    case EncodingId::kFp16:
      return kFp16Instance;
  }
  TRIB_ASSERT(false && "not an EncodingId: numbers from outside go through encoding_from_wire()");
}

std::optional<EncodingId> parse_encoding(std::string_view name) {
  for (EncodingId id : {EncodingId::kFp32, EncodingId::kBf16, EncodingId::kFp16}) {
    if (encoding_for(id).name() == name) return id;
  }
  return std::nullopt;
}

std::optional<EncodingId> encoding_from_wire(std::uint8_t number) {
  if (number > static_cast<std::uint8_t>(EncodingId::kFp16)) return std::nullopt;
  return static_cast<EncodingId>(number);
}

}  // namespace tributary
