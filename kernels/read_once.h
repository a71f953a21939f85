// read_once(): reads a value in memory that others may write meanwhile. The returned value is stable: the compiler may
// not read the memory again between a check and the use of the checked value.
#pragma once

#include <cstring>
#include <type_traits>

namespace tributary::kernels {

// Any address.
template <class T>
__attribute__((always_inline)) inline T read_once(const void* at) {
  static_assert(std::is_integral_v<T> && sizeof(T) <= sizeof(long));
  T value;
  std::memcpy(&value, at, sizeof value);
  asm volatile("" : "+r"(value));
  return value;
}

}  // namespace tributary::kernels
