// PendingRankStates: what trainers keep with the state of a job, beside the parameters (Session::keep), until it is
// committed. Pure. Lives in the coordinator with its job, from view to view.
//
// A rank gives it for the round that a snapshot is named for, and for the round that it stops after; it is committed
// with the snapshot, into the job's record, and comes back when a view begins at that round. A view that begins where
// servers were, and no snapshot is, has what ranks gave for that round in the view before. A state with a large part
// waits until that is in the store, also after its snapshot is committed.
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
#include "server/coordinator/job_record.h"

namespace tributary {

class PendingRankStates {
 public:
  // A node's ranks, and who may give what they keep: also after it has left the view.
  struct Holder {
    std::uint64_t worker = 0;  // its incarnation
    std::uint32_t ranks = 0;
  };

  // A view of these nodes opens at this round; anew: with nothing that there is. committed: what was given for that
  // snapshot may still wait for its large parts.
  void begin_view(std::map<std::uint32_t, Holder> holders, Round start, bool anew, std::optional<Round> committed);
  // Whether it is kept.
  bool give(std::uint64_t worker, const NodeRankState& m);
  // Is there a large part?
  using There = std::function<bool(const LargePart&)>;
  // Into the record, which is about to be saved with the snapshot of this round. Sentences: what is left out.
  std::vector<std::string> commit(JobRecord& record, Round round, const There& there);
  // Is there something that commit() would take?
  bool can_commit(Round round, const There& there) const;

  // What a node's ranks kept of the round that the view begins at, for its welcome. committed: of the record's, then of
  // what was given for `start`; none: of that alone.
  void fill_in(JobWelcome& welcome, std::uint32_t node, const RankStates* committed, Round start,
               const There& there) const;
  // What the first rank kept of it of which that is whole, and there; empty: none did.
  std::vector<std::byte> first_whole(const RankStates* committed, Round start, const There& there) const;
  // Large parts of what was given for this round, or for any.
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
