#include "server/shard/shard_gate.h"

#include "common/config/gate_rules.h"
#include "common/math/fused_step.h"

namespace tributary {

ShardGate::ShardGate(ShardChunks& chunks) : chunks_(chunks), sums_(chunks.all().size()) {
  for (ShardChunk& chunk : chunks_.all()) restored(chunk);
}

void ShardGate::end_view() {
  for (Sum& sum : sums_) sum = {.before = sum.before};
  facts_round_ = {};
  facts_there_ = 0;
}

void ShardGate::restored(ShardChunk& chunk) {
  if (chunk.state.gate.known()) {
    note(Round(chunk.state.version.value), chunk.state.gate);
  } else {
    chunk.state.gate = first_gate_state(chunks_.job().plan().config.gate);
  }
}

std::optional<GateDecision> ShardGate::pass(ShardChunk& chunk, ShardStep& step) {
  const Round open = open_round(chunk);
  Sum& sum = sums_[chunk.position];
  const GateDecision* known = decision_for(chunk);
  // A known decision may be about other nodes' pushes of that round. Whether these are finite is not known yet.
  if ((!known || known->applies()) && sum.of != open) {
    if (!sum_up(chunk, step)) return std::nullopt;
    if (!known) {
      if (open > facts_round_) {
        facts_round_ = open;
        facts_there_ = 0;
      }
      if (open == facts_round_) ++facts_there_;
      if (facts_there_ == chunks_.all().size()) send_facts();
    }
  }
  if (!known) return std::nullopt;
  if (!known->applies() || !sum.facts.finite) step.weight = 0;
  if (step.weight != 0) {
    step.scale = gate_scale(*known, step.weight);
    step.frames = {&sum.frame, 1};
    step.encoding = &encoding_for(EncodingId::kFp32);
  }
  return *known;
}

// Returns the decision about the chunk's open round if it is known: from the pushes (a round that this server lost) or
// from the coordinator or other chunks.
const GateDecision* ShardGate::decision_for(const ShardChunk& chunk) const {
  for (const Contribution& push : chunk.round.pushes) {
    if (push.redo && push.gate.known()) return &push.gate;
  }
  return decided_round_ == open_round(chunk) ? &decided_ : nullptr;
}

// The frames become one sum, and go, but for residuals behind them. False, and nothing has changed, if the pool has no
// buffer for it.
bool ShardGate::sum_up(ShardChunk& chunk, const ShardStep& step) {
  Sum& sum = sums_[chunk.position];
  sum.facts = GateFacts{.sum_squares = 0.0, .weight = step.weight, .finite = true};
  if (step.weight != 0) {
    sum.values = chunks_.acquire(chunk.array_bytes());
    if (!sum.values) return false;
    FusedArgs args;
    args.elements = chunk.elements;
    args.frames = step.frames;
    args.push = &chunks_.push();
    fused_sum(args, sum.values.floats().data());
    sum.frame = {sum.values.data()};
    sum.facts = gate_facts(sum.values.floats(), step.weight);
  }
  const std::size_t frame_bytes = chunks_.push().bytes(chunk.elements);
  for (Contribution& push : chunk.round.pushes) {
    if (push.frame.bytes().size() > frame_bytes) {
      chunks_.shorten(push.frame.bytes().size() - chunk.array_bytes());
      push.frame.keep_last(chunk.array_bytes());
    } else {
      chunks_.let_go(push.frame.bytes().size());
      push.frame.reset();
    }
  }
  sum.of = open_round(chunk);
  return true;
}

void ShardGate::send_facts() {
  RoundFacts facts;
  facts.job = chunks_.job().view->job;
  facts.view = chunks_.job().view->view;
  facts.round = facts_round_;
  facts.before = chunks_.all().front().state.gate;
  for (const ShardChunk& chunk : chunks_.all()) facts.chunks.push_back({chunk.index, sums_[chunk.position].facts});
  chunks_.output().facts(facts);
}

void ShardGate::applied(ShardChunk& chunk, const GateDecision& decision) {
  note(open_round(chunk), decision);
  sums_[chunk.position] = {.before = chunk.state.gate};
  chunk.state.gate = decision;
}

void ShardGate::note(Round round, const GateDecision& decision) {
  if (round < decided_round_) return;
  decided_round_ = round;
  decided_ = decision;
}

bool ShardGate::decide(const RoundDecision& m) {
  if (chunks_.all().empty() || m.view != chunks_.job().view->view || !m.decision.known()) return false;
  if (m.round <= decided_round_ || m.round.value > chunks_.furthest().value + 1) return false;
  note(m.round, m.decision);
  return true;
}

std::optional<RoundFacts> ShardGate::decided() const {
  if (decided_round_.value == 0) return std::nullopt;
  RoundFacts known;
  known.job = chunks_.job().view->job;
  known.view = chunks_.job().view->view;
  known.round = decided_round_;
  known.decided = decided_;
  return known;
}

}  // namespace tributary
