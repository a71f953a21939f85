#include "server/round_gate.h"

#include <algorithm>

#include "common/gate_rules.h"
#include "common/layer_steps.h"

namespace tributary {

RoundGate::RoundGate(GateConfig config, std::size_t chunks, std::size_t tensors)
    : config_(std::move(config)), tensors_(tensors), facts_(chunks), there_(chunks, false) {}

RoundDecision RoundGate::decision(const RoundFacts& m) const {
  RoundDecision decision{m.job, m.view, decided_round_, m.phase, decided_, {}};
  if (m.phase == GatePhase::kUpdate) decision.ratios = ratios_;
  return decision;
}

// Another round than the one that was being gathered begins with nothing.
bool RoundGate::begin(Round& gathered, Round round) {
  if (gathered == round) return false;
  gathered = round;
  count_ = 0;
  there_.assign(there_.size(), false);
  return true;
}

Result<RoundGate::Reply> RoundGate::on_facts(const RoundFacts& m) {
  const bool ours =
      std::ranges::all_of(m.chunks, [&](const ChunkFacts& chunk) { return chunk.chunk.value < facts_.size(); }) &&
      std::ranges::all_of(m.norms, [&](const TensorNorms& part) { return part.tensor < tensors_; });
  if (!ours) {
    return fail(ErrorCode::kMalformed, "facts of round " + std::to_string(m.round.value) +
                                           " about chunks or tensors that job " + std::to_string(m.job.value) +
                                           " does not have");
  }
  if (m.decided.known()) {
    if (m.round <= decided_round_) return Reply{};
    decided_round_ = m.round;
    decided_ = m.decided;
    // Lanes that sent their facts of that round before this one told of it wait for the word.
    const bool wanted = round_ == m.round && count_ != 0;
    return wanted ? Reply{decision(m), true} : Reply{};
  }
  if (m.phase == GatePhase::kUpdate) return on_norms(m);
  if (m.round == decided_round_) return Reply{decision(m), false};
  // Of a round before: whoever sent it has long heard of it. (Nobody can open a round before he has the last one.)
  if (m.round < decided_round_ || m.round < round_) return Reply{};
  begin(round_, m.round);
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

Result<RoundGate::Reply> RoundGate::on_norms(const RoundFacts& m) {
  if (m.round != decided_round_ || !decided_.applies()) return Reply{};
  if (m.round == ratios_round_) return Reply{decision(m), false};
  if (begin(norms_round_, m.round)) norms_.clear();
  std::vector<bool> fresh(there_.size(), false);
  for (const ChunkFacts& chunk : m.chunks) {
    if (there_[chunk.chunk.value]) continue;
    there_[chunk.chunk.value] = fresh[chunk.chunk.value] = true;
    ++count_;
  }
  std::ranges::copy_if(m.norms, std::back_inserter(norms_), [&](const TensorNorms& part) {
    return part.chunk.value < fresh.size() && fresh[part.chunk.value];
  });
  if (count_ != facts_.size()) return Reply{};
  ratios_ = trust_ratios(tensors_, std::move(norms_));
  norms_.clear();
  ratios_round_ = m.round;
  return Reply{decision(m), true};
}

}  // namespace tributary
