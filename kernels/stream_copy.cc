#include "kernels/stream_copy.h"

#include <cstdint>
#include <cstring>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace tributary::kernels {

void stream_copy(const void* from, std::size_t bytes, void* to) {
#ifdef __SSE2__
  constexpr std::size_t kLine = 64, kVector = 16;
  if (reinterpret_cast<std::uintptr_t>(to) % kVector == 0) {
    const auto* in = static_cast<const char*>(from);
    auto* out = static_cast<char*>(to);
    for (; bytes >= kLine; bytes -= kLine, in += kLine, out += kLine) {
      __m128i values[kLine / kVector];
      for (std::size_t i = 0; i < kLine / kVector; ++i)
        values[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in) + i);
      for (std::size_t i = 0; i < kLine / kVector; ++i)
        _mm_stream_si128(reinterpret_cast<__m128i*>(out) + i, values[i]);
    }
    _mm_sfence();  // such stores are not ordered with those that follow
    from = in;
    to = out;
  }
#endif
  std::memcpy(to, from, bytes);
}

}  // namespace tributary::kernels
