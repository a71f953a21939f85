// Cap'n Proto 0.9 leaves out comparisons that a compiler of C++20 makes by turning others round. Newer rules (P2468),
// which clang follows, do not turn these round: here they are. Comes before everything else that clang compiles.
#pragma once

#include <kj/string.h>

namespace kj {
inline bool operator==(const char* a, const StringPtr& b) {
  return b == StringPtr(a);
}
inline bool operator!=(const char* a, const StringPtr& b) {
  return b != StringPtr(a);
}
}  // namespace kj
