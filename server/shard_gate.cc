// ShardCore's part in the round gate: what a chunk does between its last frame and the decision about its round.
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
  if (decided_round_.value != chunk.version.value + 1) return nullptr;
  const bool waits = job_.optimizer->layerwise() && decided_.applies() && ratios_of_ != decided_round_;
  return waits ? nullptr : &decided_;
}

std::uint64_t ShardCore::weight_of(const Chunk& chunk) const {
  std::uint64_t weight = 0;
  for (const Contribution& contribution : chunk.contributions) weight += contribution.weight;
  return weight;
}

// The frames become one sum, and go. False, and nothing has changed, if the pool has no buffer for it.
bool ShardCore::take_facts(Chunk& chunk) {
  const std::uint64_t weight = weight_of(chunk);
  for (std::uint32_t node = 0; node < job_.nodes; ++node) {
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
  facts.job = job_.job;
  facts.view = job_.view;
  facts.round = facts_round_;
  facts.before = chunks_.front().gate;
  for (const Chunk& chunk : chunks_) facts.chunks.push_back({chunk.index, chunk.facts});
  output_.facts(facts);
}

bool ShardCore::apply_decided(Chunk& chunk, const GateDecision& decided) {
  const GateDecision decision = decided;  // it may lie in a contribution that is about to go
  const bool summed = chunk.facts_of.value == chunk.version.value + 1;
  const std::uint64_t weight = weight_of(chunk);
  for (std::uint32_t node = 0; node < job_.nodes; ++node) {
    frames_[node] = frame_of(chunk.contributions[node]);
  }
  LoggedStep log;
  if (log_pool_ && !begin_log(chunk, log)) return false;
  const bool applies = weight != 0 && decision.applies() && chunk.facts.finite;
  if (!applies) {
    if (!answer_no_change(chunk)) return false;
  } else {
    Step step{frames_, weight, chunk.step + 1};
    step.scale = gate_scale(decision, weight);
    step.by_layers = job_.optimizer->layerwise();
    const PushFrame sum{summed ? chunk.sum.data() : nullptr};
    if (summed) {
      step.frames = {&sum, 1};
      step.encoding = &encoding_for(EncodingId::kFp32);
    }
    if (log_pool_) step.log = &log;
    if (!apply(chunk, step)) return false;
  }
  if (log_pool_) {
    log.gate = decision;
    end_log(chunk, std::move(log), applies);
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
  if (!job_.gate || chunks_.empty() || m.view != job_.view || !m.decision.known()) return;
  const bool layerwise = job_.optimizer->layerwise();
  if (m.phase == GatePhase::kGradient) {
    const bool open = m.round > decided_round_ && m.round.value <= max_version_.value + 1;
    if (!open) return;
    note_decision(m.round, m.decision);
    if (layerwise && m.decision.applies()) return send_norms();
  } else {
    const bool fits = layerwise && m.round == decided_round_ && m.ratios.size() == job_.layout->tensors().size();
    if (!fits || ratios_of_ == m.round) return;
    ratios_ = m.ratios;
    ratios_of_ = m.round;
  }
  for (Chunk& chunk : chunks_) {
    if (chunk.version.value + 1 == m.round.value && chunk.arrived == job_.nodes) complete_or_stall(chunk);
  }
}

// Every chunk has the sum of the round that was decided about: none goes on without the ratios.
void ShardCore::send_norms() {
  RoundFacts facts;
  facts.job = job_.job;
  facts.view = job_.view;
  facts.round = decided_round_;
  facts.phase = GatePhase::kUpdate;
  facts.before = chunks_.front().gate;
  const kernels::Optimizer& optimizer = *job_.optimizer;
  for (const Chunk& chunk : chunks_) {
    facts.chunks.push_back({chunk.index, {}});
    if (!chunk.sum) continue;
    LayerArgs args;
    args.chunk = chunk.index;
    args.elements = chunk.elements;
    args.parts = chunk.parts;
    args.sum = chunk.sum.floats().data();
    args.scale = gate_scale(decided_, weight_of(chunk));
    args.params = chunk.params.floats().data();
    for (int s = 0; s < optimizer.slots(); ++s) args.state[s] = chunk.slots[s].floats().data();
    const double lr = scheduled_lr(job_.schedule, job_.lr, chunk.step + 1);
    add_layer_norms(optimizer, optimizer.scalars(chunk.step + 1, lr), args, facts.norms);
  }
  output_.facts(facts);
}

std::optional<RoundFacts> ShardCore::decided() const {
  if (!job_.gate || decided_round_.value == 0) return std::nullopt;
  RoundFacts known;
  known.job = job_.job;
  known.view = job_.view;
  known.round = decided_round_;
  known.decided = decided_;
  return known;
}

}  // namespace tributary
