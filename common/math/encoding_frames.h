// Places of the parts of a frame, for encodings whose frames have parts: shared by the CPU's encodings (encoding_int8.h
// and its like) and the devices' (worker/device/cuda_device_api.cc).
//
//   int8     scales | zeros | values       onebit   scales | zeros | signs       topk   counts | values | offsets
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "common/base/assert.h"
#include "kernels/int8.h"
#include "kernels/onebit.h"
#include "kernels/topk.h"

namespace tributary {

// Scales stand before the values, which begin where a 16-byte access of a device may.
constexpr std::size_t scales_bytes(std::size_t blocks) {
  constexpr std::size_t kPartAlign = 16;
  return (blocks * sizeof(float) + kPartAlign - 1) / kPartAlign * kPartAlign;
}

inline float* frame_floats(std::byte* at) {
  TRIB_ASSERT(reinterpret_cast<std::uintptr_t>(at) % alignof(float) == 0);
  return reinterpret_cast<float*>(at);
}
// The padding is part of the frame's bytes: the same for the same values.
inline void clear_padding(std::byte* frame, std::size_t scales, std::size_t values_at) {
  std::fill(frame + scales, frame + values_at, std::byte{0});
}

struct Int8Frame {
  static constexpr std::size_t scales(std::size_t elements) { return kernels::int8_blocks(elements) * sizeof(float); }
  static constexpr std::size_t values_at(std::size_t elements) { return scales_bytes(kernels::int8_blocks(elements)); }
  static constexpr std::size_t bytes(std::size_t elements) { return values_at(elements) + elements; }
};

struct OneBitFrame {
  static constexpr std::size_t scales(std::size_t elements) { return kernels::onebit_blocks(elements) * sizeof(float); }
  static constexpr std::size_t signs_at(std::size_t elements) { return scales_bytes(kernels::onebit_blocks(elements)); }
  static constexpr std::size_t bytes(std::size_t elements) { return signs_at(elements) + (elements + 7) / 8; }
};

struct TopKFrame {
  static constexpr std::uint64_t kMillion = 1'000'000;
  std::size_t elements = 0, kept = 0;
  constexpr TopKFrame(std::size_t of_elements, std::uint32_t keep_ppm)
      : elements(of_elements),
        kept(static_cast<std::size_t>(
            std::max<std::uint64_t>((std::uint64_t{of_elements} * keep_ppm + kMillion - 1) / kMillion, 1))) {}
  constexpr std::size_t values_at() const { return kernels::topk_groups(elements) * sizeof(std::uint32_t); }
  constexpr std::size_t offsets_at() const { return values_at() + kept * sizeof(float); }
  constexpr std::size_t bytes() const { return offsets_at() + kept * sizeof(std::uint16_t); }
};

}  // namespace tributary
