#include "tests/sim/judge/judge.h"

#include "common/config/optimizer_config.h"
#include "common/config/schedule.h"
#include "tests/sim/cluster_simulation.h"

namespace tributary::sim {

JudgeSetup setup_of(const ClusterScenario& scenario, const JobConfig& config, std::shared_ptr<const Layout> layout) {
  JudgeSetup setup;
  setup.layout = std::move(layout);
  setup.seed = scenario.seed;
  setup.nodes = scenario.nodes;
  setup.ranks_per_node = scenario.ranks;
  setup.rounds = scenario.rounds;
  setup.push = config.push;
  setup.pull = config.pull;
  setup.optimizer = make_optimizer(config.optimizer);
  setup.lr = config.optimizer.lr;
  setup.schedule = server_schedule(config);
  if (has_gate(config)) setup.gate = config.gate;
  if (config.mode == Mode::kSsp) setup.staleness = scenario.staleness;
  setup.deadline = scenario.deadline;
  setup.model_ranks = *ModelRanks::of(scenario.model_ranks(), scenario.nodes, setup.layout->tensors());
  if (scenario.says_settings) setup.other_group = kernels::make_optimizer(config.optimizer.name, config.groups.front());
  return setup;
}

SavedChunk saved_of(const ChunkState& state) {
  const auto values = [](const BufferRef& array) {
    return std::vector<float>(array.floats().begin(), array.floats().end());
  };
  SavedChunk saved{values(state.params), {}, state.version, state.step, state.clocks};
  for (const BufferRef& slot : state.slots) {
    if (slot) saved.slots.push_back(values(slot));
  }
  return saved;
}

SavedChunk fresh_chunk(const JudgeSetup& setup, ChunkIndex index) {
  SavedChunk chunk;
  const ChunkRange range = setup.layout->chunk(index);
  for (std::uint64_t e = 0; e < range.elements; ++e) {
    chunk.params.push_back(initial_value(setup.seed, range.begin + e));
  }
  for (int s = 0; s < setup.optimizer->slots(); ++s) {
    chunk.slots.emplace_back(range.elements, setup.optimizer->initial_state(s));
  }
  return chunk;
}

void take_step(const JudgeSetup& setup, SavedChunk& state, ChunkIndex chunk, std::span<const float> gradient,
               std::uint64_t round, std::uint64_t position) {
  ++state.step;
  step_elements(setup, setup.layout->chunk(chunk).begin, gradient, state.params, state.slots,
                {state.step, round, position});
}

}  // namespace tributary::sim
