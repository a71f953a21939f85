// Computes the share of the model that each host's servers should own, so that an exchange over the hosts' links is as
// short as possible.
//
// A host is a machine with one full-duplex link; it holds workers, servers, or both. In one round every worker sends
// alpha bytes for each byte of the fp32 model and receives beta (1 both ways without an encoding). Exchanges between a
// worker and a server on one host do not use the link. With n workers in all, a host that holds w of them and the share
// s of the model carries, in units of the model's size,
//
//     out = w·alpha·(1 − s) + (n − w)·beta·s        pushes of its workers, answers of its servers
//     in  = w·beta·(1 − s) + (n − w)·alpha·s        answers to its workers, pushes to its servers
//
// and the exchange takes T = max over hosts of max(out, in) / bandwidth. These are lines in s, so for a given T each
// share has an interval. T is possible if and only if no interval is empty, the lower ends sum to at most 1 and the
// upper ends to at least 1. The ends are piecewise linear in T: the smallest T is found exactly, between two
// breakpoints, without a solver.
//
// With equal bandwidths, no encoding, n worker hosts that all hold servers and k server hosts this gives the optimum
// of Jiang et al. (OSDI 2020), 2n(n−1)/(n² + kn − 2k); with strongly unequal encodings it leaves the server hosts idle.
//
// Where the optimum is not unique (no share can change the bottleneck) the shares of the other hosts minimise the next
// bottleneck, and so on. Where a host's link does not depend on its share at all (two workers and equal encodings) the
// remaining freedom is used as on machines of the servers' own: evenly, by bandwidth.
// The result is a function of its input alone; hosts that are described alike get the same share, to the bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/base/ids.h"
#include "common/base/result.h"

namespace tributary {

struct PlacementHost {
  double bandwidth = 1.0;     // of its link, each way; any unit, the same for all hosts
  std::uint32_t workers = 0;  // worker daemons (nodes) on it
  std::uint32_t servers = 0;  // server daemons on it; without any its share is 0
};

// Bytes on the wire for each byte of the fp32 model.
struct WireRatio {
  double push = 1.0;  // alpha: worker to server
  double pull = 1.0;  // beta: server to worker
};
// Returns the ratio of a job's encodings, for whole chunks of 1 MiB; residuals cost nothing here.
WireRatio wire_ratio(EncodingSpec push, EncodingSpec pull);

enum class LinkDirection : std::uint8_t { kOut, kIn };

// Load of a host's link in one exchange, in units of the fp32 model's size.
struct LinkLoad {
  double out = 0.0;
  double in = 0.0;
};

struct Placement {
  std::vector<double> shares;   // by host; the sum is 1
  std::vector<LinkLoad> loads;  // by host
  // The exchange's time for a model of size 1: times bytes, over the unit of bandwidth, in seconds. Relative
  // bandwidths (1 for a host's link of B) make it the factor of M/B. 0 if no link carries anything.
  double time_factor = 0.0;
  // The link that takes that long; the first of the hosts, and out before in, if several do.
  std::size_t bottleneck_host = 0;
  LinkDirection bottleneck_direction = LinkDirection::kOut;
};

// Computes the links' loads if the hosts' servers own these shares, optimal or not. REQUIRES: one share for each host.
Placement placement_of_shares(const std::vector<PlacementHost>& hosts, const WireRatio& ratio,
                              std::vector<double> shares);

// The optimal shares. Refuses hosts without any worker or any server, and bandwidths and ratios that are not positive.
Result<Placement> optimal_placement(const std::vector<PlacementHost>& hosts, const WireRatio& ratio);

}  // namespace tributary
