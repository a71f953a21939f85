// JobRecordKeeper: what lasts of a job: its record, the older trainings of its name that it took the place of, and what
// its ranks keep beside the parameters until that is committed. Pure. Owned by the job in the coordinator.
//
// Saving takes as long as server 0's disk takes: it is ordered, and saved() or view_saved() says how it ended. One order
// of a job is under way at a time; what changes meanwhile is saved after it.
//
// Invariants: a view's number is saved before anybody hears of it. A snapshot counts as committed only when the record that
// says so is saved: until then no earlier state may be dropped. (The snapshots themselves are
// durable: they are found after a restart.) The large parts that a record names are in the store before it is saved,
// and until no saved record names them.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "server/coordinator/job/job_members.h"
#include "server/coordinator/job/pending_rank_states.h"
#include "server/coordinator/job/state_home.h"
#include "server/coordinator/job/view_start.h"
#include "server/coordinator/orders/coordinator_context.h"

namespace tributary {

class JobRecordKeeper {
 public:
  JobRecordKeeper(CoordinatorContext& context, const std::string& name, JobRecord record, std::set<JobId> older);

  const JobRecord& record() const { return record_; }
  bool saved() const { return state_ == State::kSaved; }
  bool failing() const { return state_ == State::kFailing; }
  // Is a record of this job, or of any, being saved?
  bool saves(JobId id) const { return saving_ && (opening_ ? opening_->job : record_.job) == id; }
  bool saves() const { return saving_; }
  // Saved, and everybody was told of its snapshot.
  bool told() const { return !commit_untold_; }
  // Its own and those of older trainings.
  std::set<JobId> ids() const;
  bool knows(JobId id) const { return id == record_.job || older_.contains(id) || (opening_ && id == opening_->job); }

  // ---- A view opens, step by step ----
  // That the state on disks is of this round; initialised: it is a snapshot of the servers'.
  void set_committed(Round round, bool initialised);
  // A training that never got to a snapshot and has been changed is another training, whatever is left of it in the
  // stores: is this join of one? Then its record begins.
  bool begin_another_training(const JoinJob& join);
  // record() is that of the view from here on, until it is ordered to be saved or given up. REQUIRES: !saves().
  void begin_view(JobId fresh_id, const JobMembers& members);
  // Nothing of before counts, whatever stores have of it: then the job has another id from this view on.
  void begin_anew(JobId fresh_id);
  void give_view_up();
  // Has nobody state of the job's name that the record does not know? REQUIRES: there is nothing to go on from.
  Status may_begin_anew() const;
  // record() is what it was before begin_view() until the view's is saved.
  void save_view(const ViewStart& start, const JobMembers& members, DealtChunks chunks);
  bool saves_view() const { return opening_.has_value(); }
  // opens: it is still wanted.
  void view_saved(bool saved, bool opens);
  // REQUIRES: the view's record is saved.
  void view_opens(const ViewStart& start, const JobMembers& members);
  void view_runs(const ViewStart& start);

  // ---- While it is open ----
  // Now with the snapshot of this round, which is told when the record is saved.
  void commit(Round round, bool finished);
  // The states that ranks have given for this round; and the record as it would be with a snapshot of the round.
  RankStates rank_states_at(Round round) const;
  JobRecord record_at(Round round) const;
  void tick(std::uint64_t now_ms);
  // An ordered save has ended. Returns whether a snapshot is to be announced now.
  bool saved(const Status& status, std::uint64_t now_ms);
  // Takes a rank's kept state. The view may have just ended. A later one may have gone back.
  void keep(std::uint64_t worker, const NodeRankState& m, std::uint64_t now_ms);
  // A large part is there: what waited for it is committed.
  void part_is_there();
  // Adds the states of the node's ranks to its welcome.
  void rank_states(JobWelcome& welcome, std::uint32_t node, const ViewStart& start) const;
  // The whole state of one rank where such a view begins, with its large part; empty: nobody gave one.
  std::vector<std::byte> whole_state(const ViewStart& start) const;
  // Does anybody's whole state belong to the snapshot of this round, or would, if that were committed?
  bool has_whole_state(Round round) const { return !first_whole(round).empty(); }
  // Asked when the states that ranks gave for this round are to be there soon: is one of them on its way?
  bool fetch(Round round, std::uint64_t now_ms);
  // A server that has a copy of what the record names, and server 0's store lacks: "server 1"; none: no server has.
  std::optional<std::string> copy_of_state() const;
  // Grows while something of that comes.
  std::uint64_t taken() const { return given_ + context_.parts.taken(); }
  // A part that ranks of this view may still lack.
  void hold(const LargePart& large) { held_ = large; }
  // The job stops cleanly: the next time it begins like a new one.
  void stop(const std::string& reason);
  // All-reduce: node 0 has the state that it ended with.
  void end(Round round, bool finished);

  // Older trainings' records stay until no server says any more that it has something of them: else that would be a
  // stranger's. (Servers say it when they say hello.)
  bool has_older() const { return !older_.empty(); }
  bool has_older_on(std::uint16_t server) const;  // it has their snapshots, and has not dropped them
  void drop_older(bool again);                    // again: also to servers that were told
  void removed(JobId older) { older_.erase(older); }

 private:
  // kUnsaved: it has changed; kFailing: saving it failed, and that was logged.
  enum class State { kSaved, kUnsaved, kFailing };

  std::string in_words() const { return "job '" + name_ + "'"; }
  void save();
  void commit_rank_states(Round round);
  std::vector<std::byte> first_whole(Round round) const;
  PendingRankStates::There there() const;
  // Large parts that no record, no rank of the view and no save names go.
  void drop_parts();

  CoordinatorContext& context_;
  const std::string name_;
  JobRecord record_;
  std::optional<JobRecord> before_;   // while a view's record is made: the one before it
  std::optional<JobRecord> opening_;  // that record, while it is being saved
  std::uint64_t edition_ = 0;         // of the newest that was to be saved
  ViewId tried_;                      // of the newest of those: a disk that failed may have it
  std::set<JobId> older_;
  std::set<std::pair<std::uint64_t, JobId>> dropping_;  // servers, by incarnation, that were told to drop them
  ViewNodes began_;  // record_.view_nodes of the last view that was not given up opening
  PendingRankStates rank_states_;
  Round start_;              // of the view
  std::uint64_t given_ = 0;  // states, by ranks
  LargePart held_;
  State state_ = State::kSaved;
  bool saving_ = false;   // an order is under way
  bool changed_ = false;  // since it was given
  std::uint64_t save_due_ms_ = 0;
  bool commit_untold_ = false;
};

}  // namespace tributary
