// RoundGate: the decider of a job's rounds, in a view. Pure: facts of chunks in, decisions out. Lives in the
// coordinator.
//
// It decides about a round when it has the facts of every chunk. A round can be open on some chunks only: after a loss
// some are a round ahead. Their servers report the decision (RoundFacts::decided), and the other servers get it as
// reply; no round is decided twice. Facts carry the decision of the round before, so no state is kept between views.
//
// Facts may come twice, late and in any order, but of no round beyond the next one: else one server could decide for
// all, or keep the others' facts out. Bounded: facts of one round, and the newest decision.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/config/config.h"
#include "common/wire/messages.h"

namespace tributary {

class RoundGate {
 public:
  // start: where the view begins.
  RoundGate(GateConfig config, std::size_t chunks, Round start);

  struct Reply {
    std::optional<RoundDecision> decision;
    bool for_all = false;  // it was made now and goes to every server; else only to the sender of the facts
  };
  // kMalformed: facts of chunks that the job does not have, or of a round that cannot be open yet.
  Result<Reply> on_facts(const RoundFacts& facts);

  // The newest decision; round 0: none yet.
  const GateDecision& decided() const { return decided_; }

 private:
  RoundDecision decision(const RoundFacts& facts) const;

  GateConfig config_;
  Round start_;
  std::vector<GateFacts> facts_;  // by chunk, of round_
  std::vector<bool> there_;
  std::size_t count_ = 0;
  Round round_;  // whose facts are being gathered
  Round decided_round_;
  GateDecision decided_;
};

}  // namespace tributary
