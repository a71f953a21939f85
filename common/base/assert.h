// TRIB_ASSERT: for our own mistakes only, on in every build. Input from a file,
// a trainer or the network is never asserted.
#pragma once

#include <cstdio>
#include <cstdlib>

#define TRIB_ASSERT(condition)                                                                                    \
  do {                                                                                                            \
    if (!(condition)) [[unlikely]] {                                                                              \
      std::fprintf(stderr, "%s:%d: assertion failed: %s (a bug in Tributary)\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                                               \
    }                                                                                                             \
  } while (0)
