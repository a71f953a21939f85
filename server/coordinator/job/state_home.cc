#include "server/coordinator/job/state_home.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

namespace tributary {
namespace {

// A resumed job whose exchange takes this many times as long as it could is told of: beyond what whole chunks cost.
constexpr double kWorthSaying = 1.1;

std::string in_words(const JobConfig& config) {
  return "job '" + config.name + "'";
}

class OnServers final : public StateHome {
 public:
  explicit OnServers(CoordinatorContext& context) : context_(context) {}

  std::uint16_t servers() const override { return context_.options.servers; }
  std::set<std::uint16_t> shards(const JobRecord& record) const override { return shards_of(record); }
  Result<Stored> newest(const JobConfig& config, const JobRecord& record, const JobMembers& members) const override;
  Result<DealtChunks> lay_out(const JobConfig& config, const JobRecord& record, const JobMembers& members,
                              const ViewStart& start) const override;
  std::string outlook(const JobRecord& record) const override {
    return record.initialised ? "its last snapshot is that of round " + std::to_string(record.committed.value)
                              : "it has no snapshot yet";
  }
  std::string not_saved(const std::string& why, const JobConfig& config, const JobRecord& record) const override {
    return why + "; " +
           (record.initialised ? "the newest snapshot is that of round " + std::to_string(record.committed.value)
                               : "there is no snapshot, so the job begins anew") +
           (has_rounds(config) && !context_.draining
                ? "; while the servers run, the state stays in their memory for 10 minutes: mend the cause and start "
                  "the job again with the same command"
                : "");
  }

 private:
  JobHosts hosts(const JobMembers& members, const std::set<std::uint16_t>& on) const;

  CoordinatorContext& context_;
};

// The newest snapshot that every shard of the job, or another server for it, has complete: at least the committed one,
// unless stores were lost. It can be newer: all shards finished it, and the coordinator died before it could commit.
Result<StateHome::Stored> OnServers::newest(const JobConfig& config, const JobRecord& record, const JobMembers&) const {
  std::optional<std::set<Round>> common;
  std::string lacks;  // the committed one
  for (const std::uint16_t shard : shards(record)) {
    const std::set<Round> rounds = context_.peers.snapshots_or_copies(shard, record.job);
    if (record.initialised && shard >= servers()) {
      return fail(
          ErrorCode::kTopology,
          in_words(config) + " has state on server " + std::to_string(shard) + ", but the cluster has " +
              std::to_string(servers()) +
              " servers; start as many servers as before, then let the job go to fewer of them (tributary job deal), "
              "or bring it into the new cluster as a checkpoint (tributary checkpoint save). To start over: "
              "another job.name, or with tributary up --fresh or another --base-dir");
    }
    if (record.initialised && !rounds.contains(record.committed) && lacks.empty()) {
      lacks = "server " + std::to_string(shard) + "'s store lacks the snapshot of round " +
              std::to_string(record.committed.value) + " of " + in_words(config);
    }
    if (!common) {
      common = rounds;
    } else {
      std::erase_if(*common, [&](Round round) { return !rounds.contains(round); });
    }
  }
  const bool any = common && !common->empty();
  if (!lacks.empty() && (!any || !record.provisional)) {
    if (!context_.peers.all_servers(context_.given_up)) {
      return fail(ErrorCode::kUnavailable, lacks + ", and a server that is away may have a copy of it; start all " +
                                               std::to_string(servers()) + " servers, and attach again in a moment");
    }
    return fail(ErrorCode::kStore, lacks +
                                       "; start it with the store it had, restore a checkpoint (tributary checkpoint "
                                       "restore), or start over under another job name");
  }
  if (!any) return Stored{record.initialised, record.committed};
  const Round newest = *common->rbegin();
  if (lacks.empty()) return Stored{true, std::max(record.committed, newest)};
  // A view began with a round that had no copies yet, and the disk was lost before it had. The one before is still there.
  context_.output.log(in_words(config) + " goes on from round " + std::to_string(newest.value) + ": " + lacks,
                      LogLevel::kWarning);
  return Stored{true, newest};
}

JobHosts OnServers::hosts(const JobMembers& members, const std::set<std::uint16_t>& on) const {
  std::vector<PlacedDaemon> servers, workers;
  for (const std::uint16_t index : on) servers.push_back(context_.peers.placed(index));
  for (const auto& [node, member] : members) {
    const WorkerHello& hello = context_.peers.workers().at(member.worker).hello;
    workers.push_back({"worker " + hello.name, hello.host, hello.bandwidth});
  }
  JobHosts hosts = hosts_of_job(servers, workers, {on.begin(), on.end()});
  hosts.on_devices = std::ranges::any_of(members, [](const auto& entry) { return entry.second.join.on_devices; });
  return hosts;
}

// A fresh job gets its chunks and owners, by what the hosts' links can carry. One that has state, in snapshots or in
// its servers' memory, keeps chunks and shards (that is where the state lies) and spreads each shard's chunks over the
// lanes that the server has today.
Result<DealtChunks> OnServers::lay_out(const JobConfig& config, const JobRecord& record, const JobMembers& members,
                                       const ViewStart& start) const {
  // REQUIRES: servers that have chunks are there.
  const std::set<std::uint16_t> on = context_.peers.those_that_stay();
  JobHosts hosts = this->hosts(members, on);
  const std::string job = in_words(config);
  for (const std::string& contradiction : hosts.contradictions) context_.output.log(job + ": " + contradiction);
  const WireRatio ratio = wire_ratio(config.push, config.pull);
  std::vector<ShardSlots> slots;
  for (const std::uint16_t index : on) slots.push_back(context_.peers.slots(index));
  DealtChunks chunks{record.chunk_elements, record.owners, {}};
  if (start.anew()) {
    const Result<Layout> fresh =
        deal_chunks(record.tensors, config.chunk_bytes / sizeof(float), std::move(slots), hosts, ratio);
    if (!fresh) return tl::unexpected(fresh.error());
    chunks = {fresh->chunk_elements(), fresh->owners(), {}};
  } else {
    std::map<ShardIndex, std::uint32_t> next;
    for (ChunkOwner& owner : chunks.owners) {
      const std::uint16_t lanes = context_.peers.slots(owner.shard.value).lanes;
      owner.lane = LaneIndex(static_cast<std::uint16_t>(next[owner.shard]++ % lanes));
    }
  }
  const Result<Layout> layout = Layout::with_owners(record.tensors, chunks.elements, chunks.owners);
  if (!layout) return tl::unexpected(layout.error());
  Result<JobPlacement> placement = describe_placement(std::move(hosts), ratio, *layout);
  if (!placement) return tl::unexpected(placement.error());
  context_.output.log(job + " is placed: " + placement->in_words());
  if (start.resume && placement->predicted.time_factor > kWorthSaying * placement->optimal_factor) {
    context_.output.log(job + " keeps the shards that it was dealt for other hosts or bandwidths; dealt anew, an " +
                        "exchange would take " + std::to_string(placement->optimal_factor) + " M/B");
  }
  chunks.placement = std::move(*placement);
  return chunks;
}

// It goes on from the newest checkpoint that any of its nodes says it has (JoinJob::checkpoint_round).
class OnNodes final : public StateHome {
 public:
  explicit OnNodes(CoordinatorContext& context) : context_(context) {}

  std::uint16_t servers() const override { return 0; }
  std::set<std::uint16_t> shards(const JobRecord&) const override { return {}; }
  Result<Stored> newest(const JobConfig& config, const JobRecord& record, const JobMembers& members) const override;
  Result<DealtChunks> lay_out(const JobConfig& config, const JobRecord& record, const JobMembers&,
                              const ViewStart&) const override {
    const Result<Layout> layout = bucket_layout(record.tensors, config.chunk_bytes);
    if (!layout) return tl::unexpected(layout.error());
    return DealtChunks{layout->chunk_elements(), layout->owners(), {}};
  }
  std::string outlook(const JobRecord&) const override {
    return "it can go on from the newest checkpoint that one of its nodes has";
  }
  std::string not_saved(const std::string& why, const JobConfig&, const JobRecord&) const override { return why; }

 private:
  CoordinatorContext& context_;
};

// The first nodes of the view before have the state, if anybody has. But they may be other machines than before, or have
// lost their stores; and this coordinator knows how far the job was when it stopped.
Result<StateHome::Stored> OnNodes::newest(const JobConfig& config, const JobRecord& record,
                                          const JobMembers& members) const {
  const auto newest =
      std::ranges::max_element(members, {}, [](const auto& entry) { return entry.second.join.checkpoint_round; });
  const Round checkpoint = newest->second.join.checkpoint_round;
  const Round known = record.committed;
  for (const auto& [node, member] : members) {
    const std::string& flaw = member.join.checkpoint_flaw;
    if (flaw.empty()) continue;
    const std::string said = "node " + std::to_string(node) + " (worker " + context_.peers.name_of(member.worker) +
                             ") has no checkpoint that can be read: " + flaw;
    if (checkpoint.value == 0) return fail(ErrorCode::kStore, in_words(config) + ": " + said);
    context_.output.log(in_words(config) + ": " + said);
  }
  if (checkpoint.value == 0 && known.value != 0) {
    return fail(ErrorCode::kStore,
                in_words(config) + " was at round " + std::to_string(known.value) +
                    ", and neither node 0 nor another one has a checkpoint of it (are [store] path of their workers "
                    "right, and are they the machines that were nodes 0 and 1?); bring its folder in allreduce/ back, "
                    "or begin anew: under another job.name, or after " +
                    (context_.options.servers == 0 ? std::string("a restart of the worker that serves the coordinator")
                                                   : "`tributary job remove " + config.name + "`"));
  }
  if (newest != members.begin() && checkpoint.value != 0) {
    const Round first = members.begin()->second.join.checkpoint_round;
    context_.output.log(in_words(config) + " goes on from round " + std::to_string(checkpoint.value) + ", which node " +
                        std::to_string(newest->first) + " (worker " + context_.peers.name_of(newest->second.worker) +
                        ") has; node " + std::to_string(members.begin()->first) + " has " +
                        (first.value == 0 ? "no checkpoint" : "only round " + std::to_string(first.value)));
  }
  // A stop that was begun, and whose checkpoint was never written: those rounds come again.
  if (known > checkpoint) {
    context_.output.log(in_words(config) + " was at round " + std::to_string(known.value) +
                        ", of which no checkpoint was written; it goes on from round " +
                        std::to_string(checkpoint.value));
  }
  return Stored{checkpoint.value != 0, checkpoint};
}

}  // namespace

Result<Layout> deal_to(const std::set<std::uint16_t>& on, const Peers& peers, const JobConfig& config,
                       const std::vector<TensorSpec>& tensors, std::uint64_t chunk_elements) {
  std::vector<PlacedDaemon> servers, workers;
  std::vector<ShardSlots> slots;
  for (const auto& [incarnation, worker] : peers.workers()) {
    workers.push_back({"worker " + worker.hello.name, worker.hello.host, worker.hello.bandwidth});
  }
  for (const std::uint16_t index : on) {
    servers.push_back(peers.placed(index));
    if (workers.empty()) servers.back().host.clear();
    slots.push_back(peers.slots(index));
  }
  return deal_chunks(tensors, chunk_elements, std::move(slots), hosts_of_job(servers, workers, {on.begin(), on.end()}),
                     wire_ratio(config.push, config.pull));
}

std::unique_ptr<StateHome> make_state_home(const JobConfig& config, CoordinatorContext& context) {
  if (on_servers(config)) return std::make_unique<OnServers>(context);
  return std::make_unique<OnNodes>(context);
}

}  // namespace tributary
