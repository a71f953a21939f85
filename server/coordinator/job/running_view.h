// RunningView: a view of a job while it trains: its snapshots, the nodes that lag, and whether its end was
// requested. Pure. The job in the coordinator owns it as its phase, and ends it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/patience.h"
#include "server/coordinator/job/awaited_state.h"
#include "server/coordinator/job/job_ledger.h"
#include "server/coordinator/job/view_addresses.h"
#include "server/coordinator/round/snapshot_schedule.h"
#include "server/coordinator/round/stall_watch.h"
#include "server/coordinator/round/straggler_watch.h"

namespace tributary {

class RunningView {
 public:
  RunningView(JobLedger& ledger, JobView opened, std::uint64_t now_ms);

  // ---- What its peers say ----
  void note(const Peers::Worker& worker, const NodePace& pace);  // of a member
  void has_memory(std::uint16_t server) { snapshots_.has_memory(server); }
  // An address or key that other nodes need to connect to this worker's node.
  void on(const Peers::Worker& worker, const PeerAddress& m);  // of an all-reduce job
  void on(std::uint16_t server, const SnapshotDone& m, std::uint64_t now_ms);
  // The part of a snapshot that is not committed is lost after it was written.
  void lose_written(std::uint16_t server, const SnapshotDone& m, std::uint64_t now_ms);
  // The state that a rank keeps, of this view.
  void on(const Peers::Worker& worker, const NodeRankState& m);
  // Values that ranks give each other. An error to all of them may end the view.
  void on(const Peers::Worker& worker, const RankValues& m, std::uint64_t now_ms);
  // A copy that a snapshot may wait for is there, or cannot be had.
  void look_for_copies(std::uint64_t now_ms);
  // State that a snapshot may wait for has arrived.
  void look_for_state(std::uint64_t now_ms);
  // Some nodes have finished and push no more, and the others did not follow: where it is to stop.
  struct LeftBehind {
    Round round;
    std::string why;
  };
  std::optional<LeftBehind> tick(std::uint64_t now_ms);
  void welcome(std::uint32_t node) const;
  // Repeats messages to a server, or a worker, that may have missed them.
  void tell_again(const Peers::Server& server) const;
  void tell_again(std::uint32_t node, const JobMember& member) const;

  // ---- Its end ----
  // Its nodes are asked to stop after their round: after the view's first one at the earliest, if servers have a part
  // of that already. Else what it ends with would be no state of one round.
  void request_stop(const std::string& reason);
  // One node alone is asked to stop, and the others continue. The same limit holds.
  void request_stop_of(std::uint32_t node);
  bool stop_requested() const { return stop_requested_; }
  // May the others continue when this node leaves?
  bool goes_on_without(std::uint32_t node) const;
  // May a node have a part in the next view of an elastic job, and is this one to end for it? kUnavailable: not now.
  Status lets_in(const JoinJob& m, const JobConfig& config);
  // The round that a stop is known by, when a node has left after `left` and has all answers of it.
  Round stop_round(Round left) const;

  // The chunks are to go to other servers: has a snapshot been written since that was seen?
  bool may_change_servers() const { return change_ready_ && !ends(); }
  // Somebody asked for its end, or has left.
  bool ends() const { return stop_requested_ || one_that_left(view.members); }

  std::optional<Round> snapshot() const { return snapshots_.under_way(); }
  std::vector<std::uint16_t> snapshot_waits() const;  // servers that have still to write it
  std::vector<StragglerWatch::Node> paces() const { return stragglers_.nodes(); }
  // Why no round gets done, as of the last tick; none: they do.
  const std::optional<StallWatch::Stall>& stall() const { return stall_; }

  JobView view;
  std::optional<SnapshotDone> node_zero_kept;  // all-reduce: node 0's report of its last checkpoint

 private:
  // For what ranks keep of the round: one whole state, if there must be one, and for a checkpoint what is on its way.
  bool waits(Round round, std::uint64_t now_ms);
  bool look_for_change(std::uint64_t now_ms);
  bool saves() const { return ledger_.context.checkpoints.awaits_snapshot(ledger_.config().name); }
  bool node_waits() const { return joins_after_ && ledger_.record().committed <= *joins_after_; }
  void commit_with_state(Round round, std::uint64_t now_ms);
  void commit(Round round, std::uint64_t now_ms);
  void copy_later(Round round, std::uint64_t now_ms);
  void copied_next();
  void drop_written(Round round);
  Round newest_written() const;
  void look_for_stall(std::uint64_t now_ms);
  void tell_addresses();
  std::optional<LeftBehind> left_behind(const LeaveJob& first, std::uint64_t now_ms);
  void fail_values(const Error& why);
  void look_at_first_round(std::uint64_t now_ms);
  void tell_stop(std::uint32_t node, const JobMember& member) const;
  // A node that has not left, and has begun a round after this one.
  std::optional<std::uint32_t> node_beyond(Round round) const;
  StallWatch::Facts facts() const;

  JobLedger& ledger_;
  SnapshotSchedule snapshots_;
  // Snapshots that all servers have written, and that are not committed: the copies of the first are on their way. The
  // other one is the newest.
  std::optional<Round> copying_, written_;
  std::optional<AwaitedState> awaited_;  // for the first, or for the one under way
  bool to_checkpoint_ = false;           // that goes into a checkpoint, from memory
  StragglerWatch stragglers_;
  std::optional<StallWatch::Stall> stall_;
  ViewAddresses addresses_;
  bool whole_ = true;  // servers have all of one round
  Patience whole_answers_;
  bool stop_requested_ = false;
  std::optional<Round> joins_after_;                // a node wants to join, after a later snapshot than this
  std::optional<Round> change_after_;               // likewise the chunks are to go to other servers
  std::optional<std::uint64_t> change_written_ms_;  // that snapshot is there, and
  bool change_ready_ = false;                       // what ranks keep with it is, too
  // Some nodes have finished. Others not yet, which is logged then; or not, and have begun another round.
  std::optional<std::uint64_t> lagging_told_ms_;
  std::optional<Patience> beyond_;
};

}  // namespace tributary
