// Asks a coordinator for its cluster's facts, with the address, keys and protocol of a daemon with this configuration.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/security/credentials.h"
#include "common/wire/doctor_messages.h"

namespace tributary {

struct Asked {
  std::vector<Check> checks;            // the attempt's result, in the section "coordinator"
  std::optional<ClusterFacts> cluster;  // if it has answered
};
// endpoints: of the servers that may have the coordinator, "tcp://HOST:PORT" or "ipc://PATH". Takes some seconds for
// each that does not answer.
Asked ask_cluster(const std::vector<std::string>& endpoints, const Credentials& credentials);

}  // namespace tributary
