#include "tests/sim/members_judge.h"

#include <algorithm>

#include "common/schedule.h"

namespace tributary::sim {

MembersJudge::MembersJudge(const JudgeSetup& setup, std::vector<std::uint32_t> nodes, const MembersJudge* before,
                           Broken broken)
    : SyncJudge(std::move(broken)),
      setup_(setup),
      nodes_(std::move(nodes)),
      push_(make_encoding(setup.push)),
      pull_(make_encoding(setup.pull)) {
  if (before) {
    history_ = before->history_;
    return;
  }
  for (std::uint32_t c = 0; c < setup.layout->chunks(); ++c) {
    auto first = std::make_shared<State>();
    static_cast<SavedChunk&>(*first) = fresh_chunk(setup, ChunkIndex(c));
    first->visible = seen(first->params);
    history_.push_back({std::move(first)});
  }
}

std::string MembersJudge::at(ChunkIndex chunk, std::uint64_t version) {
  return "chunk " + std::to_string(chunk.value) + " at version " + std::to_string(version);
}

const MembersJudge::State* MembersJudge::find(ChunkIndex chunk, std::uint64_t version) const {
  const auto& states = history_[chunk.value];
  return version < states.size() ? states[version].get() : nullptr;
}

std::vector<float> MembersJudge::seen(const std::vector<float>& params) const {
  std::vector<std::byte> frame(pull_->bytes(params.size()));
  std::vector<float> values(params.size());
  pull_->encode(params.data(), params.size(), 0, params.size(), nullptr, frame.data());
  pull_->decode(frame.data(), params.size(), 0, params.size(), values.data());
  return values;
}

void MembersJudge::push_arrives(const ShardCore&, const Push& push, std::span<const std::byte> frame) {
  if (!setup_.deadline) return;
  Arrived& mine = arrived_[{push.key.chunk.value, push.round.value, push.key.node.value}];
  if (!mine.values.empty()) return;  // a second copy
  mine.weight = push.weight;
  mine.values.resize(setup_.layout->chunk(push.key.chunk).elements);
  push_->decode(frame.data(), mine.values.size(), 0, mine.values.size(), mine.values.data());
}

std::vector<std::vector<float>> MembersJudge::sums_of(const State& state, ChunkIndex chunk, std::uint64_t round,
                                                      std::uint64_t& weight) const {
  std::vector<std::vector<float>> sums;
  const std::uint64_t begin = setup_.layout->chunk(chunk).begin;
  const std::size_t elements = state.params.size();
  for (std::uint32_t place = 0; place < nodes_.size(); ++place) {
    if (setup_.deadline) {
      const auto arrived = arrived_.find({chunk.value, round, place});
      if (arrived == arrived_.end()) {
        broken(at(chunk, round) + " was made without a push of node " + std::to_string(place) + " of the view");
        continue;
      }
      weight += arrived->second.weight;
      sums.push_back(arrived->second.values);
      continue;
    }
    std::vector<std::vector<float>> ranks;
    for (std::uint32_t local = 0; local < setup_.scenario.ranks_per_node; ++local) {
      const std::uint32_t rank = nodes_[place] * setup_.scenario.ranks_per_node + local;
      weight += sample_weight(setup_.scenario.seed, rank, round);
      std::vector<float>& gradient = ranks.emplace_back(elements);
      for (std::size_t e = 0; e < elements; ++e) {
        gradient[e] = gradient_value(setup_.scenario.seed, rank, round, begin + e, state.visible[e]);
      }
    }
    const std::vector<float> sum = add_in_tree_order(std::move(ranks));
    std::vector<std::byte> frame(push_->bytes(elements));
    push_->encode(sum.data(), elements, 0, elements, nullptr, frame.data());
    push_->decode(frame.data(), elements, 0, elements, sums.emplace_back(elements).data());
  }
  return sums;
}

// One round of the view's nodes.
std::shared_ptr<const MembersJudge::State> MembersJudge::after(const State& state, ChunkIndex chunk,
                                                               std::uint64_t round) const {
  std::uint64_t weight = 0;
  std::vector<std::vector<float>> sums = sums_of(state, chunk, round, weight);
  auto next = std::make_shared<State>(state);
  next->version = Version(round);
  if (weight == 0 || sums.empty()) return next;
  std::vector<float> sum = add_in_tree_order(std::move(sums));
  const float scale = static_cast<float>(1.0 / static_cast<double>(weight));
  for (float& value : sum) value *= scale;
  take_step(setup_, *next, sum, scheduled_lr(setup_.schedule, setup_.lr, next->step + 1));
  next->visible = seen(next->params);
  return next;
}

void MembersJudge::forget_after(ChunkIndex chunk, std::uint64_t version) {
  auto& states = history_[chunk.value];
  if (states.size() > version + 1) states.resize(version + 1);
}

void MembersJudge::stepped(ChunkIndex chunk, std::uint64_t version, bool again) {
  auto& states = history_[chunk.value];
  // The sum of the nodes of then. (What was computed twice may differ, and it is the second sum that nodes keep.)
  if (again && !setup_.deadline && version < states.size()) return;
  if (version > states.size()) return broken(at(chunk, version) + " was made from a version that nobody has made");
  states.resize(version);
  states.push_back(after(*states[version - 1], chunk, version));
}

std::span<const float> MembersJudge::master(ChunkIndex chunk, std::uint64_t version) const {
  const State* state = find(chunk, version);
  return state ? std::span<const float>(state->params) : std::span<const float>();
}

std::span<const float> MembersJudge::visible(ChunkIndex chunk, std::uint64_t version) const {
  const State* state = find(chunk, version);
  return state ? std::span<const float>(state->visible) : std::span<const float>();
}

void MembersJudge::delivered(std::uint32_t node, ChunkIndex chunk, Version version, std::span<const float> params) {
  if (!same_bits(params, visible(chunk, version.value))) {
    broken(at(chunk, version.value) + ": node " + std::to_string(node) +
           " of the view got other parameters than the view's nodes have made");
  }
}

void MembersJudge::snapshot_read(const ChunkSnapshot& snapshot, std::span<const float> params) {
  const State* state = find(snapshot.chunk, snapshot.version.value);
  bool same = state && same_bits(params, state->params) && snapshot.step == state->step &&
              snapshot.round.value == snapshot.version.value;
  for (std::size_t s = 0; same && s < state->slots.size(); ++s) {
    same = same_bits(snapshot.slots[s].floats(), state->slots[s]);
  }
  if (!same)
    broken("the snapshot of " + at(snapshot.chunk, snapshot.version.value) + " is not what its nodes have made");
}

void MembersJudge::restored(ChunkIndex chunk, const SavedChunk& saved) const {
  const State* state = find(chunk, saved.version.value);
  if (!state || !same_bits(saved.params, state->params) || saved.step != state->step) {
    broken("a server begins with " + at(chunk, saved.version.value) +
           " of its store, which is not what the rounds up to there have made");
  }
}

}  // namespace tributary::sim
