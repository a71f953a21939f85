// ShardCore's part in the round gate: what a chunk does between its last frame and the decision about its round.
#include <new>

#include "common/assert.h"
#include "common/fused_step.h"
#include "common/gate_rules.h"
#include "common/schedule.h"
#include "server/shard_core.h"

namespace tributary {

// All frames of the open round are there. False if it is not applied yet.
bool ShardCore::pass_gate(Chunk& chunk) {
  const Round round(chunk.version.value + 1);
  if (const GateDecision* decision = decision_for(chunk)) {
    // It may be about other nodes' pushes of that round. Whether these are finite is not known yet.
    if (decision->applies() && chunk.facts_of != round && !take_facts(chunk)) return false;
    return apply_decided(chunk, *decision);
  }
  if (chunk.facts_of == round || !take_facts(chunk)) return false;
  if (round > facts_round_) {
    facts_round_ = round;
    facts_there_ = 0;
  }
  if (round == facts_round_) ++facts_there_;
  if (facts_there_ == chunks_.size()) send_facts();
  return false;
}

// What is known about the chunk's open round: its authors say it (a round that this server lost), or others have had
// it.
const GateDecision* ShardCore::decision_for(const Chunk& chunk) const {
  for (const Contribution& contribution : chunk.contributions) {
    if (contribution.redo && contribution.gate.known()) return &contribution.gate;
  }
  return decided_round_.value == chunk.version.value + 1 ? &decided_ : nullptr;
}

std::uint64_t ShardCore::weight_of(const Chunk& chunk) const {
  std::uint64_t weight = 0;
  for (const Contribution& contribution : chunk.contributions) weight += contribution.weight;
  return weight;
}

// The frames become one sum, and go. False, and nothing has changed, if the pool has no buffer for it.
bool ShardCore::take_facts(Chunk& chunk) {
  const std::uint64_t weight = weight_of(chunk);
  for (std::uint32_t node = 0; node < job_.view->nodes; ++node) {
    frames_[node] = frame_of(chunk.contributions[node]);
  }
  chunk.facts = GateFacts{.sum_squares = 0.0, .weight = weight, .finite = true};
  if (weight != 0) {
    chunk.sum = pool_.acquire(chunk.elements * sizeof(float));
    if (!chunk.sum) {
      ++stats_.starved;
      return false;
    }
    FusedArgs args;
    args.elements = chunk.elements;
    args.frames = frames_;
    args.push = push_.get();
    fused_sum(args, chunk.sum.floats().data());
    chunk.facts = gate_facts(chunk.sum.floats(), weight);
  }
  for (Contribution& contribution : chunk.contributions) {
    stats_.held_bytes -= contribution.frame.bytes().size();
    --stats_.held_frames;
    contribution.frame.reset();
  }
  chunk.facts_of = Round(chunk.version.value + 1);
  return true;
}

void ShardCore::send_facts() {
  RoundFacts facts;
  facts.job = job_.view->job;
  facts.view = job_.view->view;
  facts.round = facts_round_;
  facts.before = chunks_.front().gate;
  for (const Chunk& chunk : chunks_) facts.chunks.push_back({chunk.index, chunk.facts});
  output_.facts(facts);
}

bool ShardCore::apply_decided(Chunk& chunk, const GateDecision& decided) {
  const GateDecision decision = decided;  // it may lie in a contribution that is about to go
  const bool summed = chunk.facts_of.value == chunk.version.value + 1;
  const std::uint64_t weight = weight_of(chunk);
  for (std::uint32_t node = 0; node < job_.view->nodes; ++node) {
    frames_[node] = frame_of(chunk.contributions[node]);
  }
  const bool applies = weight != 0 && decision.applies() && chunk.facts.finite;
  if (!applies) {
    if (!answer_no_change(chunk)) return false;
  } else {
    Step step{frames_, weight, chunk.step + 1};
    step.scale = gate_scale(decision, weight);
    const PushFrame sum{summed ? chunk.sum.data() : nullptr};
    if (summed) {
      step.frames = {&sum, 1};
      step.encoding = &encoding_for(EncodingId::kFp32);
    }
    if (!apply(chunk, step)) return false;
  }
  chunk.gate_before = chunk.gate;
  chunk.gate = decision;
  chunk.sum = {};
  chunk.facts_of = {};
  note_decision(Round(chunk.version.value + 1), decision);
  finish_round(chunk);
  return true;
}

void ShardCore::note_decision(Round round, const GateDecision& decision) {
  if (round < decided_round_) return;
  decided_round_ = round;
  decided_ = decision;
}

void ShardCore::decide(const RoundDecision& m) {
  if (!job_.plan().has_gate() || chunks_.empty() || m.view != job_.view->view || !m.decision.known()) return;
  const bool open = m.round > decided_round_ && m.round.value <= max_version_.value + 1;
  if (!open) return;
  note_decision(m.round, m.decision);
  for (Chunk& chunk : chunks_) {
    if (chunk.version.value + 1 != m.round.value || chunk.arrived != job_.view->nodes) continue;
    try {
      complete(chunk);
    } catch (const std::bad_alloc&) {
      ++stats_.starved;  // the pushes' authors ask again
    }
  }
}

std::optional<RoundFacts> ShardCore::decided() const {
  if (!job_.plan().has_gate() || decided_round_.value == 0) return std::nullopt;
  RoundFacts known;
  known.job = job_.view->job;
  known.view = job_.view->view;
  known.round = decided_round_;
  known.decided = decided_;
  return known;
}

}  // namespace tributary
