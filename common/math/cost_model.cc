#include "common/math/cost_model.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string>
#include <utility>

#include "common/base/layout.h"
#include "common/base/printed.h"

namespace tributary {
namespace {

constexpr std::uint32_t kMaxHosts = 1u << 16;  // bound on nodes and server hosts, hence on a prediction's size
// Links whose times differ by less are named together.
constexpr double kAlike = 0.01;

Status require(bool good, const char* field, double value, const char* cure) {
  if (good) return {};
  return fail(ErrorCode::kInvalidArgument, printed("%s is %g; %s", field, value, cure));
}

Status check_bandwidths(const char* field, const std::vector<double>& values, std::uint32_t hosts) {
  if (!values.empty() && values.size() != hosts) {
    return fail(ErrorCode::kInvalidArgument, std::string(field) + " has " + std::to_string(values.size()) +
                                                 " values for " + std::to_string(hosts) +
                                                 " hosts; give one for each, or none");
  }
  for (double value : values) {
    const Status good = require(std::isfinite(value) && value > 0.0, field, value, "bandwidths must be positive");
    if (!good) return good;
  }
  return {};
}

Status check(const Scenario& s) {
  struct Rule {
    bool good;
    const char* field;
    double value;
    const char* cure;
  };
  const auto positive = [](double v) { return std::isfinite(v) && v > 0.0; };
  const auto not_negative = [](double v) { return std::isfinite(v) && v >= 0.0; };
  const Rule rules[] = {
      {s.nodes >= 1 && s.nodes <= kMaxHosts, "nodes", double(s.nodes), "it must be from 1 to 65536"},
      {s.ranks_per_node >= 1 && s.ranks_per_node <= kMaxHosts, "ranks per node", double(s.ranks_per_node),
       "it must be from 1 to 65536"},
      {s.servers <= kMaxHosts, "servers", double(s.servers), "it must be at most 65536"},
      {s.servers >= 1 || (s.mode != ExchangeMode::kServersDedicated && s.mode != ExchangeMode::kServersMixed),
       "servers", double(s.servers), "servers on machines of their own need at least one such machine"},
      {positive(s.network.bandwidth), "the network's bandwidth", s.network.bandwidth, "it must be positive"},
      {not_negative(s.network.latency_s), "the network's latency", s.network.latency_s, "it must not be negative"},
      {positive(s.inside.bandwidth), "the bandwidth inside a node", s.inside.bandwidth, "it must be positive"},
      {not_negative(s.inside.latency_s), "the latency inside a node", s.inside.latency_s, "it must not be negative"},
      {positive(s.goodput) && s.goodput <= 1.0, "goodput", s.goodput, "it must be above 0 and at most 1"},
      {positive(s.payload_bytes), "the payload", s.payload_bytes, "it must be positive"},
      {positive(s.wire.push), "the push ratio", s.wire.push, "it must be positive"},
      {positive(s.wire.pull), "the pull ratio", s.wire.pull, "it must be positive"},
      {not_negative(s.transfer_bytes) || s.transfer_bytes == kDefaultTransfer, "the transfer size", s.transfer_bytes,
       "it must not be negative"},
      {not_negative(s.transfer_overhead_bytes), "the overhead of a transfer", s.transfer_overhead_bytes,
       "it must not be negative"},
      {s.buckets >= 1, "buckets", double(s.buckets), "it must be at least 1"},
      {not_negative(s.compute_s), "the compute time", s.compute_s, "it must not be negative"},
      {s.local_steps >= 1, "the number of local steps", static_cast<double>(s.local_steps), "it must be at least 1"},
      {not_negative(s.overlap) && s.overlap <= 1.0, "overlap", s.overlap, "it must be from 0 to 1"},
      {not_negative(s.update_s), "the update time", s.update_s, "it must not be negative"},
      {not_negative(s.cpu_s_per_byte), "the CPU time of a byte", s.cpu_s_per_byte, "it must not be negative"},
      {positive(s.cores), "cores", s.cores, "it must be positive"},
  };
  for (const Rule& rule : rules) {
    if (const Status good = require(rule.good, rule.field, rule.value, rule.cure); !good) return good;
  }
  if (!s.node_servers.empty() && s.node_servers.size() != s.nodes) {
    return fail(ErrorCode::kInvalidArgument, "node servers has " + std::to_string(s.node_servers.size()) +
                                                 " values for " + std::to_string(s.nodes) +
                                                 " nodes; give one for each, or none");
  }
  if (const Status good = check_bandwidths("node bandwidths", s.node_bandwidths, s.nodes); !good) return good;
  return check_bandwidths("server bandwidths", s.server_bandwidths, s.servers);
}

// Payload bytes per second of a host's link.
double node_rate(const Scenario& s, std::size_t i) {
  return s.goodput * (s.node_bandwidths.empty() ? s.network.bandwidth : s.node_bandwidths[i]);
}
double server_rate(const Scenario& s, std::size_t i) {
  return s.goodput * (s.server_bandwidths.empty() ? s.network.bandwidth : s.server_bandwidths[i]);
}
double slowest_node(const Scenario& s) {
  double rate = node_rate(s, 0);
  for (std::size_t i = 1; i < s.nodes; ++i) rate = std::min(rate, node_rate(s, i));
  return rate;
}

// Payload bytes of a transfer between a worker and a server, before encoding, with `holders` hosts of servers.
double transfer_of(const Scenario& s, std::uint32_t holders) {
  if (s.transfer_bytes != kDefaultTransfer) return std::min(s.transfer_bytes, s.payload_bytes / holders);
  constexpr double kMostValues = 1e15;  // of a payload that no machine has, so that it fits the integer
  const auto values = static_cast<std::uint64_t>(std::clamp(s.payload_bytes / sizeof(float), 1.0, kMostValues));
  const std::vector<ShardSlots> shards(holders);
  return sizeof(float) *
         static_cast<double>(default_chunk_elements(values, shards, s.nodes, s.nodes == 1 && holders == 1));
}

// Bytes that rings exchange at a time.
double piece_of(const Scenario& s) {
  const double chunk = s.transfer_bytes == kDefaultTransfer ? transfer_of(s, s.nodes) : s.transfer_bytes;
  return std::min(chunk, s.payload_bytes / s.buckets);
}

// Bytes that a ring over n members takes through each, in units of the payload.
double ring_factor(double n) {
  return 2.0 * (n - 1.0) / n;
}

// Every node's link carries `bytes` each way; members of a ring wait for the slowest.
void all_nodes_carry(const Scenario& s, double bytes, Prediction& p) {
  for (std::uint32_t i = 0; i < s.nodes; ++i) {
    p.hosts.push_back({.worker = true, .index = i, .share = 0.0, .out_bytes = bytes, .in_bytes = bytes});
  }
}

// Reduce-scatter before and all-gather after, over the ranks of a node, while `piece` bytes at a time cross the network
// for network_s in all.
void reduce_in_node(const Scenario& s, std::uint32_t collectives, double piece, Prediction& p) {
  const double g = s.ranks_per_node;
  p.inside_busy_s = ring_factor(g) * s.payload_bytes / s.inside.bandwidth;
  const double first_and_last = std::min(p.inside_busy_s, p.network_s) * std::min(piece / s.payload_bytes, 1.0);
  p.inside_s = std::max(p.inside_busy_s - p.network_s, 0.0) + first_and_last;
  p.latency_s += collectives * 2.0 * (g - 1.0) * s.inside.latency_s;
}

void flat_ring(const Scenario& s, Prediction& p) {
  if (s.nodes == 1) {
    all_nodes_carry(s, 0.0, p);
    return reduce_in_node(s, s.buckets, s.payload_bytes, p);
  }
  const double n = static_cast<double>(s.nodes) * s.ranks_per_node;
  const double bytes = ring_factor(n) * s.payload_bytes;
  const bool inside = s.ranks_per_node > 1;
  const double rate = inside ? std::min(slowest_node(s), s.inside.bandwidth) : slowest_node(s);
  const double latency = inside ? std::max(s.network.latency_s, s.inside.latency_s) : s.network.latency_s;
  p.network_s = bytes / rate;
  p.latency_s = s.buckets * 2.0 * (n - 1.0) * latency;
  all_nodes_carry(s, bytes, p);
}

void hierarchical_ring(const Scenario& s, Prediction& p) {
  const double bytes = ring_factor(s.nodes) * s.payload_bytes;
  p.network_s = bytes / slowest_node(s);
  reduce_in_node(s, s.buckets, piece_of(s), p);
  p.latency_s += s.buckets * 2.0 * (s.nodes - 1.0) * s.network.latency_s;
  all_nodes_carry(s, bytes, p);
}

Status servers(const Scenario& s, Prediction& p) {
  const auto beside = [&s](std::uint32_t node) {
    return s.mode != ExchangeMode::kServersDedicated && (s.node_servers.empty() || s.node_servers[node]);
  };
  const std::uint32_t own = s.mode == ExchangeMode::kServersColocated ? 0 : s.servers;
  std::vector<PlacementHost> hosts;
  for (std::uint32_t i = 0; i < s.nodes; ++i) {
    hosts.push_back({.bandwidth = node_rate(s, i), .workers = 1, .servers = beside(i) ? 1u : 0u});
  }
  for (std::uint32_t i = 0; i < own; ++i) hosts.push_back({.bandwidth = server_rate(s, i), .workers = 0, .servers = 1});

  const auto holders =
      static_cast<std::uint32_t>(std::ranges::count_if(hosts, [](const PlacementHost& h) { return h.servers > 0; }));
  if (holders == 0) return fail(ErrorCode::kInvalidArgument, "no node holds servers; colocated needs at least one");
  const double transfer = transfer_of(s, holders);
  const double overhead = transfer > 0.0 ? s.transfer_overhead_bytes / transfer : 0.0;
  const WireRatio ratio{.push = s.wire.push + overhead, .pull = s.wire.pull + overhead};
  const auto placement = optimal_placement(hosts, ratio);
  if (!placement) return tl::unexpected<Error>(placement.error());

  p.network_s = placement->time_factor * s.payload_bytes;
  reduce_in_node(s, 1, transfer, p);
  if (placement->time_factor > 0.0) {
    p.latency_s += 2.0 * s.network.latency_s;
    const double rate = hosts[placement->bottleneck_host].bandwidth;
    p.tail_s = (s.nodes + 2.0 * holders) * transfer * std::max(ratio.push, ratio.pull) / rate;
  }
  for (std::uint32_t i = 0; i < hosts.size(); ++i) {
    p.hosts.push_back({.worker = i < s.nodes,
                       .index = i < s.nodes ? i : i - s.nodes,
                       .share = placement->shares[i],
                       .out_bytes = placement->loads[i].out * s.payload_bytes,
                       .in_bytes = placement->loads[i].in * s.payload_bytes});
  }
  return {};
}

// "the worker hosts' links, out", "worker host 2's link, both ways".
std::string busiest_links(const Scenario& s, const Prediction& p) {
  struct Group {
    std::uint32_t hosts = 0, out = 0, in = 0, last = 0;  // how many of them are as busy as the busiest
  };
  Group groups[2];  // workers, servers
  const auto rate = [&s](const HostTraffic& h) { return h.worker ? node_rate(s, h.index) : server_rate(s, h.index); };
  double longest = 0.0;
  for (const HostTraffic& h : p.hosts) longest = std::max(longest, std::max(h.out_bytes, h.in_bytes) / rate(h));
  if (longest <= 0.0) return "none: nothing crosses a link between hosts";
  const double threshold = longest * (1.0 - kAlike);
  for (const HostTraffic& h : p.hosts) {
    Group& group = groups[h.worker ? 0 : 1];
    const bool out = h.out_bytes / rate(h) >= threshold, in = h.in_bytes / rate(h) >= threshold;
    ++group.hosts;
    group.out += out;
    group.in += in;
    if (out || in) group.last = h.index;
  }
  const auto ways = [](std::uint32_t out, std::uint32_t in) -> std::string {
    return out > 0 && in > 0 ? ", both ways" : out > 0 ? ", out" : ", in";
  };
  const auto all_busy = [](const Group& g) { return g.hosts > 0 && g.out == g.hosts && g.in == g.hosts; };
  if (all_busy(groups[0]) && all_busy(groups[1])) return "every host's link, both ways";
  std::string text;
  for (std::size_t i = 0; i < 2; ++i) {
    const Group& g = groups[i];
    const std::uint32_t busy = std::max(g.out, g.in);
    if (busy == 0) continue;
    const std::string kind = i == 0 ? "worker" : "server";
    if (!text.empty()) text += "; ";
    if (busy == g.hosts && g.hosts > 1) {
      text += "the " + kind + " hosts' links";
    } else if (busy == 1) {
      text += (g.hosts == 1 ? "the " + kind + " host" : kind + " host " + std::to_string(g.last)) + "'s link";
    } else {
      text += "the links of " + std::to_string(busy) + " of " + std::to_string(g.hosts) + " " + kind + " hosts";
    }
    text += ways(g.out, g.in);
  }
  return text;
}

std::string bottleneck_of(const Scenario& s, const Prediction& p, bool processors) {
  if (processors) return "the processors of the machine that emulates the hosts";
  if (p.exchange_s <= 0.0) return "none: nothing is exchanged";
  if (p.latency_s > p.network_s + p.tail_s && p.latency_s > p.inside_busy_s) return "latency: the messages are small";
  const bool ring_inside =
      s.mode == ExchangeMode::kFlatRing && s.ranks_per_node > 1 && s.inside.bandwidth < slowest_node(s);
  if (p.inside_busy_s > p.network_s + p.tail_s || ring_inside) return "the links inside the nodes";
  return busiest_links(s, p);
}

}  // namespace

std::string_view to_string(ExchangeMode mode) {
  static constexpr std::string_view kNames[] = {"flat-ring", "hierarchical-ring", "dedicated", "colocated", "mixed"};
  static_assert(std::size(kNames) == static_cast<std::size_t>(ExchangeMode::kServersMixed) + 1);
  const auto number = static_cast<std::size_t>(mode);
  return number < std::size(kNames) ? kNames[number] : "?";
}

Result<Prediction> predict(const Scenario& s) {
  if (const Status good = check(s); !good) return tl::unexpected<Error>(good.error());
  Prediction p;
  p.mode = s.mode;
  switch (s.mode) {
    case ExchangeMode::kFlatRing:
      flat_ring(s, p);
      break;
    case ExchangeMode::kHierarchicalRing:
      hierarchical_ring(s, p);
      break;
    case ExchangeMode::kServersDedicated:
    case ExchangeMode::kServersColocated:
    case ExchangeMode::kServersMixed:
      if (const Status good = servers(s, p); !good) return tl::unexpected<Error>(good.error());
      break;
  }
  p.exchange_s = p.inside_s + p.network_s + p.latency_s + p.tail_s;
  double moved = 0.0;
  for (const HostTraffic& host : p.hosts) moved += host.out_bytes;
  const double processors_s = moved * s.cpu_s_per_byte / s.cores;
  const bool processors = processors_s > p.exchange_s;
  if (processors) p.exchange_s = processors_s;

  const double after_the_last = std::min(p.exchange_s, p.tail_s + p.latency_s / s.buckets);
  p.exposed_s = s.overlap > 0.0 ? std::max(after_the_last, p.exchange_s - s.overlap * s.compute_s) : p.exchange_s;
  const double work = s.compute_s + (uses_servers(s.mode) ? 0.0 : s.update_s);
  p.step_s = work + p.exposed_s / (uses_servers(s.mode) ? s.local_steps : 1u);
  p.efficiency = s.compute_s > 0.0 ? work / p.step_s : 0.0;
  p.network_factor = p.network_s * s.goodput * s.network.bandwidth / s.payload_bytes;
  p.bottleneck = bottleneck_of(s, p, processors);
  return p;
}

}  // namespace tributary
