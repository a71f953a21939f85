// A bounded HTTP GET, for asking daemons' admin endpoints.
#pragma once

#include <chrono>
#include <string>

#include "common/result.h"

namespace tributary {

// Body of http://ADDRESS/PATH. address: "HOST:PORT" ("[::1]:8080" for IPv6). kInvalidArgument for an address that is
// none, kUnavailable if nobody answers within `timeout` or the answer is not 200 (its status and text are in the
// message).
Result<std::string> http_get(const std::string& address, const std::string& path, std::chrono::milliseconds timeout);

}  // namespace tributary
