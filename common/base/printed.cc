#include "common/base/printed.h"

#include <algorithm>
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

std::string counted(std::size_t count, const char* what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

std::string listed(const std::vector<std::string>& names, std::string_view last) {
  std::string text;
  const std::size_t shown = std::min(names.size(), kMostListed);
  for (std::size_t i = 0; i < shown; ++i) {
    if (i > 0) text += i + 1 == names.size() ? last : ", ";
    text += names[i];
  }
  return shown < names.size() ? text + " and " + std::to_string(names.size() - shown) + " more" : text;
}

}  // namespace tributary
