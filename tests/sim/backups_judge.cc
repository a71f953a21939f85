#include "tests/sim/backups_judge.h"

#include <algorithm>

#include "common/schedule.h"
#include "tests/sim/reference.h"

namespace tributary::sim {

BackupsJudge::BackupsJudge(const JudgeSetup& setup, const SavedState* saved, Broken broken)
    : ArrivalJudge(setup, saved, std::move(broken)),
      quorum_(setup.scenario.nodes - std::min(setup.clocks->backups, setup.scenario.nodes - 1)),
      rounds_(chunks_.size()),
      final_(chunks_.size()) {
  for (Rounds& rounds : rounds_) {
    rounds.nodes.resize(setup.scenario.nodes);
    for (Node& node : rounds.nodes) node.asked = setup.start.value;
  }
  for (std::uint32_t c = 0; c < chunks_.size(); ++c) note_final(ChunkIndex(c));
}

void BackupsJudge::push_arrives(const ShardCore& core, const Push& push, std::span<const std::byte> frame) {
  ArrivalJudge::push_arrives(core, push, frame);
  handling_ = &core;
  const Chunk& chunk = chunks_[push.key.chunk.value];
  Rounds& rounds = rounds_[push.key.chunk.value];
  Node& node = rounds.nodes[push.key.node.value];
  if (push.round.value != node.asked + 1 || node.waits) return;  // a second copy
  node.asked = push.round.value;
  node.waits = true;
  node.last = push.last;
  // Its author must not say so before the chunk has had that round.
  if (push.beyond && chunk.state.version.value < setup_.scenario.rounds) {
    broken(at(push.key) + "a push says that it is beyond the last round, but the chunk is at round " +
           std::to_string(chunk.state.version.value));
  }
  rounds.over = rounds.over || push.beyond;
  const Told& told = chunk.told[push.key.node.value];
  node.dropped = rounds.over || !told.any || told.version != chunk.state.version.value;
  if (node.dropped) {
    ++dropped_[{core.job().shard.value, core.job().lane.value}];
    return;
  }
  node.present = true;
  node.weight = push.weight;
  node.values.resize(chunk.state.params.size());
  decode_push(*push_, frame.data(), push.weight, node.values.size(), 0, node.values.size(), node.values.data());
  ++rounds.arrived;
}

void BackupsJudge::push_handled() {
  ArrivalJudge::push_handled();
  const std::uint64_t counted = dropped_[{handling_->job().shard.value, handling_->job().lane.value}];
  if (handling_->stats().dropped != counted) {
    broken("server " + std::to_string(handling_->job().shard.value) + " has dropped " +
           std::to_string(handling_->stats().dropped) + " pushes, of which " + std::to_string(counted) +
           " came too late");
  }
}

void BackupsJudge::query_arrives(const ShardCore& core, ChunkIndex chunk) {
  Push nobodys;
  nobodys.key.chunk = chunk;
  ArrivalJudge::push_arrives(core, nobodys, {});
  handling_ = &core;
}

void BackupsJudge::apply(Chunk& chunk, const Push& push, std::span<const std::byte>) {
  Rounds& rounds = rounds_[push.key.chunk.value];
  if (rounds.arrived < quorum_) {
    broken("chunk " + std::to_string(push.key.chunk.value) + " made a round of " + std::to_string(rounds.arrived) +
           " pushes, but it needs " + std::to_string(quorum_));
  }
  SavedChunk& state = chunk.state;
  state.version = state.version.next();
  std::vector<std::vector<float>> frames;
  std::uint64_t weight = 0;
  for (Node& node : rounds.nodes) {
    if (!std::exchange(node.present, false)) continue;
    frames.push_back(std::move(node.values));
    weight += node.weight;
    rounds.over = rounds.over || node.last;
  }
  rounds.arrived = 0;
  if (weight != 0 && !frames.empty()) {
    std::vector<float> sum = add_in_tree_order(std::move(frames));
    const float scale = static_cast<float>(1.0 / static_cast<double>(weight));
    for (float& value : sum) value *= scale;
    take_step(setup_, state, sum, scheduled_lr(setup_.schedule, setup_.lr, state.step + 1));
  }
  if (state.version.value > setup_.scenario.rounds) broken(at(push.key) + "there is a round beyond the last one");
  note_final(push.key.chunk);
}

void BackupsJudge::note_final(ChunkIndex chunk) {
  const SavedChunk& state = chunks_[chunk.value].state;
  if (state.version.value < setup_.scenario.rounds) return;
  std::vector<float>& values = final_[chunk.value];
  values.resize(state.params.size());
  std::vector<std::byte> bytes(pull_->bytes(values.size()));
  pull_->encode(state.params.data(), values.size(), 0, values.size(), nullptr, bytes.data());
  pull_->decode(bytes.data(), values.size(), 0, values.size(), values.data());
}

void BackupsJudge::check_answer(const Chunk& chunk, const Answer& answer) {
  const std::uint64_t clock = answer.version.value;
  Node& node = rounds_[answer.key.chunk.value].nodes[answer.key.node.value];
  const std::string what = at(answer.key) + "the answer to clock " + std::to_string(clock);
  const Told& told = chunk.told[answer.key.node.value];
  if (clock != node.asked || (told.any && !node.waits)) broken(what + " goes to somebody who has not pushed");
  if (answer.dropped != node.dropped) {
    broken(what + (node.dropped ? " does not say that the push was too late"
                                : " says that the push was too late, which it was not"));
  }
  if (node.present) broken(what + " goes out before the round is complete that it is a part of");
  if (told.any && chunk.state.version.value <= told.version && !rounds_[answer.key.chunk.value].over) {
    broken(what + " is not newer than what the push was computed from");
  }
  if (answer.slowest.value != chunk.state.version.value) broken(what + " says another round than the chunk is at");
  node.waits = false;
}

// At a stop chunks are where they are, but for the round that is kept, which all have.
void BackupsJudge::check_captured(const Chunk& chunk, const ChunkSnapshot& snapshot) {
  if (chunk.state.version.value < snapshot.round.value || !snapshot.clocks.empty()) {
    broken("snapshot of chunk " + std::to_string(snapshot.chunk.value) + " was captured at version " +
           std::to_string(chunk.state.version.value) + " instead of " + std::to_string(snapshot.round.value));
  }
}

}  // namespace tributary::sim
