// What came out of a run of `tributary up`, put together from the ranks' final JSON objects (train/report.h) and the
// daemons.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "common/base/result.h"
#include "tools/cluster/local_cluster.h"

namespace tributary::cli {

// What the servers used; to be taken before they are stopped.
nlohmann::ordered_json server_usage(LocalCluster& cluster);

// After all trainers have ended: {test_accuracy, train_loss, train_accuracy, digest, rounds, last_round, completed,
// stopped, resumed_from, restarts, samples_per_s, bytes_per_sample, seconds, step_split, nodes[], servers[],
// devices[]}. kInternal if ranks ended in different bits, kUnavailable if a rank left no result.
Result<nlohmann::ordered_json> summarise(LocalCluster& cluster, nlohmann::ordered_json servers);

std::string summary_text(const nlohmann::ordered_json& summary);
// Its lines about nodes and about servers.
std::string nodes_text(const nlohmann::ordered_json& summary);
std::string servers_text(const nlohmann::ordered_json& summary);

}  // namespace tributary::cli
