// The address on which a lane listens, and the one for workers.
#pragma once

#include <string>

#include "common/base/ids.h"
#include "common/base/result.h"

namespace tributary {

// The address lane `lane` binds, from ServerConfig::bind: "tcp://ADDR:PORT" gives PORT + lane, "tcp://ADDR:*" stays,
// and "ipc://PREFIX" gives "ipc:///absolute/PREFIX-lane-N". kConfig names the value and the right form.
Result<std::string> lane_bind_address(const std::string& bind, LaneIndex lane);

// kUnavailable if an ipc address has a living listener, or another user's. ZeroMQ would silently unlink its socket and
// take its clients away; tcp needs no such check, because the kernel refuses a port that is taken.
Status check_ipc_free(const std::string& address);

// Returns the endpoint for workers: `bound` (wildcards already resolved by ZeroMQ) with its host replaced by
// `advertise`, if that is not empty, or by 127.0.0.1 if it was bound to all interfaces.
std::string advertised_endpoint(const std::string& bound, const std::string& advertise);

}  // namespace tributary
