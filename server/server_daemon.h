// A server as a daemon: how the process starts one from a file, and stops it.
#pragma once

#include <string>

#include "common/base/result.h"
#include "common/daemon/daemon_main.h"

namespace tributary {

// Errors: of the file, and as Server::start() words them.
Result<Daemon> start_server(const std::string& config_path);

}  // namespace tributary
