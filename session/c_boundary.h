// The parts of the C interface (session/tributary.h): statuses and the last error of a thread, structs of callers that
// know fewer or more members than this library, and a fence that no exception passes. Used by tributary.cc and
// c_attach.cc.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <type_traits>

#include "common/base/result.h"
#include "session/tributary.h"

namespace tributary::c {

inline constexpr std::size_t kMaxLastError = 4096;    // bytes of a sentence with its end; longer ones are cut
inline constexpr std::size_t kMaxStructBytes = 4096;  // a struct that says more is none: its `size` was not set

constexpr tributary_status status_of(ErrorCode code) {
  return 1 + static_cast<tributary_status>(code);
}

// Becomes tributary_last_error() of the calling thread; returns the status. Allocates nothing.
tributary_status failed(ErrorCode code, const char* message) noexcept;
tributary_status failed(const Error& error) noexcept;
const char* last_error() noexcept;
const char* name_of(tributary_status status) noexcept;

// Runs `call`, which returns a Status.
template <class Call>
tributary_status fenced(Call&& call) noexcept {
  try {
    const Status done = call();
    return done ? TRIBUTARY_OK : failed(done.error());
  } catch (const std::bad_alloc&) {
    return failed(ErrorCode::kLimit, "this process has no memory left; give it more, or train a smaller model");
  } catch (const std::exception& thrown) {
    return failed(ErrorCode::kInternal, thrown.what());
  } catch (...) {
    return failed(ErrorCode::kInternal, "an exception of an unknown type; this is a bug in Tributary");
  }
}

// The same for a `call` that returns a Result with a pointer: null if it fails.
template <class Call>
auto fenced_pointer(Call&& call) noexcept {
  typename std::invoke_result_t<Call>::value_type pointer = nullptr;
  fenced([&]() -> Status {
    auto result = call();
    if (!result) return tl::unexpected(result.error());
    pointer = *result;
    return {};
  });
  return pointer;
}

Status not_null(const void* pointer, const char* what);

// Checks the size that a struct begins with. least: bytes up to the last member that every caller has.
Status check_size(std::size_t size, std::size_t least, const char* what);

// kInvalidArgument: members that this library does not know are not 0.
Status check_unknown(const void* given, std::size_t size, std::size_t known, const char* what);

// Copies the members of the caller's struct to `known`, which has the values of absent members.
// kInvalidArgument: it is null, its size is impossible, or it has something set that only newer libraries know.
template <class Struct>
Status read_struct(const Struct* given, std::size_t least, const char* what, Struct& known) {
  if (Status there = not_null(given, what); !there) return there;
  const std::size_t size = given->size;
  if (Status sized = check_size(size, least, what); !sized) return sized;
  if (Status unknown = check_unknown(given, size, sizeof known, what); !unknown) return unknown;
  std::memcpy(&known, given, std::min(size, sizeof known));
  return {};
}

// Writes the members that the caller's struct has; those that this library does not know become 0.
template <class Struct>
Status write_struct(Struct values, std::size_t least, const char* what, Struct* out) {
  if (Status there = not_null(out, what); !there) return there;
  const std::size_t size = out->size;
  if (Status sized = check_size(size, least, what); !sized) return sized;
  values.size = size;
  std::memcpy(static_cast<void*>(out), &values, std::min(size, sizeof values));
  if (size > sizeof values) std::memset(reinterpret_cast<char*>(out) + sizeof values, 0, size - sizeof values);
  return {};
}

}  // namespace tributary::c
