// Bounded HTTP requests, for asking daemons' admin endpoints.
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>

#include "common/base/result.h"

namespace tributary {

inline constexpr std::size_t kMaxHttpBody = 16u << 20;  // bytes of an answer

// Returns the body of http://ADDRESS/PATH. address: "HOST:PORT" ("[::1]:8080" for IPv6). token: of a port that wants
// one; a proof of it is sent. `timeout` bounds the whole exchange (the resolution of a host name may take longer).
// Blocks; any thread. Errors: kInvalidArgument for an address that is none, kTimeout, kLimit for a body over
// kMaxHttpBody, kUnavailable if there is no answer or it is not 200 (its status and text are in the message).
Result<std::string> http_get(const std::string& address, const std::string& path, std::chrono::milliseconds timeout,
                             const std::string& token = "");

struct HttpAnswer {
  unsigned status = 0;
  std::string body;
};
// Returns the answer of http://ADDRESS/PATH to a POST of this JSON, or to a GET if there is none; any status is an
// answer. The other errors are those of http_get().
Result<HttpAnswer> http_order(const std::string& address, const std::string& path,
                              const std::optional<std::string>& json, std::chrono::milliseconds timeout,
                              const std::string& token = "");

}  // namespace tributary
