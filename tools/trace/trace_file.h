// A trace as a file that Perfetto and Chrome open. Pure.
//
// A process for each daemon and each trainer, a thread for each lane. The work of threads is X events, which do not
// overlap on a thread. A chunk's round on a node is an async pair with an id, with its ways inside. A flow goes through
// the X events of a chunk's round, from its sum to its arrival, if all are there. Times: microseconds.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tools/trace/trace_data.h"

namespace tributary::trace {

struct File {
  std::string json;
  std::uint64_t flows = 0;
};
// data: of one clock (align()), and set_apart(). ranks_per_node: to name trainers by their rank. about: becomes
// "otherData", which says what the trace is of.
File file_of(const Data& data, const std::vector<Chain>& chains, std::uint32_t ranks_per_node,
             const nlohmann::ordered_json& about);

}  // namespace tributary::trace
