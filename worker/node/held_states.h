// HeldStates: what the ranks of a node gave of their last rounds (HeldState), for whoever takes their place: a trainer
// that is killed costs nothing then, though no snapshot has its round. Pure. Lives in the worker, from view to view.
//
// Invariants: of a rank there are at most kRounds rounds; of a job at most kMaxJobBytes; of jobs at most kMaxJobs. A view
// that begins at a round leaves what is of that round.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "common/wire/messages.h"

namespace tributary {

class HeldStates {
 public:
  static constexpr std::size_t kRounds = kMaxHeldRounds;  // the open one, and those before it that a view may begin at
  static constexpr std::size_t kMaxJobBytes = 64u << 20, kMaxJobs = 256;
  static constexpr std::uint64_t kHoldMs = 600'000;  // without a view

  void hold(const std::string& job, std::uint32_t local_rank, const RankState& state, std::uint64_t now_ms);
  // A view of the job begins after this round; anew: with nothing that there is, as if the job has another id.
  void begin(const std::string& job, JobId id, Round round, bool anew, std::uint64_t now_ms);
  // Fills in what a rank gave last, for those of other nodes.
  void describe(const std::string& job, JoinJob& join) const;
  // The state that is held of a rank, or of the first that has one; empty: none.
  std::span<const std::byte> of(const std::string& job, std::uint32_t local_rank, Round round) const;
  std::span<const std::byte> first(const std::string& job, Round round) const;
  void in_use(const std::string& job, std::uint64_t now_ms);  // it does not age
  void tick(std::uint64_t now_ms);

 private:
  void forget_oldest();

  struct Held {
    JobId id;
    std::map<std::uint32_t, std::map<Round, std::vector<std::byte>>> ranks;
    std::size_t bytes = 0;
    std::uint64_t seen_ms = 0;
  };
  std::map<std::string, Held> jobs_;
};

}  // namespace tributary
