// The result of a run of `tributary up`, from the ranks' final JSON objects (train/report.h) and the daemons.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "common/base/result.h"
#include "tools/cluster/local_cluster.h"

namespace tributary::cli {

// Returns the servers' use of resources; REQUIRES: they run.
nlohmann::ordered_json server_usage(LocalCluster& cluster);

// Returns {test_accuracy, train_loss, train_accuracy, digest, rounds, last_round, completed, stopped, resumed_from,
// restarts, samples_per_s, bytes_per_sample, seconds, step_split, nodes[], servers[], devices[]}. REQUIRES: all
// trainers have ended. kInternal if ranks ended in different bits, kUnavailable if a rank left no result.
Result<nlohmann::ordered_json> summarise(LocalCluster& cluster, nlohmann::ordered_json servers);

std::string summary_text(const nlohmann::ordered_json& summary);
// Returns the summary's lines about nodes and about servers.
std::string nodes_text(const nlohmann::ordered_json& summary);
std::string servers_text(const nlohmann::ordered_json& summary);

}  // namespace tributary::cli
