// Checks a daemon's configuration against its machine, line by line: its keys, addresses, folders, limits, and, if the
// coordinator has answered, the cluster. Reads and connects, and changes nothing.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/config/config.h"
#include "common/doctor/machine_facts.h"
#include "common/wire/doctor_messages.h"

namespace tributary {

struct Around {
  const std::atomic<bool>& stopping;         // then the rest is left out
  std::vector<NetworkInterface> interfaces;  // of this machine
  std::string host;                          // that is this machine's (common/system/host_identity.h)
  std::vector<std::string> paths;            // is each of them there?
  std::optional<ClusterFacts> cluster;       // none: the coordinator has not answered
  // The daemon itself runs the checks: it runs as configured, and the addresses in use are its own.
  bool running = false;
};

std::vector<Check> checks_of(const ServerConfig& config, const Around& around);
std::vector<Check> checks_of(const WorkerConfig& config, const Around& around);
std::vector<Check> checks_of_paths(const Around& around);  // and nothing else

// How a coordinator's clock and version compare with this process's. now_ms: time of day, since 1970.
std::vector<Check> checks_of_coordinator(const ClusterFacts& cluster, std::uint64_t now_ms);

}  // namespace tributary
