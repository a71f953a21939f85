// One clock for all daemons of a trace, from the messages between them. Pure.
//
// A push is received after it was sent, and an answer arrives after it was given. So the clock of a server is ahead of
// a node's by no more than the shortest (received - sent), and by no less than minus the shortest (arrived - answered).
// All these bounds together (shortest paths make them as tight as they can be) leave an interval for each daemon's
// clock against the reference's; one after the other, the narrowest first, gets the middle of what those before it
// leave. So no message of the trace arrives before it was sent, between any two daemons. (Offsets along a spanning tree
// would not promise that for the pairs outside it.) Clocks that drift apart meanwhile may leave nothing: then all
// bounds are made wider by a slack that does, which counts twice as error.
#pragma once

#include <cstdint>
#include <map>

#include "tools/trace/trace_data.h"

namespace tributary::trace {

struct Clock {
  std::int64_t ahead_ns = 0;   // of the reference's, which is the first server's
  std::uint64_t error_ns = 0;  // no more than that
  bool known = true;           // false: no message ties it to the reference; it is left as it is
};

std::map<Daemon, Clock> clocks_of(const std::vector<Chain>& chains);
// The largest error of those that are known.
std::uint64_t largest_error(const std::map<Daemon, Clock>& clocks);

// All events by the reference's clock, from the first one on.
void align(Data& data, const std::map<Daemon, Clock>& clocks);

}  // namespace tributary::trace
