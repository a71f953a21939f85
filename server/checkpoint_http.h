// Orders for checkpoints over the admin endpoint of server 0, for `tributary checkpoint`:
//
//   POST /checkpoint/save     {"job", "directory", "committed"}            -> {"id"}
//   POST /checkpoint/restore  {"checkpoint", "name", "force"}              -> {"id"}
//   GET  /checkpoint/ID                                                    -> {"id", "job", "step", "round", ...}
//
// A refusal is {"error", "retry"} with a status of 400 or above; retry: it may be accepted in a moment.
#pragma once

#include <optional>
#include <string>

#include "common/admin_http.h"
#include "server/coordinator.h"

namespace tributary {

// On the HTTP thread: it may read a manifest. Nothing: there is no such path.
std::optional<AdminHttp::Answer> answer_checkpoint_order(Coordinator& coordinator, const std::string& path,
                                                         const std::string* body);

}  // namespace tributary
