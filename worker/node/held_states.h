// HeldStates: the states of a node's ranks after their last rounds (HeldState), for trainers that replace them. So a
// killed trainer costs no progress, although no snapshot has its round. Lives in the worker, from view to view.
//
// Large parts are memory that trainers made and share. The parts of states that were given for a snapshot (RankState)
// stay until the coordinator has had the time to fetch them, though the rank is rounds further then. All of them count
// against the worker's memory.
//
// Invariants: a rank has at most kRounds rounds, of which the newest kLargeRounds have large parts; a job has at most
// kMaxJobBytes without large parts; there are at most kMaxJobs jobs. A view that begins at a round leaves the states of
// that round.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "common/wire/messages.h"
#include "session/shared/kept_state.h"
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
  // A view of the job begins after this round. anew: without any held state, as for another id of the job or another
  // rank of this node in it.
  void begin(const std::string& job, JobId id, NodeRank node, Round round, bool anew, std::uint64_t now_ms);
  // Fills in the rounds and ranks of whole states that are held, for ranks whose states are not known.
  void describe(const std::string& job, JoinJob& join) const;
  // Returns a rank's held state of this round; null: there is none.
  const KeptState* of(const std::string& job, std::uint32_t local_rank, Round round) const;
  // Returns a large part of any rank of any job; null: no rank has it.
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
