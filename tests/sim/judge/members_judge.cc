#include "tests/sim/judge/members_judge.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "common/config/gate_rules.h"
#include "common/config/schedule.h"

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
    decisions_ = before->decisions_;
    return;
  }
  for (std::uint32_t c = 0; c < setup.layout->chunks(); ++c) {
    auto first = std::make_shared<State>();
    static_cast<SavedChunk&>(*first) = fresh_chunk(setup, ChunkIndex(c));
    first->visible = pull_->is_delta() ? first->params : pulled_chunk(*pull_, first->params, first->params);
    if (setup.gate) first->gate = first_gate_state(*setup.gate);
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

void MembersJudge::push_arrives(const ShardCore&, const Push& push, std::span<const std::byte> frame) {
  if (!setup_.deadline) return;
  Arrived& mine = arrived_[{push.key.chunk.value, push.round.value, push.key.node.value}];
  if (!mine.values.empty()) return;  // a second copy
  mine.weight = push.weight;
  mine.values.resize(setup_.layout->chunk(push.key.chunk).elements);
  decode_push(*push_, frame.data(), push.weight, mine.values.size(), 0, mine.values.size(), mine.values.data());
}

std::vector<float> MembersJudge::arrived_of(ChunkIndex chunk, std::uint64_t round, std::uint32_t place,
                                            std::uint64_t& weight) const {
  const auto arrived = arrived_.find({chunk.value, round, place});
  if (arrived == arrived_.end()) {
    broken(at(chunk, round) + " was made without a push of node " + std::to_string(place) + " of the view");
    return std::vector<float>(setup_.layout->chunk(chunk).elements);
  }
  weight += arrived->second.weight;
  return arrived->second.values;
}

std::vector<float> MembersJudge::gradients_of(const State& state, ChunkIndex chunk, std::uint64_t round,
                                              std::uint32_t place, std::uint64_t& weight) const {
  const std::uint64_t begin = setup_.layout->chunk(chunk).begin;
  std::vector<std::vector<float>> ranks;
  for (std::uint32_t local = 0; local < setup_.ranks_per_node; ++local) {
    const std::uint32_t rank = nodes_[place] * setup_.ranks_per_node + local;
    weight += sample_weight(setup_.seed, rank, round);
    std::vector<float>& gradient = ranks.emplace_back(state.params.size());
    for (std::size_t e = 0; e < gradient.size(); ++e) {
      gradient[e] = gradient_value(setup_.seed, rank, round, begin + e, state.visible[e]);
      if (setup_.gate) gradient[e] *= state.gate.loss_scale;
    }
  }
  return add_in_tree_order(std::move(ranks));
}

MembersJudge::Sum MembersJudge::sum_of(const State& state, ChunkIndex chunk, std::uint64_t round) const {
  Sum sum;
  sum.residuals = state.residuals;
  if (push_->keeps_residual()) sum.residuals.resize(nodes_.size(), std::vector<float>(state.params.size()));
  std::vector<std::vector<float>> pushes;
  for (std::uint32_t place = 0; place < nodes_.size(); ++place) {
    if (setup_.deadline) {
      pushes.push_back(arrived_of(chunk, round, place, sum.weight));
      continue;
    }
    const std::span<float> left = push_->keeps_residual() ? std::span(sum.residuals[place]) : std::span<float>();
    std::uint64_t weight = 0;
    const std::vector<float> gradient = gradients_of(state, chunk, round, place, weight);
    pushes.push_back(pushed_chunk(*push_, gradient, weight, left));
    sum.weight += weight;
  }
  sum.values = add_in_tree_order(std::move(pushes));
  return sum;
}

// One round of the view's nodes.
std::shared_ptr<const MembersJudge::State> MembersJudge::after(const State& state, ChunkIndex chunk, Sum sum,
                                                               std::uint64_t round,
                                                               const GateDecision* decision) const {
  auto next = std::make_shared<State>(state);
  next->version = Version(round);
  next->residuals = std::move(sum.residuals);
  if (decision) next->gate = *decision;
  const bool finite = std::ranges::all_of(sum.values, [](float value) { return std::isfinite(value); });
  if (sum.weight == 0 || (decision && !(decision->applies() && finite))) return next;
  const float scale =
      decision ? gate_scale(*decision, sum.weight) : static_cast<float>(1.0 / static_cast<double>(sum.weight));
  for (float& value : sum.values) value *= scale;
  take_step(setup_, *next, chunk, sum.values, round, next->step + 1);
  next->visible = pulled_chunk(*pull_, next->params, std::move(next->visible));
  return next;
}

void MembersJudge::forget_after(ChunkIndex chunk, std::uint64_t version) {
  auto& states = history_[chunk.value];
  if (states.size() > version + 1) states.resize(version + 1);
}

void MembersJudge::forget_decisions_after(std::uint64_t round) {
  decisions_.erase(decisions_.upper_bound(round), decisions_.end());
}

// REQUIRES: every chunk has been through the round before.
GateDecision MembersJudge::decided_by_its_nodes(Round round) {
  std::vector<GateFacts> facts;
  for (std::uint32_t c = 0; c < history_.size(); ++c) {
    Sum sum = sum_of(*history_[c][round.value - 1], ChunkIndex(c), round.value);
    facts.push_back(gate_facts(sum.values, sum.weight));
    decided_on_.insert_or_assign(c, std::pair(round.value, std::move(sum)));
  }
  return decide_gate(*setup_.gate, history_.front()[round.value - 1]->gate, facts);
}

bool MembersJudge::decides(Round round, const GateDecision& decision) {
  const std::string what = "round " + std::to_string(round.value) + " was decided about";
  const auto known = decisions_.find(round.value);
  if (known != decisions_.end() && known->second == decision) {
    return !decided_on_.contains(0) || decided_on_.at(0).first != round.value;
  }
  for (const auto& states : history_) {
    if (states.size() < round.value) broken(what + " before all chunks were there");
    if (states.size() > round.value) broken(what + " in another way when some chunks had been through it");
    if (states.size() != round.value) return false;
  }
  if (decided_by_its_nodes(round) != decision) broken(what + " otherwise than its nodes' pushes demand");
  decisions_[round.value] = decision;
  return false;
}

void MembersJudge::stepped(ChunkIndex chunk, std::uint64_t version, bool again) {
  auto& states = history_[chunk.value];
  // The sum of that view's nodes. (A repeated computation may differ, and nodes keep the second sum.)
  if (again && !setup_.deadline && version < states.size()) return;
  if (version > states.size()) return broken(at(chunk, version) + " was made from a version that nobody has made");
  const auto decision = decisions_.find(version);
  if (setup_.gate && decision == decisions_.end()) {
    return broken(at(chunk, version) + " was made before its round was decided about");
  }
  states.resize(version);
  const State& before = *states[version - 1];
  const auto summed = decided_on_.find(chunk.value);
  const bool there = summed != decided_on_.end() && summed->second.first == version;
  Sum sum = there ? summed->second.second : sum_of(before, chunk, version);
  states.push_back(after(before, chunk, std::move(sum), version, setup_.gate ? &decision->second : nullptr));
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
  const State* state = find(snapshot.chunk, snapshot.state.version.value);
  bool same = state && same_bits(params, state->params) && snapshot.state.step == state->step &&
              snapshot.round.value == snapshot.state.version.value && snapshot.state.gate == state->gate;
  for (std::size_t s = 0; same && s < state->slots.size(); ++s) {
    same = same_bits(snapshot.state.slots[s].floats(), state->slots[s]);
  }
  if (same && pull_->is_delta()) same = same_bits(snapshot.state.estimate.floats(), state->visible);
  const std::string what = "the snapshot of " + at(snapshot.chunk, snapshot.state.version.value);
  if (!same) return broken(what + " is not what its nodes have made");
  if (snapshot.state.residuals.size() != (push_->keeps_residual() ? nodes_.size() : 0)) {
    broken(what + " has not every node's residual");
  }
  for (const NodeResidual& held : snapshot.state.residuals) {
    const std::vector<float> nothing(params.size());
    const std::span<const float> expected = held.node < state->residuals.size() ? state->residuals[held.node] : nothing;
    if (!std::ranges::equal(held.bytes(), std::as_bytes(expected))) {
      broken(what + " has another residual of node " + std::to_string(held.node) + " of the view than its own");
    }
  }
}

bool MembersJudge::restored(ChunkIndex chunk, const ChunkState& saved) {
  const State* state = find(chunk, saved.version.value);
  const bool same = state && same_bits(saved.params.floats(), state->params) && saved.step == state->step &&
                    saved.gate == state->gate &&
                    (!pull_->is_delta() || same_bits(saved.estimate.floats(), state->visible));
  if (!same) {
    broken("a server begins with " + at(chunk, saved.version.value) +
           " of its store, which is not what the rounds up to there have made");
  }
  if (!same || !push_->keeps_residual()) return false;
  auto begun = std::make_shared<State>(*state);
  begun->residuals.assign(nodes_.size(), std::vector<float>(saved.params.floats().size()));
  const bool others = saved.nodes != nodes_.size();
  Residuals all;
  for (const NodeResidual& residual : saved.residuals) {
    std::vector<float>& values = all.emplace_back(saved.params.floats().size());
    std::memcpy(values.data(), residual.bytes().data(), residual.bytes().size());
    if (!others) begun->residuals[residual.node] = values;
  }
  if (others && !all.empty()) begun->residuals.front() = add_in_tree_order(std::move(all));
  history_[chunk.value][saved.version.value] = std::move(begun);
  return others;
}

}  // namespace tributary::sim
