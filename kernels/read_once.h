// read_once(): a value in memory that others may write meanwhile. What it returns stays what it is: a compiler may not
// look a second time, between a check and what was checked.
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
