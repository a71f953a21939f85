#include "common/base/printed.h"

#include <cstdarg>
#include <cstdio>

#include "common/base/assert.h"

namespace tributary {

std::string printed(const char* pattern, ...) {
  std::va_list arguments, again;
  va_start(arguments, pattern);
  va_copy(again, arguments);
  const int length = std::vsnprintf(nullptr, 0, pattern, arguments);
  va_end(arguments);
  TRIB_ASSERT(length >= 0);
  std::string text(static_cast<std::size_t>(length), '\0');
  std::vsnprintf(text.data(), text.size() + 1, pattern, again);
  va_end(again);
  return text;
}

}  // namespace tributary
