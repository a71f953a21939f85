// Tests whether a ZeroMQ endpoint is on this machine, so that messages to it cross no link.
#pragma once

#include <string>

namespace tributary {

// True for ipc:// and inproc://, for the loopback range and "localhost", and for tcp:// to an IPv4 address of one of
// this machine's (network namespace's) interfaces. Host names are not resolved: false.
bool is_local_endpoint(const std::string& endpoint);

}  // namespace tributary
