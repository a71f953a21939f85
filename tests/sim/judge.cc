#include "tests/sim/judge.h"

#include "common/config/job_optimizer.h"
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

void take_step(const JudgeSetup& setup, SavedChunk& state, std::span<const float> gradient, double lr) {
  ++state.step;
  kernels::BlockArgs block;
  block.count = gradient.size();
  block.grad = gradient.data();
  block.param_in = block.param_out = state.params.data();
  for (std::size_t s = 0; s < state.slots.size(); ++s) block.state_in[s] = block.state_out[s] = state.slots[s].data();
  setup.optimizer->step(setup.optimizer->scalars(state.step, lr), block);
}

}  // namespace tributary::sim
