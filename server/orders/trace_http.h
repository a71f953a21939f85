// Orders for traces over the admin endpoint of the coordinator's daemon (docs/trace.md):
//   POST /trace/order {"job": name, "rounds": n}   -> {"id": 1}
//   GET  /trace/ID                                 -> which rounds, how far it is, how many parts there are
//   GET  /trace/ID/K                               -> part K: a track of a daemon, and events
#pragma once

#include <optional>
#include <string>

#include "common/daemon/admin_http.h"
#include "server/coordinator/coordinator.h"

namespace tributary {

// body: of a POST; null: a GET. Nothing: the path is none of these.
std::optional<AdminHttp::Answer> answer_trace(Coordinator& coordinator, const std::string& path,
                                              const std::string* body);

}  // namespace tributary
