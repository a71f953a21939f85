#include "tests/sim/world.h"

#include <algorithm>

#include "tests/sim/clocks_judge.h"
#include "tests/sim/rounds_judge.h"

namespace tributary::sim {
namespace {

constexpr std::uint64_t kTickNs = 100'000'000;
constexpr std::uint64_t kSnapshotNs = 5'000'000;
constexpr std::uint64_t kMaxVirtualNs = 3'600'000'000'000;  // an hour: far beyond what any seed needs

ScheduleConfig schedule_of(std::uint64_t rounds) {
  ScheduleConfig schedule;
  schedule.name = "cosine";
  schedule.warmup_rounds = 2;
  schedule.total_rounds = rounds;
  return schedule;
}

std::shared_ptr<const kernels::Optimizer> optimizer_of(const Scenario& scenario) {
  kernels::OptimizerOptions options;
  options.weight_decay = 0.01;
  if (scenario.optimizer == "sgd") {
    options.momentum = 0.9;
    options.nesterov = true;
  }
  return kernels::make_optimizer(scenario.optimizer, options);
}

std::optional<ClockRules> clocks_of(const Scenario& scenario) {
  if (scenario.mode == "sync") return std::nullopt;
  ClockRules rules;
  if (scenario.mode == "ssp") rules.staleness = scenario.staleness;
  return rules;
}

std::vector<TensorSpec> tensors_of(const Scenario& scenario, Random& random) {
  std::vector<TensorSpec> tensors;
  std::uint64_t left = scenario.parameters;
  while (left > 0) {
    const std::uint64_t elements = std::min<std::uint64_t>(left, random.between(1, scenario.parameters / 3 + 1));
    std::string name(1, 't');
    name += std::to_string(tensors.size());
    tensors.push_back({std::move(name), {elements}});
    left -= elements;
  }
  return tensors;
}

}  // namespace

World::World(const Scenario& scenario, Mutation mutation_in, ViewId view_in, const Restart* from)
    : mutation(mutation_in),
      view(view_in),
      start(from ? from->round : Round(0)),
      saved(from ? &from->state : nullptr),
      random(scenario.seed ^ 0x5eedull),
      network({.duplicate = scenario.duplicate, .lose = scenario.lose}, scenario.seed ^ 0xbadc0deull ^ (from ? 1 : 0)) {
  const std::vector<ShardSlots> slots(scenario.shards, ShardSlots{static_cast<std::uint16_t>(scenario.lanes), 1.0});
  layout = std::make_shared<const Layout>(*Layout::make(tensors_of(scenario, random), scenario.chunk_elements, slots));
  setup.scenario = scenario;
  setup.layout = layout;
  setup.push = *parse_encoding(scenario.push);
  setup.pull = *parse_encoding(scenario.pull);
  setup.optimizer = optimizer_of(scenario);
  setup.schedule = schedule_of(scenario.rounds);
  setup.clocks = clocks_of(scenario);
  if (scenario.gated()) {
    setup.gate = scenario.gate();
    gate.emplace(*setup.gate, layout->chunks());
  }
  const auto report = [this](const std::string& what) { broken(what); };
  if (setup.clocks) {
    judge = std::make_unique<ClocksJudge>(setup, saved, report);
  } else {
    judge = std::make_unique<RoundsJudge>(setup, mutation == Mutation::kArrivalOrderSum, report);
  }
  for (std::uint16_t shard = 0; shard < scenario.shards; ++shard) {
    for (std::uint16_t lane = 0; lane < scenario.lanes; ++lane) {
      lanes.push_back(std::make_unique<LaneSim>(*this, shard, lane));
    }
  }
  for (std::uint32_t node = 0; node < scenario.nodes; ++node) nodes.push_back(std::make_unique<NodeSim>(*this, node));
}

void World::broken(const std::string& what) {
  if (failure.empty()) failure = what + " (virtual time " + std::to_string(network.now_ns()) + " ns)";
}

void World::gate_hears(LaneSim& from, const RoundFacts& facts) {
  const Result<RoundGate::Reply> reply = gate->on_facts(facts);
  if (!reply) return broken("the gate refused facts: " + reply.error().message);
  if (!reply->decision) return;
  if (reply->for_all) {
    clipped += reply->decision->decision.verdict == GateVerdict::kClipped ? 1 : 0;
    skipped += reply->decision->decision.verdict == GateVerdict::kSkipped ? 1 : 0;
  }
  for (auto& lane : lanes) {
    if (!reply->for_all && lane.get() != &from) continue;
    network.send([&to = *lane, decision = *reply->decision] { to.decide(decision); });
  }
}

bool World::done() const {
  return std::ranges::all_of(nodes, [](const auto& node) { return node->done(); });
}

bool World::step(std::uint64_t& events) {
  if (!network.step()) broken("nothing is left to happen, but the nodes are not done");
  if (network.now_ns() > kMaxVirtualNs) broken("no end within an hour of virtual time");
  ++events;
  return failure.empty();
}

bool World::train(std::uint64_t cut, std::uint64_t& events) {
  for (auto& node : nodes) node->start();
  tick_ = [this] {
    for (auto& node : nodes) node->tick();
    for (auto& lane : lanes) lane->ask_gate();
    network.after(kTickNs, tick_);
  };
  tick_();
  snapshots_ = [this] {
    snapshot_sometimes();
    check_snapshots(false);
    network.after(kSnapshotNs, snapshots_);
  };
  snapshots_();
  for (std::uint64_t begun = events; failure.empty() && !done();) {
    if (events - begun >= cut) return false;
    step(events);
  }
  if (failure.empty()) judge->ended();
  return true;
}

void World::leave(std::uint64_t& events) {
  const bool shards_first = random.chance(0.5);
  if (failure.empty() && shards_first) stop_shards();
  for (auto& node : nodes) node->leave();
  const auto all_left = [&] { return std::ranges::all_of(nodes, [](const auto& node) { return node->left(); }); };
  while (failure.empty() && !all_left()) step(events);
  if (failure.empty() && !shards_first) stop_shards();
  for (auto& lane : lanes) {
    if (failure.empty() && lane->core().keeping()) broken("a shard waits for residuals that all nodes have sent");
  }
  if (failure.empty()) check_snapshots(true);
}

void World::stop_shards() {
  for (auto& lane : lanes) {
    if (!lane->core().stop(true, Round(scenario().rounds))) broken("a shard is not at the last round when it stops");
  }
}

void World::snapshot_sometimes() {
  for (auto& lane : lanes) lane->core().snapshot_at(Round(lane->core().max_version().value + random.below(6)));
}

void World::check_snapshots(bool all) {
  std::erase_if(kept, [&](const Kept& k) {
    if (!all && k.read_at_ns > network.now_ns()) return false;
    ++snapshots_checked;
    judge->snapshot_read(k.snapshot, k.params);
    return true;
  });
}

void World::keep_for_restart(const ChunkSnapshot& snapshot) {
  if (!scenario().restarts) return;
  SavedChunk& chunk = captured_[snapshot.round.value][snapshot.chunk.value];
  chunk = {};
  const std::span<const float> params = snapshot.params.floats();
  chunk.params.assign(params.begin(), params.end());
  for (int s = 0; s < setup.optimizer->slots(); ++s) {
    const std::span<const float> slot = snapshot.slots[s].floats();
    chunk.slots.emplace_back(slot.begin(), slot.end());
  }
  chunk.version = snapshot.version;
  chunk.step = snapshot.step;
  chunk.clocks = snapshot.clocks;
}

std::optional<Restart> World::newest_complete() const {
  for (auto at = captured_.rbegin(); at != captured_.rend(); ++at) {
    const auto& [round, chunks] = *at;
    if (chunks.size() != layout->chunks()) continue;
    Restart restart{Round(round), {}};
    for (const auto& [index, chunk] : chunks) restart.state.push_back(chunk);
    return restart;
  }
  return std::nullopt;
}

}  // namespace tributary::sim
