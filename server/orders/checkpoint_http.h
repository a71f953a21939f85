// Orders for checkpoints and jobs over the admin endpoint of server 0, for `tributary checkpoint` and `tributary job`:
//
//   POST /checkpoint/save     {"job", "directory", "committed"}            -> {"id"}
//   POST /checkpoint/restore  {"checkpoint", "name", "force"}              -> {"id"}
//   GET  /checkpoint/ID                                                    -> {"id", "job", "step", "round", ...}
//   POST /job/stop            {"name"}                                     -> {"round"}: the newest; the open one is
//                                                                             the job's last
//   POST /job/deal            {"name", "without"}                          -> {"servers"}: how many it goes to
//   POST /job/remove          {"name"}                                     -> {"removed"}
//
// A refusal is {"error", "retry"} with a status of 400 or above; retry: it may be accepted in a moment.
#pragma once

#include <optional>
#include <string>

#include "common/daemon/admin_http.h"
#include "common/security/path_roots.h"
#include "server/coordinator/coordinator.h"

namespace tributary {

// On the HTTP thread: it may read a manifest. Nothing: there is no such path.
std::optional<AdminHttp::Answer> answer_order(Coordinator& coordinator, const PathRoots& roots, const std::string& path,
                                              const std::string* body);

}  // namespace tributary
