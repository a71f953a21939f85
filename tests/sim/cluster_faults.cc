// Faults of a simulated cluster.
#include <algorithm>
#include <utility>

#include "tests/sim/cluster_world.h"

namespace tributary::sim {
namespace {

constexpr std::uint64_t kFaultLookNs = 50 * kMs;  // until there is something that can go bad

}  // namespace

std::uint32_t ClusterWorld::processes() const {
  return scenario.servers + scenario.nodes + scenario.nodes * scenario.ranks;
}

Process* ClusterWorld::process(std::uint32_t who) {
  if (who < scenario.servers) return servers_[who].process.get();
  who -= scenario.servers;
  if (who < scenario.nodes) return nodes_[who].worker.get();
  who -= scenario.nodes;
  return nodes_[who / scenario.ranks].trainers[who % scenario.ranks].get();
}

void ClusterWorld::start_server(std::uint32_t index) {
  say("server " + std::to_string(index), "starts");
  servers_[index].process = std::make_unique<ServerSim>(*this, static_cast<std::uint16_t>(index), disks_[index]);
}

void ClusterWorld::kill_server(std::uint32_t index, std::uint64_t for_ns) {
  if (index >= servers_now_) return;
  if (servers_[index].process) judge.server_died();
  end_server(index, for_ns);
}

void ClusterWorld::end_server(std::uint32_t index, std::uint64_t for_ns) {
  Server& server = servers_[index];
  values_judge.daemon_died();
  server.process.reset();
  clock.after(for_ns, [this, index, plan = ++server.starts] {
    if (servers_[index].starts == plan) start_server(index);
  });
}

void ClusterWorld::kill(std::uint32_t who, std::uint64_t for_ns) {
  ++outcome_.kills;
  if (who < scenario.servers) return kill_server(who, for_ns);
  who -= scenario.servers;
  const bool is_worker = who < scenario.nodes;
  const std::uint32_t index = is_worker ? who : (who - scenario.nodes) / scenario.ranks;
  const std::uint32_t rank = is_worker ? 0 : (who - scenario.nodes) % scenario.ranks;
  Node& node = nodes_[index];
  if (!node.here) return;
  judge.node_disturbed();
  if (is_worker) {
    node.worker.reset();
    values_judge.daemon_died();
  } else {
    node.trainers[rank].reset();
    if (operator_.keeps_trainers()) return;
  }
  const std::size_t slot = is_worker ? 0 : 1 + rank;
  clock.after(for_ns, [this, index, rank, is_worker, slot, plan = ++node.starts[slot]] {
    Node& at = nodes_[index];
    if (at.starts[slot] != plan) return;
    if (is_worker) {
      at.worker = std::make_unique<WorkerSim>(*this, index);
    } else {
      at.trainers[rank] = std::make_unique<TrainerSim>(*this, index, rank);
    }
  });
}

void ClusterWorld::strike(const ClusterScenario::Fault& fault) {
  using Kind = ClusterScenario::Fault::Kind;
  const bool spoils = fault.kind == Kind::kDamage || fault.kind == Kind::kUnrecord;
  const bool of_node = fault.kind == Kind::kStore && fault.who.front() >= scenario.servers;
  if (spoils && scenario.spoils_uncommitted) {
    waiting_ = fault;
    return;
  }
  if ((spoils && disks_[fault.who.front()].complete_snapshots().empty()) ||
      (of_node && replica_disk(fault.who.front() - scenario.servers).empty())) {
    return clock.after(kFaultLookNs, [this, fault] { strike(fault); });
  }
  look_after_rings();  // one may be as young as the last look is old
  std::string who;
  for (const std::uint32_t process : fault.who) who += " " + std::to_string(process);
  say("FAULT", fault.name() + who);
  struck_ns_ = clock.now_ns();
  switch (fault.kind) {
    case Kind::kKill:
      for (const std::uint32_t process : fault.who) kill(process, fault.lasts_ns);
      break;
    case Kind::kDamage:
    case Kind::kUnrecord:
      spoil(fault, false);
      break;
    case Kind::kPower:
    case Kind::kStore:
      for (const std::uint32_t index : fault.who) {
        kill(index, fault.lasts_ns);
        if (index >= scenario.servers) {  // node 0's, of an all-reduce job
          replicas_judge.disk_lost();
          replica_disk(index - scenario.servers).lose();
          continue;
        }
        disks_[index].fail_power(random);
        if (fault.kind != Kind::kStore) continue;
        judge.store_lost(static_cast<std::uint16_t>(index));
        disks_[index] = {};
      }
      break;
    case Kind::kMachine: {
      const std::uint32_t node = fault.who.front() - scenario.servers;
      kill(fault.who.front(), fault.lasts_ns);
      for (std::uint32_t rank = 0; rank < scenario.ranks; ++rank) {
        kill(scenario.servers + scenario.nodes + node * scenario.ranks + rank, fault.lasts_ns);
      }
      break;
    }
    case Kind::kBreak:
      for (std::size_t i = 0; i < fault.who.size(); ++i) wires.break_some();
      if (fault.lasts_ns % 2 == 0) rings.break_newest();  // in half of them
      break;
    case Kind::kCut: {
      std::set<std::uint32_t> machines;
      for (const std::uint32_t who_is : fault.who) {
        machines.insert(who_is < scenario.servers ? machine_of_server(who_is)
                                                  : machine_of_node(who_is - scenario.servers));
      }
      wires.cut_off(std::move(machines), clock.now_ns() + fault.lasts_ns);
      break;
    }
    case Kind::kHold:
      for (const std::uint32_t who_is : fault.who) {
        if (Process* held = process(who_is)) held->hold_until(clock.now_ns() + fault.lasts_ns);
      }
      break;
    case Kind::kDiskFull:
      for (const std::uint32_t index : fault.who) {
        bool& full = index < scenario.servers ? disks_[index].full : replica_disk(index - scenario.servers).full;
        full = true;
        clock.after(fault.lasts_ns, [&full] { full = false; });
      }
      break;
    case Kind::kJoin:
      join(fault.who.front() - scenario.servers);
      break;
    case Kind::kLeave:
      leave(fault.who.front() - scenario.servers, fault.lasts_ns);
      break;
    case Kind::kGone:
      gone(fault.who.front() - scenario.servers);
      break;
    case Kind::kSave:
    case Kind::kSaveCommitted:
      operator_.save(fault.kind == Kind::kSaveCommitted);
      break;
    case Kind::kRestore:
      operator_.restore();
      break;
    case Kind::kPermute:
      permute_ranks(fault.lasts_ns);
      break;
    case Kind::kHalfOpen:
      wires.half_open_some(fault.lasts_ns);
      break;
    case Kind::kDrain:
      for (const std::uint32_t who_is : fault.who) {
        if (who_is < scenario.servers) drain_server(who_is, fault.lasts_ns);
        if (who_is >= scenario.servers) leave(who_is - scenario.servers, fault.lasts_ns);
      }
      break;
  }
  look_after_rings();
}

bool ClusterWorld::permutes() const {
  return std::ranges::any_of(scenario.faults,
                             [](const auto& fault) { return fault.kind == ClusterScenario::Fault::Kind::kPermute; });
}

// Machines keep state of the ranks that they had, which is of no use for others.
void ClusterWorld::permute_ranks(std::uint64_t for_ns) {
  if (operator_.keeps_trainers()) return;
  const std::vector<std::uint32_t> before = places_;
  for (std::size_t i = places_.size(); i > 1; --i) std::swap(places_[i - 1], places_[random.below(i)]);
  for (std::uint32_t node = 0; node < scenario.nodes; ++node) {
    if (places_[node] != before[node]) judge.ring_lost();
    for (std::uint32_t rank = 0; rank < scenario.ranks; ++rank) {
      kill(scenario.servers + scenario.nodes + node * scenario.ranks + rank, for_ns);
    }
  }
}

// Spoils any complete snapshot, or, if `uncommitted`, the newest, which the coordinator does not know to be complete.
void ClusterWorld::spoil(const ClusterScenario::Fault& fault, bool uncommitted) {
  for (const std::uint32_t index : fault.who) kill(index, fault.lasts_ns);
  const auto shard = static_cast<std::uint16_t>(fault.who.front());
  const std::vector<Disk::Snapshot*> all = disks_[shard].complete_snapshots();
  Disk::Snapshot& snapshot = *(uncommitted ? all.back() : all[random.below(all.size())]);
  const bool damages = fault.kind == ClusterScenario::Fault::Kind::kDamage;
  damages ? snapshot.damage_chunk(random) : snapshot.lose_record();
  const Round round = snapshot.info.round;
  damages ? judge.chunk_damaged(shard, round) : judge.record_lost(shard, round, !uncommitted);
  say("FAULT", std::string(damages ? "a chunk" : "the record") + " of round " + std::to_string(round.value));
}

// The coordinator is about to learn that a snapshot is durable on the last server that has a part of it, and so
// everywhere: the coordinator dies, and on a disk that snapshot goes bad.
bool ClusterWorld::dies_before(const SnapshotDone& done) {
  if (!waiting_ || !done.ok) return false;
  const std::vector<CoordinatorCore::JobStatus> jobs = servers_.front().process->coordinator()->jobs();
  if (jobs.empty()) return false;
  const JobRecord& record = *servers_.front().process->coordinator()->record(jobs.front().name);
  if (!record.initialised || record.committed >= done.round) return false;  // there must be an older one
  std::set<std::uint32_t> shards;
  for (const ChunkOwner& owner : record.owners) shards.insert(owner.shard.value);
  for (const std::uint32_t shard : shards) {
    const std::vector<Disk::Snapshot*> there = disks_[shard].complete_snapshots();
    if (there.empty() || there.back()->info.job != done.job || there.back()->info.round != done.round) return false;
  }
  ClusterScenario::Fault fault = *std::exchange(waiting_, std::nullopt);
  fault.who = {shards.contains(fault.who.front()) ? fault.who.front() : *shards.begin()};
  if (fault.who.front() != 0) fault.who.push_back(0);
  clock.after(0, [this, fault] {
    look_after_rings();
    struck_ns_ = clock.now_ns();
    spoil(fault, true);
  });
  return true;
}

// ---- What is done about it ----

void ClusterWorld::stop_trainers() {
  for (Node& node : nodes_) {
    for (std::uint32_t rank = 0; rank < scenario.ranks; ++rank) {
      node.trainers[rank].reset();
      ++node.starts[1 + rank];
    }
  }
  look_after_rings();
}

void ClusterWorld::start_trainers() {
  for (std::uint32_t index = 0; index < scenario.nodes; ++index) {
    Node& node = nodes_[index];
    for (std::uint32_t rank = 0; rank < scenario.ranks && node.here; ++rank) {
      node.trainers[rank] = std::make_unique<TrainerSim>(*this, index, rank);
    }
  }
  faults_over_ns_ = std::max(faults_over_ns_, clock.now_ns());
  deliveries_then_.reset();
}

// By as many as there are to be from now on, with empty stores.
void ClusterWorld::replace_servers() {
  for (std::uint32_t index = 0; index < servers_now_; ++index) {
    ++servers_[index].starts;
    judge.server_died();
    values_judge.daemon_died();
    servers_[index].process.reset();
    disks_[index] = {};
  }
  judge.stores_replaced();
  servers_now_ = static_cast<std::uint16_t>(scenario.later_servers);
  for (std::uint32_t index = 0; index < servers_now_; ++index) start_server(index);
}

// A ring lives as long as a process that has it.
void ClusterWorld::look_after_rings() {
  for (Node& node : nodes_) {
    const bool has = (node.worker && node.worker->has_ring()) ||
                     std::ranges::any_of(node.trainers, [](const auto& t) { return t && t->has_ring(); });
    if (node.had_ring && !has) judge.ring_lost();
    node.had_ring = has;
  }
}

}  // namespace tributary::sim
