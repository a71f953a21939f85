// PendingRankStates: the state that trainers keep next to a job's parameters (Session::keep), until it is committed.
// Pure. Lives in the coordinator with its job, from view to view.
//
// A rank gives its state for the round of a named snapshot, and for the round that the rank stops after. The state is
// committed with the snapshot, into the job's record, and returned when a view begins at that round. If a view begins
// at a round of the servers without a snapshot, ranks get the states that they gave in the view before. A state with a
// large part waits until that part is in the store, also after its snapshot is committed.
//
// Invariants: a state is kept only of a worker's own ranks; of rounds after the committed one; of few rounds a rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/wire/messages.h"
#include "server/coordinator/cluster/job_record.h"

namespace tributary {

class PendingRankStates {
 public:
  // A node's ranks, and the worker that may give their states, even after it has left the view.
  struct Holder {
    std::uint64_t worker = 0;  // its incarnation
    std::uint32_t ranks = 0;
  };

  // A view of these nodes opens at this round. anew: without any state. committed: states for that snapshot may still
  // wait for their large parts.
  void begin_view(std::map<std::uint32_t, Holder> holders, Round start, bool anew, std::optional<Round> committed);
  // Takes a rank's state. Returns whether it is kept.
  bool give(std::uint64_t worker, const NodeRankState& m);
  // Is there a large part?
  using There = std::function<bool(const LargePart&)>;
  // Moves states into the record, which is about to be saved with the snapshot of this round. Returns sentences about
  // states that are left out.
  std::vector<std::string> commit(JobRecord& record, Round round, const There& there);
  // States of this round that wait, those whose large parts are there.
  RankStates of(Round round, const There& there) const;
  // Is there something that commit() would take?
  bool can_commit(Round round, const There& there) const;

  // Fills in a node's states of the round `start` that the view begins at, for its welcome. committed: the record's,
  // which go before states that wait; null: only states that wait.
  void fill_in(JobWelcome& welcome, std::uint32_t node, const RankStates* committed, Round start,
               const There& there) const;
  // Returns the state of the first rank whose state is whole and has its large part; empty: no rank's is.
  std::vector<std::byte> first_whole(const RankStates* committed, Round start, const There& there) const;
  // Returns the large parts of states that wait, of this round or of any.
  std::set<LargePart> large_parts(std::optional<Round> round) const;
  // Ranks, and how many of them have something in a snapshot.
  struct Coverage {
    std::size_t ranks = 0, there = 0;
  };
  Coverage coverage(const RankStates& committed) const;

 private:
  std::map<std::uint32_t, Holder> holders_;  // by node
  std::map<RankKey, std::map<Round, std::vector<std::byte>>> states_;
};

}  // namespace tributary
