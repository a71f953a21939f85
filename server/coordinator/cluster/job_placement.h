// Where the chunks of a job go: which hosts the cluster's servers and the job's workers make up, the share of each
// server (common/math/placement.h), and what the hosts' links then carry in one exchange. Pure.
//
// Daemons that state the same host share a link. Its bandwidth is the largest that one of them states. A host's share
// is split evenly over its servers; a server whose share would be less than half a chunk owns none of the job. If the
// host of any daemon is not known, or all of them are on one host, no link is there to be modelled: servers then own
// chunks in proportion to the bandwidths that they state themselves.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/base/layout.h"
#include "common/base/result.h"
#include "common/math/placement.h"

namespace tributary {

struct PlacedDaemon {
  std::string name;  // in words: "server 0", "worker node-1"
  std::string host;  // empty: not known
  double bandwidth = 1.0;
};

enum class PlacementBasis : std::uint8_t {
  kLinks,         // the hosts' links
  kOneHost,       // everything is on one host
  kUnknownHosts,  // some daemon does not say where it is
};
const char* name_of(PlacementBasis basis);

// The hosts of a job. Servers are in the order given; `numbers` has their indices in the cluster, ascending.
struct JobHosts {
  struct Host {
    std::string identity;
    std::vector<std::string> daemons;  // in words
    PlacementHost link;                // bandwidth as stated
  };
  PlacementBasis basis = PlacementBasis::kUnknownHosts;
  std::vector<Host> hosts;  // kUnknownHosts: none
  std::vector<std::uint16_t> numbers;
  std::vector<std::size_t> of_server;    // host of each server; kUnknownHosts: none
  std::vector<double> server_bandwidth;  // as each server states it
  std::uint32_t workers = 0;
  bool on_devices = false;                  // some node's gradients are added up on GPUs
  std::vector<std::string> contradictions;  // sentences: daemons of one host that state different bandwidths
  // B: the slowest link of a host with workers, so that a ring over them takes 2(n-1)/n times M/B.
  double unit_bandwidth = 1.0;
};
// numbers: of the servers; none: they count from 0.
JobHosts hosts_of_job(std::span<const PlacedDaemon> servers, std::span<const PlacedDaemon> workers,
                      std::vector<std::uint16_t> numbers = {});

// The weight of each server's share, 0 for those that are better left out. The sum is positive.
Result<std::vector<double>> server_weights(const JobHosts& hosts, const WireRatio& ratio);

// The layout with these weights. chunk_elements 0: as default_chunk_elements() chooses for the servers that get chunks.
Result<Layout> place_chunks(const std::vector<TensorSpec>& tensors, std::uint64_t chunk_elements,
                            std::vector<ShardSlots> slots, const JobHosts& hosts);

// The chunks of a job dealt to these servers: server_weights(), then place_chunks(), with the servers' numbers as owners.
Result<Layout> deal_chunks(const std::vector<TensorSpec>& tensors, std::uint64_t chunk_elements,
                           std::vector<ShardSlots> slots, const JobHosts& hosts, const WireRatio& ratio);

// A layout as people see it. Predictions are those of the layout that there is, rounded to chunks and perhaps made for
// other hosts (a resumed job keeps its shards), not of the one that would be best now.
struct JobPlacement {
  struct Server {
    std::uint16_t number = 0;
    std::uint32_t chunks = 0;
    std::uint64_t bytes = 0;  // of fp32 parameters
    double share = 0.0;
  };
  JobHosts hosts;
  WireRatio ratio;
  std::vector<Server> servers;
  // kLinks only. Times are in units of M/B: M the model's fp32 bytes, B as in JobHosts.
  Placement predicted;          // shares and loads by host
  double optimal_factor = 0.0;  // with the best shares for these hosts
  double ring_factor = 0.0;     // an fp32 ring over the job's nodes: 2(n-1)/n

  bool colocated(std::size_t server) const;  // with a worker of the job. REQUIRES: hosts are known
  std::string bottleneck() const;            // host and direction in words; empty if nothing is predicted
  std::string in_words() const;              // one line for the log
};
// REQUIRES: the layout's owners are among the hosts' servers.
Result<JobPlacement> describe_placement(JobHosts hosts, const WireRatio& ratio, const Layout& layout);

}  // namespace tributary
