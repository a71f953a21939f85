// The least multiple of a number that is not below another one.
#pragma once

namespace tributary {

// REQUIRES: multiple > 0, and the result fits Number.
template <class Number>
constexpr Number round_up(Number value, Number multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace tributary
