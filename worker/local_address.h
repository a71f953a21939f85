// Under which address other machines reach this one.
#pragma once

#include <string>

#include "common/base/result.h"

namespace tributary {

// The local address (a number) of the route to the host of `endpoint` ("tcp://HOST:PORT"); 127.0.0.1 for ipc, which
// does not leave the machine. Nothing is sent. kUnavailable if the host is not known or there is no route to it.
Result<std::string> local_address_towards(const std::string& endpoint);

}  // namespace tributary
