// Diagnoses over the admin endpoint of the daemon that has the coordinator (docs/doctor.md).
//
//   POST /doctor/order  {"measure": false, "paths": ["/data"]} -> {"id": 7}; every daemon looks at itself
//   GET  /doctor/ID     {"id", "measure", "over", "servers" (expected), "daemons": [{"name", "asked", "said",
//                       "silent_because"}]}
//   GET  /doctor/ID/N   the reply of the Nth of them: {"name", "kind", "silent_because", "settings": [{"key",
//                       "value"}], "checks": [{"section", "name", "level", "found", "advice"}], "rates": [{"server",
//                       "local", "bytes_per_s", "round_trip_s"}]}
#pragma once

#include <optional>
#include <string>

#include "common/daemon/admin_http.h"
#include "server/coordinator/coordinator.h"

namespace tributary {

// body: of a POST; null: a GET. nothing: the path is none of these.
std::optional<AdminHttp::Answer> answer_diagnosis(Coordinator& coordinator, const std::string& path,
                                                  const std::string* body);

}  // namespace tributary
