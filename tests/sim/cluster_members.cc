// Nodes that come late, are stopped in good order, come back, and go for ever. Servers that are stopped in good order.
#include "tests/sim/cluster_world.h"

namespace tributary::sim {
namespace {

// A daemon that is stopped goes after this (limits.stop_timeout_s), whatever is not done.
constexpr std::uint64_t kStopTimeoutNs = 20'000 * kMs;
// Where nothing else is wrong every stop is done by then.
constexpr std::uint64_t kCalmStopNs = 100'000 * kMs;
constexpr std::uint64_t kMemberLookNs = 20 * kMs;
// Its last words still go out (CoordinatorLink::kLingerMs).
constexpr std::uint64_t kLingerNs = 100 * kMs;

}  // namespace

void ClusterWorld::join(std::uint32_t index) {
  Node& node = nodes_[index];
  node.here = true;
  node.worker = std::make_unique<WorkerSim>(*this, index);
  for (std::uint32_t rank = 0; rank < scenario.ranks; ++rank) {
    node.trainers[rank] = std::make_unique<TrainerSim>(*this, index, rank);
  }
  judge.node_disturbed();
  if (clock.now_ns() > 0) ++outcome_.joins;
}

void ClusterWorld::leave(std::uint32_t index, std::uint64_t for_ns) {
  Node& node = nodes_[index];
  if (!node.here) return;
  if (!node.worker) return has_left(index, for_ns);
  ++outcome_.leaves;
  if (scenario.elastic) judge.node_disturbed();
  node.worker->drain();
  watch_leave(index, node.worker->incarnation(), clock.now_ns() + kStopTimeoutNs, for_ns);
}

void ClusterWorld::watch_leave(std::uint32_t index, std::uint64_t incarnation, std::uint64_t by_ns,
                               std::uint64_t for_ns) {
  clock.after(kMemberLookNs, [this, index, incarnation, by_ns, for_ns] {
    const WorkerSim* worker = nodes_[index].worker.get();
    if (!worker || worker->incarnation() != incarnation) return has_left(index, for_ns);  // it was killed meanwhile
    if (clock.now_ns() >= by_ns) return has_left(index, for_ns);
    if (!worker->drained()) return watch_leave(index, incarnation, by_ns, for_ns);
    clock.after(kLingerNs, [this, index, for_ns] { has_left(index, for_ns); });
  });
}

// Its trainers stay, and wait for a worker or are started again, unless the machine is taken away.
void ClusterWorld::has_left(std::uint32_t index, std::uint64_t for_ns) {
  if (for_ns == ClusterScenario::Fault::kForEver) return gone(index);
  if (!nodes_[index].here) return;
  look_after_rings();
  kill(scenario.servers + index, for_ns);
  look_after_rings();
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
      for (const NotSaved& state : server->not_saved()) lost += " round " + std::to_string(state.round.value);
      say("FAULT", server->name() + " ends in good order" + (lost.empty() ? "" : ", not saved:" + lost));
      judge.server_ends(static_cast<std::uint16_t>(index), !lost.empty());
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
  judge.server_ended();
  end_server(index, for_ns);
  faults_over_ns_ = std::max(faults_over_ns_, clock.now_ns() + for_ns);
  deliveries_then_.reset();
}

void ClusterWorld::gone(std::uint32_t index) {
  Node& node = nodes_[index];
  if (!node.here) return;
  say("FAULT", "node " + std::to_string(index) + " is gone");
  node.here = false;
  node.worker.reset();
  values_judge.daemon_died();
  for (auto& trainer : node.trainers) trainer.reset();
  for (std::uint64_t& plan : node.starts) ++plan;
}

}  // namespace tributary::sim
