#include "session/c_boundary.h"

#include <array>

#include "common/base/message_fields.h"

namespace tributary::c {
namespace {

thread_local char last_error_text[kMaxLastError] = "";

// By ErrorCode, after TRIBUTARY_OK.
constexpr std::array kNames = {
    "TRIBUTARY_OK",
    "TRIBUTARY_INTERNAL",
    "TRIBUTARY_INVALID_ARGUMENT",
    "TRIBUTARY_CONFIG",
    "TRIBUTARY_PROTOCOL_VERSION",
    "TRIBUTARY_MALFORMED",
    "TRIBUTARY_UNKNOWN_JOB",
    "TRIBUTARY_UNKNOWN_CHUNK",
    "TRIBUTARY_WRONG_LENGTH",
    "TRIBUTARY_STALE_VIEW",
    "TRIBUTARY_WRONG_ROUND",
    "TRIBUTARY_LAYOUT_MISMATCH",
    "TRIBUTARY_CONFIG_MISMATCH",
    "TRIBUTARY_TOPOLOGY",
    "TRIBUTARY_IO",
    "TRIBUTARY_STORE",
    "TRIBUTARY_STORE_FORMAT",
    "TRIBUTARY_TIMEOUT",
    "TRIBUTARY_UNAVAILABLE",
    "TRIBUTARY_STOPPED",
    "TRIBUTARY_LIMIT",
    "TRIBUTARY_NOT_FOUND",
    "TRIBUTARY_NO_DEVICE",
    "TRIBUTARY_UNKNOWN_KIND",
};
static_assert(kNames.size() == 2 + known_values(ErrorCode()).last);
static_assert(status_of(ErrorCode::kInternal) == TRIBUTARY_INTERNAL);
static_assert(status_of(ErrorCode::kInvalidArgument) == TRIBUTARY_INVALID_ARGUMENT);
static_assert(status_of(ErrorCode::kConfig) == TRIBUTARY_CONFIG);
static_assert(status_of(ErrorCode::kStaleView) == TRIBUTARY_STALE_VIEW);
static_assert(status_of(ErrorCode::kWrongRound) == TRIBUTARY_WRONG_ROUND);
static_assert(status_of(ErrorCode::kLayoutMismatch) == TRIBUTARY_LAYOUT_MISMATCH);
static_assert(status_of(ErrorCode::kConfigMismatch) == TRIBUTARY_CONFIG_MISMATCH);
static_assert(status_of(ErrorCode::kTopology) == TRIBUTARY_TOPOLOGY);
static_assert(status_of(ErrorCode::kStore) == TRIBUTARY_STORE);
static_assert(status_of(ErrorCode::kTimeout) == TRIBUTARY_TIMEOUT);
static_assert(status_of(ErrorCode::kUnavailable) == TRIBUTARY_UNAVAILABLE);
static_assert(status_of(ErrorCode::kStopped) == TRIBUTARY_STOPPED);
static_assert(status_of(ErrorCode::kLimit) == TRIBUTARY_LIMIT);
static_assert(status_of(ErrorCode::kDevice) == TRIBUTARY_NO_DEVICE);

}  // namespace

tributary_status failed(ErrorCode code, const char* message) noexcept {
  std::size_t length = strnlen(message, kMaxLastError);
  constexpr char kCut[] = "...";
  const bool cut = length == kMaxLastError;
  if (cut) {
    length = kMaxLastError - sizeof kCut;
    // Not within a character of UTF-8.
    while (length > 0 && (static_cast<unsigned char>(message[length]) & 0xc0) == 0x80) --length;
  }
  std::memmove(last_error_text, message, length);
  std::memcpy(last_error_text + length, cut ? kCut : "", cut ? sizeof kCut : 1);
  return status_of(code);
}

tributary_status failed(const Error& error) noexcept {
  return failed(error.code, error.message.empty() ? name_of(status_of(error.code)) : error.message.c_str());
}

const char* last_error() noexcept {
  return last_error_text;
}

const char* name_of(tributary_status status) noexcept {
  return status >= 0 && static_cast<std::size_t>(status) < kNames.size() ? kNames[status] : "TRIBUTARY_?";
}

Status not_null(const void* pointer, const char* what) {
  if (pointer) return {};
  return fail(ErrorCode::kInvalidArgument, std::string(what) + " is NULL; give a pointer to one");
}

Status check_size(std::size_t size, std::size_t least, const char* what) {
  if (size >= least && size <= kMaxStructBytes) return {};
  return fail(ErrorCode::kInvalidArgument, std::string(what) + " says that its size is " + std::to_string(size) +
                                               ", where " + std::to_string(least) + " to " +
                                               std::to_string(kMaxStructBytes) +
                                               " can be; set its first member, size, to sizeof of the struct");
}

Status check_unknown(const void* given, std::size_t size, std::size_t known, const char* what) {
  const auto* bytes = static_cast<const unsigned char*>(given);
  for (std::size_t i = known; i < size; ++i) {
    if (bytes[i] == 0) continue;
    return fail(ErrorCode::kInvalidArgument,
                std::string(what) + " has something set at byte " + std::to_string(i) + " that libtributary " +
                    tributary_version() + " does not know; load the library that the program's tributary.h is of");
  }
  return {};
}

}  // namespace tributary::c
