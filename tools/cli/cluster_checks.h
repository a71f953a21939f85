// What an examination of all daemons (docs/doctor.md), and the coordinator's status, say of the cluster. Pure.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/wire/doctor_messages.h"

namespace tributary::cli {

struct DaemonExam {
  std::string name;  // "worker w1"
  bool server = false;
  std::string silent_because;  // empty: it has said what follows
  std::vector<Setting> settings;
  std::vector<Check> checks;
  std::vector<LinkRate> rates;
};
struct ClusterExam {
  std::uint32_t servers = 0;  // that the cluster has
  std::vector<DaemonExam> daemons;
};
// As server/orders/exam_http.h answers. kMalformed: it is none.
Result<ClusterExam> exam_of(const nlohmann::ordered_json& json);

// Only what no daemon can see by itself: who is missing, what differs, whose link is slow, why a job gets no round
// done. status: of the daemon that has the coordinator.
std::vector<Check> checks_of_cluster(const ClusterExam& exam, const nlohmann::ordered_json& status);

}  // namespace tributary::cli
