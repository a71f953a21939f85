// Validates UTF-8: such text ends up in JSON, which cannot hold anything else.
#pragma once

#include <cstddef>
#include <string_view>

namespace tributary {

// Returns whether `text` is UTF-8 by RFC 3629: no overlong forms, no surrogates, nothing above U+10FFFF.
constexpr bool is_utf8(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const auto byte = [&](std::size_t k) { return static_cast<unsigned char>(text[i + k]); };
    const std::size_t length = byte(0) < 0x80 ? 1 : byte(0) < 0xc2 ? 0 : byte(0) < 0xe0 ? 2 : byte(0) < 0xf0 ? 3 : 4;
    if (length == 0 || byte(0) > 0xf4 || text.size() - i < length) return false;
    for (std::size_t k = 1; k < length; ++k) {
      if ((byte(k) & 0xc0) != 0x80) return false;
    }
    if (length == 3 && ((byte(0) == 0xe0 && byte(1) < 0xa0) || (byte(0) == 0xed && byte(1) >= 0xa0))) return false;
    if (length == 4 && ((byte(0) == 0xf0 && byte(1) < 0x90) || (byte(0) == 0xf4 && byte(1) >= 0x90))) return false;
    i += length;
  }
  return true;
}

}  // namespace tributary
