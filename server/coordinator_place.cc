// Where the chunks of a view that opens are: by what the links of its hosts can carry.
#include <string>
#include <utility>
#include <vector>

#include "server/coordinator_core.h"

namespace tributary {
namespace {

// A resumed job whose exchange takes this many times as long as it could is told of: beyond what whole chunks cost.
constexpr double kWorthSaying = 1.1;

}  // namespace

JobHosts CoordinatorCore::hosts_of(const Job& job) const {
  std::vector<PlacedDaemon> servers, workers;
  for (const auto& [index, server] : servers_) {
    servers.push_back({"server " + std::to_string(index), server.hello.host, server.hello.bandwidth});
  }
  for (const auto& [node, member] : job.members) {
    const WorkerHello& hello = workers_.at(member.worker).hello;
    workers.push_back({"worker " + hello.name, hello.host, hello.bandwidth});
  }
  JobHosts hosts = hosts_of_job(servers, workers);
  hosts.on_devices = std::ranges::any_of(job.members, [](const auto& entry) { return entry.second.join.on_devices; });
  return hosts;
}

// A fresh job gets its chunks and owners, by what the hosts' links can carry. One that has state, in snapshots or in
// its servers' memory, keeps chunks and shards (that is where the state lies) and spreads each shard's chunks over the
// lanes that the server has today.
Status CoordinatorCore::lay_out(Job& job) {
  if (!job.on_servers()) {
    const Result<Layout> layout = bucket_layout(job.record.tensors, job.config.chunk_bytes);
    if (!layout) return tl::unexpected(layout.error());
    job.record.chunk_elements = layout->chunk_elements();
    job.record.owners = layout->owners();
    return {};
  }
  JobHosts hosts = hosts_of(job);
  for (const std::string& contradiction : hosts.contradictions) output_.log(in_words(job) + ": " + contradiction);
  const WireRatio ratio = wire_ratio(job.config.push, job.config.pull);
  std::vector<ShardSlots> slots;
  for (const auto& [index, server] : servers_) {
    slots.push_back({static_cast<std::uint16_t>(server.hello.lane_endpoints.size())});
  }
  JobRecord& record = job.record;
  if (!job.resume && job.kept_open.empty()) {
    const Result<std::vector<double>> weights = server_weights(hosts, ratio);
    if (!weights) return tl::unexpected(weights.error());
    for (std::size_t s = 0; s < slots.size(); ++s) slots[s].weight = (*weights)[s];
    const Result<Layout> fresh = place_chunks(record.tensors, job.config.chunk_bytes / sizeof(float), slots, hosts);
    if (!fresh) return tl::unexpected(fresh.error());
    record.chunk_elements = fresh->chunk_elements();
    record.owners = fresh->owners();
  } else {
    std::vector<std::uint32_t> next(slots.size(), 0);
    for (ChunkOwner& owner : record.owners) {
      owner.lane = LaneIndex(static_cast<std::uint16_t>(next[owner.shard.value]++ % slots[owner.shard.value].lanes));
    }
  }
  const Result<Layout> layout = Layout::with_owners(record.tensors, record.chunk_elements, record.owners);
  if (!layout) return tl::unexpected(layout.error());
  Result<JobPlacement> placement = describe_placement(std::move(hosts), ratio, *layout);
  if (!placement) return tl::unexpected(placement.error());
  job.placement = std::move(*placement);
  output_.log(in_words(job) + " is placed: " + job.placement->in_words());
  if (job.resume && job.placement->predicted.time_factor > kWorthSaying * job.placement->optimal_factor) {
    output_.log(in_words(job) + " keeps the shards that it was dealt for other hosts or bandwidths; dealt anew, an " +
                "exchange would take " + std::to_string(job.placement->optimal_factor) + " M/B");
  }
  return {};
}

}  // namespace tributary
