#include "tests/sim/clocks_judge.h"

#include <algorithm>

#include "common/schedule.h"

namespace tributary::sim {

std::uint64_t ClocksJudge::slowest(const Chunk& chunk) {
  return *std::ranges::min_element(chunk.state.clocks);
}

void ClocksJudge::apply(Chunk& chunk, const Push& push, std::span<const std::byte> frame) {
  SavedChunk& state = chunk.state;
  std::uint64_t& clock = state.clocks[push.key.node.value];
  if (push.round.value != clock + 1) {
    broken(at(push.key) + "the push of clock " + std::to_string(push.round.value) + " was applied after clock " +
           std::to_string(clock) + "'s");
  }
  clock = push.round.value;
  const std::uint64_t version = state.version.value;
  state.version = state.version.next();
  if (push.weight == 0) return;
  const std::size_t elements = state.params.size();
  std::vector<float> gradient(elements);
  decode_push(*push_, frame.data(), push.weight, elements, 0, elements, gradient.data());
  const float scale = static_cast<float>(1.0 / static_cast<double>(push.weight));
  const Told& told = chunk.told[push.key.node.value];
  const auto lambda = static_cast<float>(setup_.clocks->delay_compensation);
  for (std::size_t e = 0; e < elements; ++e) {
    gradient[e] *= scale;
    if (lambda == 0.0f || !told.any) continue;
    gradient[e] += lambda * gradient[e] * gradient[e] * (state.params[e] - told.values[e]);
  }
  double lr = scheduled_lr(setup_.schedule, setup_.lr, push.round.value);
  if (setup_.clocks->lr_by_staleness && told.any) {
    lr /= std::max(1.0, static_cast<double>(version - told.version) / static_cast<double>(setup_.scenario.nodes));
  }
  take_step(setup_, state, gradient, lr);
}

// The last round's answers are to hold everything.
bool ClocksJudge::bound_kept(std::uint64_t clock, std::uint64_t slowest) const {
  if (clock == setup_.scenario.rounds) return slowest >= clock;
  return setup_.clocks->staleness == ClockRules::kUnbounded || slowest + setup_.clocks->staleness >= clock;
}

void ClocksJudge::check_answer(const Chunk& chunk, const Answer& answer) {
  const std::uint64_t clock = answer.version.value;
  if (chunk.state.clocks[answer.key.node.value] < clock) {
    broken(at(answer.key) + "the answer to clock " + std::to_string(clock) + " lacks the reader's own push");
  }
  if (!bound_kept(clock, slowest(chunk)) || answer.slowest.value != slowest(chunk)) {
    broken(at(answer.key) + "the answer to clock " + std::to_string(clock) + " went out at slowest clock " +
           std::to_string(slowest(chunk)) + " and says " + std::to_string(answer.slowest.value));
  }
}

void ClocksJudge::check_captured(const Chunk& chunk, const ChunkSnapshot& snapshot) {
  if (slowest(chunk) < snapshot.round.value) {
    broken("snapshot of chunk " + std::to_string(snapshot.chunk.value) +
           " was captured before its slowest node was at " + std::to_string(snapshot.round.value));
  }
}

void ClocksJudge::ended() {
  for (std::uint32_t c = 0; c < chunks_.size(); ++c) {
    const std::string chunk = "chunk " + std::to_string(c);
    for (const std::uint64_t clock : chunks_[c].state.clocks) {
      if (clock != setup_.scenario.rounds) broken(chunk + " ends at clock " + std::to_string(clock));
    }
    for (const auto& node : delivered_) {
      if (!same_bits(node[c], delivered_[0][c])) broken(chunk + ": nodes end with different parameters");
    }
  }
}

}  // namespace tributary::sim
