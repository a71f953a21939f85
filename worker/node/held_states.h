// HeldStates: what the ranks of a node gave of their last rounds (HeldState), for whoever takes their place: a trainer
// that is killed costs nothing then, though no snapshot has its round. Lives in the worker, from view to view.
//
// Large parts are memory that trainers made and share. Those of states that were given for a snapshot (RankState) stay
// until the coordinator has had the time to fetch them, though the rank is rounds further then. All of it counts
// against the worker's memory.
//
// Invariants: of a rank there are at most kRounds rounds, of which the newest kLargeRounds have large parts; of a job
// at most kMaxJobBytes beside large parts; of jobs at most kMaxJobs. A view that begins at a round leaves what is of
// that round.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "common/wire/messages.h"
#include "session/kept_state.h"
#include "worker/node/job.h"

namespace tributary {

class HeldStates {
 public:
  static constexpr std::size_t kRounds = kMaxHeldRounds;  // the open one, and those before it that a view may begin at
  static constexpr std::size_t kLargeRounds = 2;          // held, and as many given
  static constexpr std::size_t kMaxJobBytes = 64u << 20, kMaxJobs = 256;
  static constexpr std::uint64_t kHoldMs = 600'000;  // without a view

  explicit HeldStates(std::shared_ptr<MemoryBudget> budget) : budget_(std::move(budget)) {}

  // kLimit: there is no room for it. The rank's rounds before may be held still.
  Status hold(const std::string& job, std::uint32_t local_rank, KeptState state, std::uint64_t now_ms);
  // The rank gave the state of this round to the coordinator, which may fetch its large part.
  void given(const std::string& job, std::uint32_t local_rank, Round round);
  // A view of the job begins after this round; anew: with nothing that there is, as if the job has another id, or this
  // node another rank in it.
  void begin(const std::string& job, JobId id, NodeRank node, Round round, bool anew, std::uint64_t now_ms);
  // Fills in which whole states there are: for those of whom nothing is known.
  void describe(const std::string& job, JoinJob& join) const;
  // What is held of a rank; null: nothing.
  const KeptState* of(const std::string& job, std::uint32_t local_rank, Round round) const;
  // Of any rank of any job; null: nobody has it.
  std::shared_ptr<const SealedBytes> large(const LargePart& large) const;
  void in_use(const std::string& job, std::uint64_t now_ms);  // it does not age
  void tick(std::uint64_t now_ms);

 private:
  void forget_oldest();

  struct Counted {
    KeptState state;
    std::shared_ptr<const BudgetShare> share;
  };
  struct Rank {
    std::map<Round, Counted> rounds;
    std::map<Round, Counted> given;  // without the bytes: for their large parts
  };
  struct Held {
    JobId id;
    NodeRank node;
    std::map<std::uint32_t, Rank> ranks;
    std::size_t bytes = 0;
    std::uint64_t seen_ms = 0;
  };
  const std::shared_ptr<MemoryBudget> budget_;
  std::map<std::string, Held> jobs_;
};

}  // namespace tributary
