// Predicts the time of an exchange of gradients, by the alpha-beta model (latency and bandwidth) of each way to do it.
//
// M is the payload (the uncompressed bytes that each rank contributes), n the nodes, g the ranks in each, N = n·g,
// B a host's link, B' a link inside a node, α and α' their latencies for one message.
//
//   ring over N ranks        2(N−1)/N · M/B + 2(N−1)·α       reduce-scatter and all-gather, each N−1 steps of M/N
//                            (Patarasuk and Yuan, JPDC 2009). Neighbours on one host use its links inside; every step
//                            waits for the slowest link, so B is the smallest bandwidth and α the largest latency.
//   hierarchical             ring over the node's g ranks with B' and α' (its reduce-scatter before, its all-gather
//                            after), ring over n nodes with B and α; chunk by chunk, so that the two overlap (below)
//   servers                  T · M/B + 2·α + tail, with T of common/math/placement.h: the shares are by bandwidth if
//                            servers have machines of their own, optimal if some share a host with a worker; in the
//                            node as above. tail = (n + 2k)·c/B for k hosts with servers: when the last answers can
//                            begin, a server still has those of its last transfer to send, one for each of n workers,
//                            and up to 2k transfers of c bytes were in a worker's window (common/base/layout.h)
//
// In the node and between nodes: while one chunk is on its way between nodes, others are being reduced in theirs. So
// the longer of the two parts counts, and of the shorter only the first chunk before it and the last one after it:
// max(I, E) + min(I, E) · c/M for a node's part I, an exchange E and chunks of c bytes (the same c as in the tail).
//
// A link carries payload in frames: B is `goodput` times the nominal rate, and every transfer of servers has a header
// and an acknowledgement. All bandwidths are bytes per second (1e9 is 1 GB/s), times seconds.
//
// Step time: exposed = exchange − overlap · compute, but never less than the part that cannot begin before the last
// gradient (tail and latency of one transfer). Efficiency is that of weak scaling: the part of the step that is not
// waiting. With local steps (mode local_sgd) a step waits for its share of the one exchange that follows all of them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"
#include "common/math/placement.h"

namespace tributary {

enum class ExchangeMode : std::uint8_t {
  kFlatRing,
  kHierarchicalRing,
  kServersDedicated,  // on machines of their own
  kServersColocated,  // on the workers' machines
  kServersMixed,      // both
};
std::string_view to_string(ExchangeMode mode);  // "flat-ring", "hierarchical-ring", "dedicated", ...
constexpr bool uses_servers(ExchangeMode mode) {
  return mode >= ExchangeMode::kServersDedicated;
}

// TCP payload in what a rate limiter or an interface counts: 1448 of 1514 bytes at MTU 1500 with timestamps.
inline constexpr double kEthernetGoodput = 1448.0 / 1514.0;

// Transfers of the coordinator's default size (default_chunk_elements).
inline constexpr double kDefaultTransfer = -1.0;

struct LinkModel {
  double bandwidth = 0.0;  // bytes per second, each way
  double latency_s = 0.0;  // of one message, one way
};

struct Scenario {
  ExchangeMode mode = ExchangeMode::kServersDedicated;
  std::uint32_t nodes = 1;           // hosts with a worker
  std::uint32_t ranks_per_node = 1;  // GPUs
  std::uint32_t servers = 0;         // hosts with servers only; for dedicated and mixed

  LinkModel network{.bandwidth = 1.25e9, .latency_s = 50e-6};  // a host's link
  LinkModel inside{.bandwidth = 10e9, .latency_s = 1e-6};      // between ranks of a node; goodput is not applied to it
  // Links that differ, bytes per second: of each node, of each server host. Empty: all as `network`.
  std::vector<double> node_bandwidths, server_bandwidths;
  std::vector<bool> node_servers;     // colocated and mixed: which nodes hold servers. Empty: all
  double goodput = kEthernetGoodput;  // payload bytes in a byte of the network's bandwidth

  double payload_bytes = 0.0;  // of one rank; for a training job 4 bytes a parameter (fp32)
  WireRatio wire;              // servers: bytes on the wire per payload byte
  // Transfers between workers and servers.
  double transfer_bytes = kDefaultTransfer;  // payload bytes, before encoding; 0: as fine as can be, without a tail
  double transfer_overhead_bytes = 300.0;    // header, frames and acknowledgement of one, in each direction
  std::uint32_t buckets = 1;                 // rings: collectives one after another, each with its latency

  double compute_s = 0.0;         // forward and backward pass
  std::uint32_t local_steps = 1;  // so many of them between two exchanges; servers only
  double overlap = 0.0;           // of compute_s, the part behind which an exchange may hide: 0 (none) to 1
  double update_s = 0.0;          // rings: the optimizer's step, after the exchange; servers step on the way

  // Hosts that are emulated on one machine share its cores: CPU time for a payload byte from one host to another.
  // 0: they are machines of their own.
  double cpu_s_per_byte = 0.0;
  double cores = 1.0;
};

// Load of a host's link in one exchange, in bytes of payload with the transfers' headers. An interface's counter shows
// 1 / goodput times as much.
struct HostTraffic {
  bool worker = false;  // or a server host
  std::uint32_t index = 0;
  double share = 0.0;  // of the model, that its servers own
  double out_bytes = 0.0;
  double in_bytes = 0.0;
};

struct Prediction {
  ExchangeMode mode = ExchangeMode::kServersDedicated;
  // Parts of the exchange; they add up to exchange_s unless the processors are the limit.
  double inside_s = 0.0;   // in the node, as far as the network does not hide it
  double network_s = 0.0;  // bytes over the slowest link
  double latency_s = 0.0;
  double tail_s = 0.0;
  double exchange_s = 0.0;
  double inside_busy_s = 0.0;      // in the node, hidden or not
  double exposed_s = 0.0;          // the step's wait for it
  double step_s = 0.0;             // compute, what is exposed (with local steps: its part of it), update
  double efficiency = 0.0;         // (compute + update) / step; 0 without compute
  double network_factor = 0.0;     // network_s in units of payload / (goodput · network.bandwidth)
  std::vector<HostTraffic> hosts;  // workers first
  std::string bottleneck;          // of the exchange, in words
};

// Errors: kInvalidArgument, naming the field.
Result<Prediction> predict(const Scenario& scenario);

}  // namespace tributary
