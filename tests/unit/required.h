// Values that must be there, in tests.
#pragma once

#include <doctest/doctest.h>

#include <source_location>
#include <type_traits>
#include <utility>

namespace tributary {

// Returns the value of an optional or a Result. The test ends here where there is none, or where a Status is an error.
template <class Maybe>
typename Maybe::value_type required(Maybe maybe, std::source_location at = std::source_location::current()) {
  INFO(at.file_name(), ":", at.line());
  if constexpr (requires { maybe.error().message; }) {
    REQUIRE_MESSAGE(maybe.has_value(), maybe.error().message);
  } else {
    REQUIRE(maybe.has_value());
  }
  if constexpr (!std::is_void_v<typename Maybe::value_type>) return *std::move(maybe);
}

// Returns the error of a Result or a Status that must be one.
template <class Maybe>
auto failure_of(const Maybe& maybe, std::source_location at = std::source_location::current()) {
  INFO(at.file_name(), ":", at.line());
  REQUIRE_FALSE(maybe.has_value());
  return maybe.error();
}

// Returns the element of a list that must have one, and no other.
template <class List>
auto only_one(List list, std::source_location at = std::source_location::current()) {
  INFO(at.file_name(), ":", at.line());
  REQUIRE(list.size() == 1);
  return std::move(*list.begin());
}

}  // namespace tributary
