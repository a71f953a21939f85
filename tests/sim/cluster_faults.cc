// Faults of a simulated cluster, and of its servers, which are stopped cleanly, too.
#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "tests/sim/cluster_world.h"

namespace tributary::sim {
namespace {

constexpr std::uint64_t kFaultLookNs = 50 * kMs;  // until there is something that can go bad
// Where nothing else is wrong every stop is done by then.
constexpr std::uint64_t kCalmStopNs = 100'000 * kMs;

}  // namespace

std::uint32_t ClusterWorld::processes() const {
  std::uint32_t all = scenario.servers;
  for (const auto& job : jobs_) all += job->processes();
  return all;
}

ClusterWorld::Member ClusterWorld::member(std::uint32_t who) const {
  who -= scenario.servers;
  auto job = jobs_.begin();
  while (who >= (*job)->processes()) who -= (*job++)->processes();
  return {job->get(), who};
}

Process* ClusterWorld::process(std::uint32_t who) {
  if (who < scenario.servers) return servers_[who].process.get();
  const Member at = member(who);
  return at.job->process(at.who);
}

StoreSim* ClusterWorld::readable_store(std::uint32_t machine, ShardIndex server) {
  if (server.value >= servers_now_ || wires.cut(machine, machine_of_server(server.value))) return nullptr;
  const auto& process = servers_[server.value].process;
  return process ? &process->store() : nullptr;
}

void ClusterWorld::start_server(std::uint32_t index) {
  say("server " + std::to_string(index), "starts");
  ++servers_started_;
  servers_[index].process =
      std::make_unique<ServerSim>(*this, static_cast<std::uint16_t>(index), disks_[index], servers_[index].moved);
}

void ClusterWorld::server_died() {
  for (const auto& job : jobs_) job->judge.server_died();
}

void ClusterWorld::kill_server(std::uint32_t index, std::uint64_t for_ns) {
  if (index >= servers_now_) return;
  if (servers_[index].process) server_died();
  end_server(index, for_ns);
}

void ClusterWorld::end_server(std::uint32_t index, std::uint64_t for_ns) {
  Server& server = servers_[index];
  for (const auto& job : jobs_) job->values_judge.daemon_died();
  server.process.reset();
  clock.after(for_ns, [this, index, plan = ++server.starts] {
    if (servers_[index].starts == plan) start_server(index);
  });
}

void ClusterWorld::kill(std::uint32_t who, std::uint64_t for_ns) {
  if (who >= scenario.servers) {
    const Member at = member(who);
    return at.job->kill(at.who, for_ns);
  }
  ++outcome_.kills;
  kill_server(who, for_ns);
}

void ClusterWorld::faults_until(std::uint64_t ns) {
  faults_over_ns_ = std::max(faults_over_ns_, ns);
  for (const auto& job : jobs_) job->faults_go_on();
}

void ClusterWorld::look_after_rings() {
  for (const auto& job : jobs_) job->look_after_rings();
}

void ClusterWorld::drain_server(std::uint32_t index, std::uint64_t for_ns) {
  ServerSim* server = index < servers_now_ ? servers_[index].process.get() : nullptr;
  if (!server) return;
  server->drain();
  watch_drain(index, server->incarnation(), clock.now_ns() + (scenario.calm ? kCalmStopNs : kStopTimeoutNs), for_ns);
}

void ClusterWorld::watch_drain(std::uint32_t index, std::uint64_t incarnation, std::uint64_t by_ns,
                               std::uint64_t for_ns) {
  clock.after(kMemberLookNs, [this, index, incarnation, by_ns, for_ns] {
    const ServerSim* server = servers_[index].process.get();
    if (!server || server->incarnation() != incarnation) return;  // it was killed meanwhile
    if (server->drained()) {
      std::string lost;
      std::set<std::string> of;
      for (const NotSaved& state : server->not_saved()) {
        lost += " round " + std::to_string(state.round.value);
        of.insert(state.job);
      }
      say("FAULT", server->name() + " ends cleanly" + (lost.empty() ? "" : ", not saved:" + lost));
      for (const auto& job : jobs_) {
        job->judge.server_ends(static_cast<std::uint16_t>(index), of.contains(job->scenario.job));
      }
      return clock.after(kLingerNs, [this, index, incarnation, for_ns] { server_ended(index, incarnation, for_ns); });
    }
    if (clock.now_ns() < by_ns) return watch_drain(index, incarnation, by_ns, for_ns);
    if (scenario.calm) broken(server->name() + " does not come to the end of its stop");
    kill_server(index, for_ns);
  });
}

void ClusterWorld::server_ended(std::uint32_t index, std::uint64_t incarnation, std::uint64_t for_ns) {
  const ServerSim* server = servers_[index].process.get();
  if (!server || server->incarnation() != incarnation) return;
  look_after_rings();
  struck_ns_ = clock.now_ns();
  for (const auto& job : jobs_) job->judge.server_ended();
  end_server(index, for_ns);
  faults_until(clock.now_ns() + for_ns);
}

// Lets those jobs know that the fault befalls. (Without a process it is the first one's.)
void ClusterWorld::let_know(const ClusterScenario::Fault& fault) {
  using Kind = ClusterScenario::Fault::Kind;
  if (fault.kind == Kind::kSave || fault.kind == Kind::kSaveCommitted) return;  // jobs go on
  const bool of_all = fault.kind == Kind::kBreak || fault.kind == Kind::kHalfOpen || fault.kind == Kind::kDeal ||
                      std::ranges::any_of(fault.who, [&](std::uint32_t who) { return who < scenario.servers; });
  if (fault.who.empty() && !of_all) jobs_.front()->befallen();
  for (const auto& job : jobs_) {
    const auto is_its = [&](std::uint32_t who) { return member(who).job == job.get(); };
    if (of_all || std::ranges::any_of(fault.who, is_its)) job->befallen();
  }
}

void ClusterWorld::strike(const ClusterScenario::Fault& fault) {
  using Kind = ClusterScenario::Fault::Kind;
  const bool spoils = fault.kind == Kind::kDamage || fault.kind == Kind::kUnrecord;
  const bool of_node = !fault.who.empty() && fault.who.front() >= scenario.servers;
  const Member node = of_node ? member(fault.who.front()) : Member{jobs_.front().get(), 0};
  if (spoils && scenario.spoils_uncommitted) {
    waiting_ = fault;
    return;
  }
  if ((spoils && disks_[fault.who.front()].complete_snapshots(fault.who.front()).empty()) ||
      (of_node && fault.kind == Kind::kStore && node.job->replica_disk(node.who).empty())) {
    return clock.after(kFaultLookNs, [this, fault] { strike(fault); });
  }
  let_know(fault);
  look_after_rings();  // one may be as young as the last look is old
  for (const auto& job : jobs_) job->look_at_parts();
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
      spoil(fault, std::nullopt);
      break;
    case Kind::kPower:
    case Kind::kStore:
    case Kind::kLost:
      for (const std::uint32_t index : fault.who) {
        kill(index, fault.lasts_ns);
        if (index >= scenario.servers) {  // node 0's, of an all-reduce job
          const Member at = member(index);
          at.job->replicas_judge.disk_lost();
          at.job->replica_disk(at.who).lose();
          continue;
        }
        disks_[index].fail_power(random);
        if (fault.kind == Kind::kPower) continue;
        if (fault.kind == Kind::kLost) servers_[index].moved = true;
        for (const auto& job : jobs_) {
          job->judge.store_lost(static_cast<std::uint16_t>(index));
          job->parts_judge.store_lost(static_cast<std::uint16_t>(index));
        }
        disks_[index] = {};
      }
      break;
    case Kind::kMachine:
      node.job->lose_machine(node.who, fault.lasts_ns);
      break;
    case Kind::kBreak:
      for (std::size_t i = 0; i < fault.who.size(); ++i) wires.break_some();
      for (const auto& job : jobs_) {
        if (fault.lasts_ns % 2 == 0) job->rings.break_newest();  // in half of them
      }
      break;
    case Kind::kCut: {
      std::set<std::uint32_t> machines;
      for (const std::uint32_t who_is : fault.who) {
        const Member at = who_is < scenario.servers ? Member{nullptr, who_is} : member(who_is);
        machines.insert(at.job ? at.job->machine_of(at.who) : machine_of_server(at.who));
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
        const Member at = index < scenario.servers ? Member{nullptr, index} : member(index);
        bool& full = at.job ? at.job->replica_disk(at.who).full : disks_[at.who].full;
        full = true;
        if (!at.job) disks_[at.who].was_full = true;
        clock.after(fault.lasts_ns, [&full] { full = false; });
      }
      break;
    case Kind::kJoin:
      node.job->join(node.who);
      break;
    case Kind::kLeave:
      node.job->leave(node.who, fault.lasts_ns);
      break;
    case Kind::kGone:
      node.job->gone(node.who);
      break;
    case Kind::kSave:
    case Kind::kSaveCommitted:
      for (const auto& job : jobs_) job->orders.save(fault.kind == Kind::kSaveCommitted);
      break;
    case Kind::kRestore:
      node.job->orders.restore();
      break;
    case Kind::kDeal:
      for (const auto& job : jobs_) job->orders.deal({fault.who.begin(), fault.who.end()});
      break;
    case Kind::kPermute:
      node.job->permute_ranks(fault.lasts_ns);
      break;
    case Kind::kHalfOpen:
      wires.half_open_some(fault.lasts_ns);
      break;
    case Kind::kDrain:
      for (const std::uint32_t who_is : fault.who) {
        if (who_is < scenario.servers) {
          drain_server(who_is, fault.lasts_ns);
          continue;
        }
        const Member at = member(who_is);
        at.job->leave(at.who, fault.lasts_ns);
      }
      break;
  }
  look_after_rings();
}

// Spoils any complete snapshot, or the newest of job `uncommitted`, which the coordinator does not know to be complete.
void ClusterWorld::spoil(const ClusterScenario::Fault& fault, std::optional<JobId> uncommitted) {
  for (const std::uint32_t index : fault.who) kill(index, fault.lasts_ns);
  const auto shard = static_cast<std::uint16_t>(fault.who.front());
  std::vector<Disk::Snapshot*> all = disks_[shard].complete_snapshots(shard);
  if (uncommitted) std::erase_if(all, [&](const auto* snapshot) { return snapshot->info.job != *uncommitted; });
  Disk::Snapshot& snapshot = *(uncommitted ? all.back() : all[random.below(all.size())]);
  const bool damages = fault.kind == ClusterScenario::Fault::Kind::kDamage;
  damages ? snapshot.damage_chunk(random) : snapshot.lose_record();
  const Round round = snapshot.info.round;
  ClusterJudge& judge = job(snapshot.info.job).judge;
  damages ? judge.chunk_damaged(shard, round) : judge.record_lost(shard, round, !uncommitted);
  say("FAULT", std::string(damages ? "a chunk" : "the record") + " of round " + std::to_string(round.value));
}

// The coordinator is about to learn that a snapshot is durable on the last server that has a part of it, and so
// everywhere: the coordinator dies, and on a disk that snapshot goes bad.
bool ClusterWorld::dies_before(const SnapshotDone& done) {
  if (!waiting_ || !done.ok) return false;
  const JobWorld* of = job_with(done.job);
  const JobRecord* known = of && chief() ? chief()->coordinator()->record(of->scenario.job) : nullptr;
  if (!known) return false;
  const JobRecord& record = *known;
  if (!record.initialised || record.committed >= done.round) return false;  // there must be an older one
  std::set<std::uint32_t> shards;
  for (const ChunkOwner& owner : record.owners) shards.insert(owner.shard.value);
  for (const std::uint32_t shard : shards) {
    std::vector<Disk::Snapshot*> there = disks_[shard].complete_snapshots(shard);
    std::erase_if(there, [&](const auto* snapshot) { return snapshot->info.job != done.job; });
    if (there.empty() || there.back()->info.round != done.round) return false;
  }
  ClusterScenario::Fault fault = *std::exchange(waiting_, std::nullopt);
  fault.who = {shards.contains(fault.who.front()) ? fault.who.front() : *shards.begin()};
  if (fault.who.front() != 0) fault.who.push_back(0);
  clock.after(0, [this, fault, job = done.job] {
    look_after_rings();
    struck_ns_ = clock.now_ns();
    let_know(fault);
    spoil(fault, job);
  });
  return true;
}

// ---- What is done about it ----

// By as many as there are to be from now on, with empty stores.
void ClusterWorld::replace_servers() {
  for (std::uint32_t index = 0; index < servers_now_; ++index) {
    ++servers_[index].starts;
    server_died();
    for (const auto& job : jobs_) job->values_judge.daemon_died();
    servers_[index].process.reset();
    disks_[index] = {};
  }
  for (const auto& job : jobs_) job->judge.stores_replaced();
  for (const auto& job : jobs_) job->parts_judge.restored();
  servers_now_ = static_cast<std::uint16_t>(scenario.later_servers);
  for (std::uint32_t index = 0; index < servers_now_; ++index) start_server(index);
}

}  // namespace tributary::sim
