// AwaitedState: a snapshot that all servers have written, and that waits for a rank's state of its round
// (membership.on_state_lost = "rewind"), with its large part. The wait is over when no bytes of it come any more. Pure.
#pragma once

#include <cstdint>
#include <string>

#include "common/base/patience.h"
#include "server/coordinator/job/job_ledger.h"

namespace tributary {

class AwaitedState {
 public:
  static constexpr std::uint64_t kPatienceMs = 60'000;

  AwaitedState(Round of, std::uint64_t now_ms) : round(of), patience_(kPatienceMs, now_ms) {}

  // It does not come.
  bool over(const JobLedger& ledger, std::uint64_t now_ms) { return patience_.over(ledger.keeper.taken(), now_ms); }
  std::string why() const {
    return "no rank's whole state of round " + std::to_string(round.value) +
           " came, and with membership.on_state_lost = \"rewind\" a snapshot has one (do the trainers keep one? does "
           "server 0's store have room?)";
  }

  const Round round;

 private:
  Patience patience_;
};

}  // namespace tributary
