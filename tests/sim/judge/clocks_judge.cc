#include "tests/sim/judge/clocks_judge.h"

#include <algorithm>

#include "common/config/schedule.h"

namespace tributary::sim {

std::string ClocksJudge::at(const ChunkKey& key) {
  return "node " + std::to_string(key.node.value) + " chunk " + std::to_string(key.chunk.value) + ": ";
}

ClocksJudge::ClocksJudge(const JudgeSetup& setup, const SavedState* saved, Broken broken)
    : Judge(std::move(broken)), setup_(setup), push_(make_encoding(setup.push)), pull_(make_encoding(setup.pull)) {
  const std::uint32_t nodes = setup.nodes;
  for (std::uint32_t c = 0; c < setup.layout->chunks(); ++c) {
    Chunk& chunk = chunks_.emplace_back();
    chunk.told.resize(nodes);
    chunk.state = saved ? (*saved)[c] : fresh_chunk(setup, ChunkIndex(c));
    // Clocks of other nodes have no owner.
    if (chunk.state.clocks.size() != nodes) chunk.state.clocks.assign(nodes, setup.start.value);
  }
  delivered_.assign(nodes, std::vector<std::vector<float>>(chunks_.size()));
}

void ClocksJudge::push_arrives(const ShardCore& core, const Push& push, std::span<const std::byte> frame) {
  core_ = &core;
  handled_ = push;
  frame_ = frame;
}

void ClocksJudge::push_handled() {
  follow();
  core_ = nullptr;
}

// If the server has applied the push that it handles, so do we.
void ClocksJudge::follow() {
  if (!core_) return;
  Chunk& chunk = chunks_[handled_.key.chunk.value];
  const std::uint64_t theirs = core_->version(handled_.key.chunk).value;
  if (theirs == chunk.state.version.value) return;
  if (theirs != chunk.state.version.value + 1) return broken(at(handled_.key) + "one push moved the version by more");
  apply(chunk, handled_, frame_);
  if (!same_bits(core_->params(handled_.key.chunk), chunk.state.params)) {
    broken(at(handled_.key) + "the parameters after clock " + std::to_string(handled_.round.value) +
           " are not those of the order in which the pushes were applied");
  }
}

void ClocksJudge::answers(const Answer& answer, std::span<const std::byte> payload) {
  follow();
  Chunk& chunk = chunks_[answer.key.chunk.value];
  Told& told = chunk.told[answer.key.node.value];
  const std::uint64_t clock = answer.version.value;
  if (told.any && told.clock == clock) {
    if (!std::ranges::equal(payload, told.bytes) || answer.slowest.value != told.slowest) {
      broken(at(answer.key) + "clock " + std::to_string(clock) + " was answered in two ways");
    }
    return;
  }
  check_answer(chunk, answer);
  const std::size_t elements = chunk.state.params.size();
  told.any = true;
  told.clock = clock;
  told.slowest = answer.slowest.value;
  told.bytes.resize(pull_->bytes(elements));
  pull_->encode(chunk.state.params.data(), elements, 0, elements, nullptr, told.bytes.data());
  told.values.resize(elements);
  pull_->decode(told.bytes.data(), elements, 0, elements, told.values.data());
  if (!std::ranges::equal(payload, told.bytes)) {
    broken(at(answer.key) + "the answer to clock " + std::to_string(clock) + " is not the parameters as they are");
  }
}

void ClocksJudge::delivered(std::uint32_t node, ChunkIndex chunk, Version version, std::span<const float> params) {
  const Told& told = chunks_[chunk.value].told[node];
  if (!told.any || told.clock != version.value || !same_bits(params, told.values)) {
    broken(at({{}, {}, NodeRank(node), chunk}) + "what arrived for clock " + std::to_string(version.value) +
           " is not what was sent");
  }
  delivered_[node][chunk.value].assign(params.begin(), params.end());
}

void ClocksJudge::captured(const ChunkSnapshot& snapshot) {
  follow();
  const Chunk& chunk = chunks_[snapshot.chunk.value];
  captured_[{snapshot.chunk.value, snapshot.round.value, snapshot.state.version.value}] = chunk.state;
  check_captured(chunk, snapshot);
}

void ClocksJudge::snapshot_read(const ChunkSnapshot& snapshot, std::span<const float> params) {
  const auto found = captured_.find({snapshot.chunk.value, snapshot.round.value, snapshot.state.version.value});
  if (found == captured_.end()) return broken("a snapshot has a version that its chunk was never captured at");
  const SavedChunk& then = found->second;
  bool same = same_bits(params, then.params) && snapshot.state.step == then.step &&
              (snapshot.state.clocks.empty() || snapshot.state.clocks == then.clocks);
  for (std::size_t s = 0; s < then.slots.size() && same; ++s) {
    same = same_bits(snapshot.state.slots[s].floats(), then.slots[s]);
  }
  if (!same) {
    broken("snapshot of chunk " + std::to_string(snapshot.chunk.value) + " for round " +
           std::to_string(snapshot.round.value) + " is not the state that was captured");
  }
}

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
  state.version = state.version.next();
  if (push.weight == 0) return;
  const std::size_t elements = state.params.size();
  std::vector<float> gradient(elements);
  decode_push(*push_, frame.data(), push.weight, elements, 0, elements, gradient.data());
  const float scale = static_cast<float>(1.0 / static_cast<double>(push.weight));
  for (float& value : gradient) value *= scale;
  take_step(setup_, state, push.key.chunk, gradient, push.round.value, push.round.value);
}

// The last round's answers are to hold everything.
bool ClocksJudge::bound_kept(std::uint64_t clock, std::uint64_t slowest) const {
  if (clock == setup_.rounds) return slowest >= clock;
  return setup_.staleness == ShardJob::kUnbounded || slowest + setup_.staleness >= clock;
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
      if (clock != setup_.rounds) broken(chunk + " ends at clock " + std::to_string(clock));
    }
    for (const auto& node : delivered_) {
      if (!same_bits(node[c], delivered_[0][c])) broken(chunk + ": nodes end with different parameters");
    }
  }
}

}  // namespace tributary::sim
