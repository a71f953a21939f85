// Checks of a cluster, from a diagnosis of all daemons (docs/doctor.md) and the coordinator's status. Pure.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/wire/doctor_messages.h"

namespace tributary::cli {

struct DaemonDiagnosis {
  std::string name;  // "worker w1"
  bool server = false;
  std::string silent_because;  // empty: it has reported the members below
  std::vector<Setting> settings;
  std::vector<Check> checks;
  std::vector<LinkRate> rates;
};
struct ClusterDiagnosis {
  std::uint32_t servers = 0;  // of the cluster
  std::vector<DaemonDiagnosis> daemons;
};
// Parses an answer of server/orders/diagnosis_http.h. kMalformed: it is none.
Result<ClusterDiagnosis> diagnosis_of(const nlohmann::ordered_json& json);

// Checks that no daemon can make by itself: missing daemons, settings that differ, slow links, why a job completes no
// round. status: of the daemon that has the coordinator.
std::vector<Check> checks_of_cluster(const ClusterDiagnosis& diagnosis, const nlohmann::ordered_json& status);

}  // namespace tributary::cli
