// JobWatch: the job that trainers brought to a cluster, as its coordinator reports. Owner: `tributary run`; one thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "tools/cluster/local_cluster.h"

namespace tributary::cli {

class JobWatch {
 public:
  // Rounds of earlier runs that the cluster kept do not count.
  explicit JobWatch(LocalCluster& cluster);

  // Asks the coordinator if the last call was a while ago (or `now`). Without an answer the state stays as it was.
  void ask(bool now);
  // Rounds completed since the beginning, in all views and jobs.
  std::uint64_t rounds() const { return rounds_; }
  // The /status of the job that began last: {name, max_version, finished, last_stop, not_saved, ...}; null: none did.
  const nlohmann::ordered_json& job() const { return job_; }

 private:
  struct Known {
    std::uint64_t view = 0, version = 0;
  };
  LocalCluster& cluster_;
  std::map<std::string, Known> before_;
  std::chrono::steady_clock::time_point asked_;
  std::uint64_t rounds_ = 0;
  nlohmann::ordered_json job_;
};

// The jobs in the coordinator's /status; empty if nobody answers.
nlohmann::ordered_json cluster_jobs(LocalCluster& cluster);

// Whether a trainer has attached to its worker and waits for others.
bool somebody_waits(LocalCluster& cluster);

// Payload of each node since its worker's last start: [{bytes_pushed, bytes_pulled}]; null for one that does not
// answer.
nlohmann::ordered_json node_traffic(LocalCluster& cluster);

}  // namespace tributary::cli
