#include "server/coordinator/cluster/job_placement.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "common/base/assert.h"
#include "common/base/printed.h"

namespace tributary {
namespace {

// Links whose times differ by less than the cost of whole chunks are reported as equally slow.
constexpr double kAsLong = 0.98;

// The hosts as the solver takes them, with B as the unit of bandwidth.
std::vector<PlacementHost> links_of(const JobHosts& hosts) {
  std::vector<PlacementHost> links;
  for (const JobHosts::Host& host : hosts.hosts) {
    links.push_back(host.link);
    links.back().bandwidth /= hosts.unit_bandwidth;
  }
  return links;
}

}  // namespace

const char* name_of(PlacementBasis basis) {
  switch (basis) {
    case PlacementBasis::kLinks:
      return "links";
    case PlacementBasis::kOneHost:
      return "one host";
    case PlacementBasis::kUnknownHosts:
      return "hosts not known";
  }
  return "";
}

JobHosts hosts_of_job(std::span<const PlacedDaemon> servers, std::span<const PlacedDaemon> workers,
                      std::vector<std::uint16_t> numbers) {
  JobHosts result;
  result.numbers = std::move(numbers);
  while (result.numbers.size() < servers.size()) {
    result.numbers.push_back(static_cast<std::uint16_t>(result.numbers.size()));
  }
  result.workers = static_cast<std::uint32_t>(workers.size());
  for (const PlacedDaemon& server : servers) result.server_bandwidth.push_back(server.bandwidth);
  const auto unknown = [](const PlacedDaemon& daemon) { return daemon.host.empty(); };
  if (std::ranges::any_of(servers, unknown) || std::ranges::any_of(workers, unknown)) return result;

  std::map<std::string, std::size_t> index;
  std::map<std::size_t, double> least;
  const auto host_of = [&](const PlacedDaemon& daemon) {
    const auto [at, is_new] = index.emplace(daemon.host, result.hosts.size());
    if (is_new) {
      result.hosts.push_back({daemon.host, {}, {.bandwidth = daemon.bandwidth}});
      least[at->second] = daemon.bandwidth;
    }
    JobHosts::Host& host = result.hosts[at->second];
    host.daemons.push_back(daemon.name);
    host.link.bandwidth = std::max(host.link.bandwidth, daemon.bandwidth);
    least[at->second] = std::min(least[at->second], daemon.bandwidth);
    return at->second;
  };
  for (const PlacedDaemon& server : servers) {
    result.of_server.push_back(host_of(server));
    ++result.hosts[result.of_server.back()].link.servers;
  }
  for (const PlacedDaemon& worker : workers) ++result.hosts[host_of(worker)].link.workers;

  bool first = true;
  for (const JobHosts::Host& host : result.hosts) {
    if (host.link.workers == 0) continue;
    result.unit_bandwidth = first ? host.link.bandwidth : std::min(result.unit_bandwidth, host.link.bandwidth);
    first = false;
  }
  result.basis = result.hosts.size() > 1 ? PlacementBasis::kLinks : PlacementBasis::kOneHost;
  if (result.basis == PlacementBasis::kOneHost) return result;  // there bandwidths are weights, and may differ
  for (std::size_t h = 0; h < result.hosts.size(); ++h) {
    const JobHosts::Host& host = result.hosts[h];
    if (least[h] == host.link.bandwidth) continue;
    result.contradictions.push_back(listed(host.daemons, " and ") + " share the link of host '" + host.identity +
                                    "' but state bandwidths from " + printed("%g", least[h]) + " to " +
                                    printed("%g", host.link.bandwidth) +
                                    "; the largest counts: set the same bandwidth in their configuration files");
  }
  return result;
}

Result<std::vector<double>> server_weights(const JobHosts& hosts, const WireRatio& ratio) {
  if (hosts.basis != PlacementBasis::kLinks) return hosts.server_bandwidth;
  const Result<Placement> placement = optimal_placement(links_of(hosts), ratio);
  if (!placement) return tl::unexpected(placement.error());
  std::vector<double> weights;
  for (const std::size_t host : hosts.of_server) {
    weights.push_back(placement->shares[host] / hosts.hosts[host].link.servers);
  }
  return weights;
}

Result<Layout> place_chunks(const std::vector<TensorSpec>& tensors, std::uint64_t chunk_elements,
                            std::vector<ShardSlots> slots, const JobHosts& hosts) {
  // The largest chunks, only to learn how many elements there are: small ones could exceed the limit on their number.
  const Result<Layout> probe = Layout::make(tensors, kMaxChunkBytes / sizeof(float), slots);
  if (!probe) return tl::unexpected(probe.error());
  const std::uint64_t flat = probe->flat_elements();
  const bool one_machine = hosts.basis == PlacementBasis::kOneHost;
  // Drop shares too small for half a chunk, the smallest first: the freed part may be enough for the others, and chunks
  // may become larger without them.
  while (true) {
    std::vector<ShardSlots> owning;
    std::ranges::copy_if(slots, std::back_inserter(owning), [](const ShardSlots& s) { return s.weight > 0.0; });
    const std::uint64_t size =
        chunk_elements != 0 ? chunk_elements
                            : default_chunk_elements(flat, owning, hosts.workers, one_machine,
                                                     hosts.on_devices ? kLargestDeviceChunkBytes : kLargestChunkBytes);
    double total = 0.0;
    for (const ShardSlots& s : owning) total += s.weight;
    auto smallest = slots.end();
    for (auto slot = slots.begin(); slot != slots.end(); ++slot) {
      if (slot->weight > 0.0 && (smallest == slots.end() || slot->weight <= smallest->weight)) smallest = slot;
    }
    const double chunks = static_cast<double>(flat) / static_cast<double>(size);
    if (owning.size() == 1 || chunks * smallest->weight >= 0.5 * total) return Layout::make(tensors, size, slots);
    smallest->weight = 0.0;
  }
}

Result<Layout> deal_chunks(const std::vector<TensorSpec>& tensors, std::uint64_t chunk_elements,
                           std::vector<ShardSlots> slots, const JobHosts& hosts, const WireRatio& ratio) {
  const Result<std::vector<double>> weights = server_weights(hosts, ratio);
  if (!weights) return tl::unexpected(weights.error());
  for (std::size_t s = 0; s < slots.size(); ++s) slots[s].weight = (*weights)[s];
  const Result<Layout> placed = place_chunks(tensors, chunk_elements, std::move(slots), hosts);
  if (!placed) return placed;
  std::vector<ChunkOwner> owners = placed->owners();
  for (ChunkOwner& owner : owners) owner.shard = ShardIndex(hosts.numbers[owner.shard.value]);
  return Layout::with_owners(tensors, placed->chunk_elements(), std::move(owners));
}

bool JobPlacement::colocated(std::size_t server) const {
  TRIB_ASSERT(server < hosts.of_server.size());
  return hosts.hosts[hosts.of_server[server]].link.workers > 0;
}

std::string JobPlacement::bottleneck() const {
  if (hosts.basis != PlacementBasis::kLinks) return "";
  const JobHosts::Host& host = hosts.hosts[predicted.bottleneck_host];
  const bool out = predicted.bottleneck_direction == LinkDirection::kOut;
  std::vector<std::string> traffic;
  if (host.link.workers > 0) traffic.push_back(out ? "pushes of its workers" : "answers to its workers");
  if (predicted.shares[predicted.bottleneck_host] > 0.0) {
    traffic.push_back(out ? "answers of its servers" : "pushes to its servers");
  }
  std::size_t as_slow = 0;
  for (std::size_t h = 0; h < hosts.hosts.size(); ++h) {
    const double busiest = std::max(predicted.loads[h].out, predicted.loads[h].in);
    const double time = busiest * hosts.unit_bandwidth / hosts.hosts[h].link.bandwidth;
    if (h != predicted.bottleneck_host && time >= kAsLong * predicted.time_factor) ++as_slow;
  }
  return "the link of the host of " + listed(host.daemons, " and ") + ", " + (out ? "outwards" : "inwards") + ": " +
         listed(traffic, " and ") +
         (as_slow == 0   ? ""
          : as_slow == 1 ? " (1 other host's link takes as long)"
                         : " (" + std::to_string(as_slow) + " other hosts' links take as long)");
}

std::string JobPlacement::in_words() const {
  std::vector<std::string> shares;
  for (std::size_t s = 0; s < servers.size(); ++s) {
    std::string text =
        "server " + std::to_string(servers[s].number) + " " + printed("%.1f %%", 100.0 * servers[s].share);
    if (hosts.basis == PlacementBasis::kLinks) text += colocated(s) ? " (colocated)" : " (dedicated)";
    shares.push_back(std::move(text));
  }
  std::string out = listed(shares, " and ");
  if (hosts.basis == PlacementBasis::kOneHost) return out + "; all on one host, no link is in between";
  if (hosts.basis == PlacementBasis::kUnknownHosts) return out + "; by bandwidth, because not all hosts are known";
  return out + "; predicted exchange " + printed("%.3f", predicted.time_factor) + " M/B (ring " +
         printed("%.3f", ring_factor) + " M/B), bottleneck " + bottleneck();
}

Result<JobPlacement> describe_placement(JobHosts hosts, const WireRatio& ratio, const Layout& layout) {
  JobPlacement result;
  result.hosts = std::move(hosts);
  result.ratio = ratio;
  result.servers.resize(result.hosts.server_bandwidth.size());
  const std::vector<std::uint16_t>& numbers = result.hosts.numbers;
  for (std::size_t s = 0; s < numbers.size(); ++s) result.servers[s].number = numbers[s];
  for (std::uint32_t c = 0; c < layout.chunks(); ++c) {
    const auto place = std::ranges::lower_bound(numbers, layout.owner(ChunkIndex(c)).shard.value);
    TRIB_ASSERT(place != numbers.end() && *place == layout.owner(ChunkIndex(c)).shard.value);
    JobPlacement::Server& server = result.servers[static_cast<std::size_t>(place - numbers.begin())];
    ++server.chunks;
    server.bytes += layout.chunk(ChunkIndex(c)).elements * sizeof(float);
  }
  const double all = static_cast<double>(layout.flat_elements() * sizeof(float));
  for (JobPlacement::Server& server : result.servers) server.share = static_cast<double>(server.bytes) / all;
  if (result.hosts.basis != PlacementBasis::kLinks) return result;

  const std::vector<PlacementHost> links = links_of(result.hosts);
  std::vector<double> shares(links.size(), 0.0);
  for (std::size_t s = 0; s < result.servers.size(); ++s) shares[result.hosts.of_server[s]] += result.servers[s].share;
  const Result<Placement> optimum = optimal_placement(links, ratio);
  if (!optimum) return tl::unexpected(optimum.error());
  result.predicted = placement_of_shares(links, ratio, std::move(shares));
  result.optimal_factor = optimum->time_factor;
  const double n = result.hosts.workers;
  result.ring_factor = 2.0 * (n - 1.0) / n;
  return result;
}

}  // namespace tributary
