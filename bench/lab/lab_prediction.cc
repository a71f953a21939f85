#include "bench/lab/lab_prediction.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace tributary::bench {
namespace {

constexpr double kBytesPerMbit = 1e6 / 8.0;

double rate_of(const lab::LabHost& host) {
  return std::min(host.up_mbit, host.down_mbit) * kBytesPerMbit;
}

// The common part of all scenarios of a lab.
Scenario hosts_of(const lab::LabConfig& lab, double model_bytes, double goodput) {
  Scenario s;
  s.nodes = lab.workers();
  s.network.bandwidth = lab.rate_mbit * kBytesPerMbit;
  s.goodput = goodput;
  s.payload_bytes = model_bytes;
  for (const lab::LabHost& host : lab.hosts) {
    if (!host.worker) continue;
    s.ranks_per_node = host.ranks;
    s.node_bandwidths.push_back(rate_of(host));
  }
  return s;
}

}  // namespace

Scenario lab_scenario(const lab::LabConfig& lab, const JobConfig& job, double model_bytes, double goodput) {
  Scenario s = hosts_of(lab, model_bytes, goodput);
  if (!on_servers(job)) {
    s.mode = job.allreduce.algorithm == AllreduceAlgorithm::kFlat ? ExchangeMode::kFlatRing
                                                                  : ExchangeMode::kHierarchicalRing;
    return s;
  }
  if (has_local_steps(job)) s.local_steps = job.local.steps;
  bool beside = false;
  for (const lab::LabHost& host : lab.hosts) {
    if (host.worker) s.node_servers.push_back(host.server);
    beside = beside || (host.worker && host.server);
    if (!host.server || host.worker) continue;
    ++s.servers;
    s.server_bandwidths.push_back(rate_of(host));
  }
  s.mode = !beside          ? ExchangeMode::kServersDedicated
           : s.servers == 0 ? ExchangeMode::kServersColocated
                            : ExchangeMode::kServersMixed;
  s.wire = wire_ratio(job.push, job.pull);
  return s;
}

Scenario gloo_scenario(const lab::LabConfig& lab, double model_bytes, double goodput) {
  Scenario s = hosts_of(lab, model_bytes, goodput);
  s.mode = ExchangeMode::kFlatRing;
  s.ranks_per_node = 1;
  return s;
}

double payload_share(const lab::LabConfig& lab, const std::vector<lab::LinkCheck>& links) {
  return lab::kPayloadShare * lab::goodput_bytes_per_s(lab, links) / lab::goodput_bytes_per_s(lab, {});
}

}  // namespace tributary::bench
