// Nodes of a simulated job: they die, come late, are stopped cleanly, come back, and go for ever.
#include <algorithm>
#include <utility>

#include "tests/sim/cluster_world.h"

namespace tributary::sim {
Process* JobWorld::process(std::uint32_t who) const {
  if (who < scenario.nodes) return nodes_[who].worker.get();
  who -= scenario.nodes;
  return nodes_[who / scenario.ranks].trainers[who % scenario.ranks].get();
}

void JobWorld::wake_trainers(std::uint32_t node) {
  for (const auto& trainer : nodes_[node].trainers) {
    if (trainer) trainer->wake();
  }
}

// Nobody trains any more once the job has ended.
void JobWorld::start_trainer(std::uint32_t node, std::uint32_t rank) {
  if (!ended_) nodes_[node].trainers[rank] = std::make_unique<TrainerSim>(*this, node, rank);
}

void JobWorld::kill(std::uint32_t who, std::uint64_t for_ns) {
  ++cluster.outcome().kills;
  const bool is_worker = who < scenario.nodes;
  const std::uint32_t index = is_worker ? who : (who - scenario.nodes) / scenario.ranks;
  const std::uint32_t rank = is_worker ? 0 : (who - scenario.nodes) % scenario.ranks;
  Node& node = nodes_[index];
  if (!node.here || (ended_ && !is_worker)) return;
  judge.node_disturbed();
  if (is_worker) {
    node.worker.reset();
    values_judge.daemon_died();
  } else {
    node.trainers[rank].reset();
    if (orders.keeps_trainers()) return;
  }
  const std::size_t slot = is_worker ? 0 : 1 + rank;
  clock.after(for_ns, [this, index, rank, is_worker, slot, plan = ++node.starts[slot]] {
    Node& at = nodes_[index];
    if (at.starts[slot] != plan) return;
    if (is_worker) {
      at.worker = std::make_unique<WorkerSim>(*this, index);
    } else {
      start_trainer(index, rank);
    }
  });
}

void JobWorld::lose_machine(std::uint32_t node, std::uint64_t for_ns) {
  kill(node, for_ns);
  for (std::uint32_t rank = 0; rank < scenario.ranks; ++rank) {
    kill(scenario.nodes + node * scenario.ranks + rank, for_ns);
  }
}

void JobWorld::join(std::uint32_t index) {
  Node& node = nodes_[index];
  node.here = true;
  node.worker = std::make_unique<WorkerSim>(*this, index);
  for (std::uint32_t rank = 0; rank < scenario.ranks; ++rank) {
    start_trainer(index, rank);
  }
  judge.node_disturbed();
  if (clock.now_ns() > 0) ++cluster.outcome().joins;
}

void JobWorld::leave(std::uint32_t index, std::uint64_t for_ns) {
  Node& node = nodes_[index];
  if (!node.here) return;
  if (!node.worker) return has_left(index, for_ns);
  ++cluster.outcome().leaves;
  if (scenario.elastic) judge.node_disturbed();
  node.worker->drain();
  watch_leave(index, node.worker->incarnation(), clock.now_ns() + ClusterWorld::kStopTimeoutNs, for_ns);
}

void JobWorld::watch_leave(std::uint32_t index, std::uint64_t incarnation, std::uint64_t by_ns, std::uint64_t for_ns) {
  clock.after(ClusterWorld::kMemberLookNs, [this, index, incarnation, by_ns, for_ns] {
    const WorkerSim* worker = nodes_[index].worker.get();
    if (!worker || worker->incarnation() != incarnation) return has_left(index, for_ns);  // it was killed meanwhile
    if (clock.now_ns() >= by_ns) return has_left(index, for_ns);
    if (!worker->drained()) return watch_leave(index, incarnation, by_ns, for_ns);
    clock.after(ClusterWorld::kLingerNs, [this, index, for_ns] { has_left(index, for_ns); });
  });
}

// Its trainers stay, and wait for a worker or are started again, unless the machine is taken away.
void JobWorld::has_left(std::uint32_t index, std::uint64_t for_ns) {
  if (for_ns == ClusterScenario::Fault::kForEver) return gone(index);
  if (!nodes_[index].here) return;
  look_after_rings();
  kill(index, for_ns);
  look_after_rings();
}

void JobWorld::gone(std::uint32_t index) {
  Node& node = nodes_[index];
  if (!node.here) return;
  say("FAULT", "node " + std::to_string(index) + " is gone");
  judge.node_disturbed();
  node.here = false;
  node.worker.reset();
  values_judge.daemon_died();
  for (auto& trainer : node.trainers) trainer.reset();
  for (std::uint64_t& plan : node.starts) ++plan;
}

bool JobWorld::permutes() const {
  return std::ranges::any_of(scenario.faults,
                             [](const auto& fault) { return fault.kind == ClusterScenario::Fault::Kind::kPermute; });
}

// Machines keep state of the ranks that they had, which is of no use for others.
void JobWorld::permute_ranks(std::uint64_t for_ns) {
  if (orders.keeps_trainers()) return;
  const std::vector<std::uint32_t> before = places_;
  for (std::size_t i = places_.size(); i > 1; --i) std::swap(places_[i - 1], places_[random.below(i)]);
  for (std::uint32_t node = 0; node < scenario.nodes; ++node) {
    if (places_[node] != before[node]) judge.ring_lost();
    for (std::uint32_t rank = 0; rank < scenario.ranks; ++rank) {
      kill(scenario.nodes + node * scenario.ranks + rank, for_ns);
    }
  }
}

void JobWorld::stop_trainers() {
  ended_ = false;  // a job that has come to its end goes on from a checkpoint, too
  for (Node& node : nodes_) {
    for (std::uint32_t rank = 0; rank < scenario.ranks; ++rank) {
      node.trainers[rank].reset();
      ++node.starts[1 + rank];
    }
  }
  look_after_rings();
}

void JobWorld::start_trainers() {
  for (std::uint32_t index = 0; index < scenario.nodes; ++index) {
    Node& node = nodes_[index];
    for (std::uint32_t rank = 0; rank < scenario.ranks && node.here; ++rank) {
      start_trainer(index, rank);
    }
  }
  cluster.faults_until(clock.now_ns());
}

// A ring lives as long as a process that has it.
void JobWorld::look_after_rings() {
  for (Node& node : nodes_) {
    const bool has = (node.worker && node.worker->has_ring()) ||
                     std::ranges::any_of(node.trainers, [](const auto& t) { return t && t->has_ring(); });
    if (node.had_ring && !has) judge.ring_lost();
    node.had_ring = has;
  }
}

}  // namespace tributary::sim
