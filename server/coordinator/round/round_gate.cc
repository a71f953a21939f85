#include "server/coordinator/round/round_gate.h"

#include <algorithm>

#include "common/config/gate_rules.h"

namespace tributary {

RoundGate::RoundGate(GateConfig config, std::size_t chunks, Round start)
    : config_(std::move(config)), start_(start), facts_(chunks), there_(chunks, false) {}

RoundDecision RoundGate::decision(const RoundFacts& m) const {
  return {m.job, m.view, decided_round_, decided_};
}

Result<RoundGate::Reply> RoundGate::on_facts(const RoundFacts& m) {
  const bool ours =
      std::ranges::all_of(m.chunks, [&](const ChunkFacts& chunk) { return chunk.chunk.value < facts_.size(); });
  if (!ours) {
    return fail(ErrorCode::kMalformed, "facts of round " + std::to_string(m.round.value) + " about chunks that job " +
                                           std::to_string(m.job.value) + " does not have");
  }
  // Rounds open when the last one is decided; some chunks may be a round beyond the view's start.
  const Round last = std::max(start_, decided_round_);
  if (m.round > last && m.round.value - last.value > 1) {
    return fail(ErrorCode::kMalformed, "facts of round " + std::to_string(m.round.value) + " of job " +
                                           std::to_string(m.job.value) + ", where round " +
                                           std::to_string(last.value + 1) + " is the next to be decided");
  }
  if (m.decided.known()) {
    if (m.round <= decided_round_) return Reply{};
    decided_round_ = m.round;
    decided_ = m.decided;
    // Lanes that sent their facts of that round before this report wait for the decision.
    const bool wanted = round_ == m.round && count_ != 0;
    return wanted ? Reply{decision(m), true} : Reply{};
  }
  if (m.round == decided_round_) return Reply{decision(m), false};
  // An earlier round's sender has its decision already: no server opens a round before it has decided the last one.
  if (m.round < decided_round_ || m.round < round_) return Reply{};
  if (round_ != m.round) {  // another round than the one that was being gathered begins with nothing
    round_ = m.round;
    count_ = 0;
    there_.assign(there_.size(), false);
  }
  for (const ChunkFacts& chunk : m.chunks) {
    if (there_[chunk.chunk.value]) continue;
    there_[chunk.chunk.value] = true;
    facts_[chunk.chunk.value] = chunk.facts;
    ++count_;
  }
  if (count_ != facts_.size()) return Reply{};
  decided_ = decide_gate(config_, m.before, facts_);
  decided_round_ = m.round;
  return Reply{decision(m), true};
}

}  // namespace tributary
