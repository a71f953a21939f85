// CoordinatedJob: a job in the coordinator: its phases (server/coordinator/job/job_phases.h), and when it goes from one to
// the next (docs/membership.md). Pure: what its peers say and ticks in, messages out. CoordinatorCore owns it and opens
// its views.
//
// Losing somebody while the shards load goes back to gathering: no worker has heard of that view yet. Losing a member
// of a running view ends it with StopKind::kRestart, and everybody may attach again. Views of a job id only grow, so
// messages of an ended view are refused everywhere.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "server/coordinator/job/job_ledger.h"
#include "server/coordinator/job/job_phases.h"

namespace tributary {

struct JobStatus {
  JobFacts record;
  std::size_t chunks = 0;
  std::string name, mode;
  bool recorded = true;  // else what is saved of it is older
  std::string phase;     // idle, gathering, opening, running, stopping
  std::uint32_t nodes = 0, joined = 0;
  std::string waiting_for;  // before it runs: who is missing, or not ready yet
  std::string deal;         // its chunks go to other servers: how far that is; empty: they do not
  Version min_version, max_version;
  // How far those are who make its rounds: servers, of all-reduce jobs nodes.
  std::map<std::uint32_t, std::pair<Version, Version>> made;
  std::optional<Round> snapshot;              // under way
  std::vector<std::uint16_t> snapshot_waits;  // servers that have still to write it
  std::string last_stop;
  std::string checkpoint;                   // the newest that [checkpoint] asked for; empty: none yet
  std::string no_checkpoint;                // why the one after that is not there; empty: it is, or is not due
  std::string not_saved;                    // why the newest snapshot that was wanted is not there; empty: it is
  std::uint32_t copies = 0;                 // servers that have each part of the committed one, at least
  std::string not_copied;                   // why they are fewer than wanted; empty: they are not
  std::optional<JobPlacement> placement;    // of the last view opened since this process started
  std::vector<StragglerWatch::Node> paces;  // of its nodes while it runs
  Figures figures;                          // what its trainers said last, together
  std::optional<StallWatch::Stall> stall;   // it runs, and no round gets done
  struct Member {
    std::string worker;          // its name
    std::optional<Round> given;  // of which all its ranks have given all gradients
  };
  std::map<std::uint32_t, Member> members;  // by node, while it runs
};

class CoordinatedJob {
 public:
  static constexpr double kTraceLeadMs = 500.0;  // a trace's first round is not begun for so long
  static constexpr std::uint64_t kAskAgainMs = 10'000;
  static constexpr std::uint64_t kTellWaitsMs = 2000;  // between two words to nodes that wait for others

  // older: trainings of its name that it took the place of, until they are dropped.
  CoordinatedJob(CoordinatorContext& context, const JobConfig& config, JobRecord record = {},
                 std::set<JobId> older = {})
      : ledger_(context, config, std::move(record), std::move(older)) {}

  // ---- What it is ----
  const JobConfig& config() const { return ledger_.config(); }
  const JobRecord& record() const { return ledger_.record(); }
  // The record that servers have copies of, as it is on the disk; null: none, or record() is not what lies there.
  const JobRecord* copied_record() const {
    const bool as_saved = servers() != 0 && ledger_.keeper.saved() && !ledger_.keeper.saves() && !removing();
    return as_saved && record().job.value != 0 ? &record() : nullptr;
  }
  std::string in_words() const { return ledger_.in_words(); }
  std::set<JobId> ids() const { return ledger_.keeper.ids(); }  // its own and those of older trainings of its name
  bool knows(JobId id) const { return ledger_.keeper.knows(id); }
  std::uint16_t servers() const { return ledger_.servers(); }  // that take part in its views: all or none
  const JobMembers& members() const;
  std::uint32_t nodes() const { return ledger_.nodes; }
  std::set<std::uint16_t> shards() const { return ledger_.shards(); }
  bool idle() const { return is<IdleJob>(); }
  bool stopping() const { return is<StoppingView>(); }
  bool trains() const { return is<RunningView>() || stopping(); }
  // Its state is being loaded from a checkpoint, or from other servers.
  bool loading() const { return idle() && std::get<IdleJob>(phase_).loading.has_value(); }
  bool dealt() const { return loading() && std::get<IdleJob>(phase_).loading->copies; }  // from other servers
  bool removing() const { return idle() && std::get<IdleJob>(phase_).removing; }
  bool in_view() const { return view() != nullptr; }
  bool in_view(ViewId id) const { return in_view() && record().view == id; }
  bool takes_snapshot() const;
  bool has_yet_to_reach(Round round) const {
    return is<RunningView>() && Round(ledger_.paces.range().first.value) < round;
  }
  // Ranks' states of this round. Is something of them on its way, or, unless a whole one is there, to come? Asks for it.
  RankStates rank_states_at(Round round) const { return ledger_.keeper.rank_states_at(round); }
  bool state_comes(Round round, bool whole, std::uint64_t now_ms) {
    return (!whole && ledger_.lacks_state(round, now_ms)) || ledger_.keeper.fetch(round, now_ms);
  }
  std::uint64_t state_taken() const { return ledger_.keeper.taken(); }
  JobRecord record_at(Round round) const { return ledger_.keeper.record_at(round); }
  // A store is broken: no snapshot comes.
  bool store_broken() const { return ledger_.store_broken; }
  // Then, between views: the round of which servers have all in memory, and no store.
  std::optional<Round> round_in_memory() const;
  bool kept_by_servers() const;
  // Their state is to become a snapshot, and not all have said which round they have.
  bool saves_kept() const { return between() && !between()->going.empty(); }
  // Servers that are told to stop wait for it.
  bool needs_servers() const { return in_view() || saves_kept() || owes_checkpoint(); }
  bool needs_server(std::uint16_t server) const;
  // Some nodes wait for others, and nothing of the job is anywhere.
  bool awaited() const { return is<GatheringJob>() && ids().empty() && !kept_by_servers(); }
  // Its nodes left before it had an id: nothing of it is anywhere.
  bool never_opened() const;
  JobStatus status() const;

  // ---- Nodes join, and a view opens ----
  Status check(const JoinJob& m) const;
  // A worker that holds the rank that this one asks for, and is gone: it is to be lost first.
  Result<std::optional<std::uint64_t>> outlived_by(const JoinJob& m, const Peers::Worker& worker,
                                                   std::uint64_t now_ms) const;
  Status join(const JoinJob& m, const JobConfig& config, const Peers::Worker& worker, std::uint64_t now_ms);
  // A node may not join as it is; those that wait for it hear why.
  void refused(NodeRank node, const std::string& why);
  // Is everybody there? Then it is to open(), with that id if it has none.
  bool complete(std::uint64_t now_ms) const;
  void open(JobId fresh_id, std::uint64_t now_ms);
  // Its record is saved, or cannot be, as far as that was ordered.
  bool saves(JobId id) const { return ledger_.keeper.saves(id); }
  bool saves() const { return ledger_.keeper.saves(); }
  void saved(const Status& status, std::uint64_t now_ms);
  void on(std::uint16_t server, const ShardReady& m, std::uint64_t now_ms);

  // ---- While a view is open ----
  void on(PeerId from, const RoundFacts& m);
  void on(const Peers::Worker& worker, const NodePace& pace);
  void on_progress(std::uint32_t maker, const JobProgress& progress, std::uint64_t now_ms);
  void on(const Peers::Worker& worker, const PeerAddress& m);
  void on(const Peers::Worker& worker, const NodeRankState& m, std::uint64_t now_ms);
  void on(const Peers::Worker& worker, const RankValues& m, std::uint64_t now_ms);
  // A large part of what ranks keep is there.
  void part_is_there(std::uint64_t now_ms);
  void on(const Peers::Worker& worker, const LeaveJob& m, std::uint64_t now_ms);
  void on(std::uint16_t server, const SnapshotDone& m, std::uint64_t now_ms);
  void on(std::uint16_t server, const SnapshotCopied& m, std::uint64_t now_ms);
  void on(const Peers::Worker& worker, const SnapshotDone& m, std::uint64_t now_ms);  // node 0 of an all-reduce job
  // Repeats the outcome of a view that is over to a node that repeats with which round it ended.
  void tell_outcome(PeerId to, ViewId view, Round round) { ledger_.tell_outcome(to, view, round); }
  // So many rounds to come that nobody has begun, to be traced. kUnavailable: not now, perhaps in a moment.
  Result<TraceRounds> name_trace(std::uint64_t rounds, std::uint64_t now_ms) const;
  bool runs(ViewId view) const { return is<RunningView>() && record().view == view; }
  Round newest_round() const { return Round(ledger_.paces.range().second.value); }
  // Its nodes are asked to stop after their round.
  void request_stop(const std::string& reason);
  void tick(std::uint64_t now_ms);

  // ---- Peers come and go ----
  void on(std::uint16_t server, const ShardKept& m, std::uint64_t now_ms);
  // A server is met, the first time or again.
  void on(const ServerHello& hello, bool known, std::uint64_t now_ms);
  // Repeats messages that may be lost with the peer's old connection; it takes each of them twice.
  void tell_again(const Peers::Server& server, std::uint64_t now_ms);
  void tell_again(std::uint64_t worker);
  void server_lost(std::uint16_t server, const std::string& reason, std::uint64_t now_ms);
  void worker_lost(std::uint64_t worker, const std::string& reason, std::uint64_t now_ms);
  // It is shut out: also if it said that it has left, which only it knows.
  void expel(std::uint64_t worker);
  // It will not attach again: the others need not wait for it. Did they?
  bool forget_worker(std::uint64_t worker) { return ledger_.awaited.forget_worker(worker); }
  void server_leaves(std::uint16_t server, std::uint64_t now_ms);
  void server_stops(std::uint16_t server, std::uint64_t now_ms);
  void worker_stops(std::uint64_t worker, const std::string& who, std::uint64_t now_ms);
  void drain(const std::string& who, std::uint64_t now_ms);

  // ---- Checkpoints by [checkpoint] ----
  // One is to be made now.
  bool checkpoint_due(std::uint64_t now_ms) const;
  void checkpoint_ordered(std::uint64_t order, std::uint64_t now_ms);
  // One is under way, or is to be made now that nobody trains.
  bool owes_checkpoint() const;

  // ---- Its state is loaded, from a checkpoint or from other servers ----
  // Sends away the nodes that have joined: they join again when it is loaded.
  void begin_loading(LoadingJob loading, std::uint64_t now_ms);
  JobConfig end_loading() { return std::exchange(std::get<IdleJob>(phase_).loading, std::nullopt)->config; }
  // Older trainings of its name, and this one on other servers, go when two servers have what counts now.
  void drop_older(bool again = false);

  // ---- Its chunks go to other servers (docs/failover.md) ----
  JobServers& placed() { return ledger_.placed; }
  // To be begun now.
  std::optional<JobServers::Change> change_due(std::uint64_t now_ms) const;
  // Ends the view. record() is that of the newest state then. Errors: none can be had.
  Status leave_servers(const std::string& what, std::uint64_t now_ms);
  // Have the parts of that, which servers have now, their copies?
  bool dealt_is_copied(const JobRecord& record, std::uint64_t now_ms);
  // The record of the job with these owners: another id, under which no store has anything.
  JobRecord record_on(std::vector<ChunkOwner> owners, JobId id) const;

  // ---- Removed by order ----
  void begin_removal() { std::get<IdleJob>(phase_).removing = true; }
  void end_removal() { std::get<IdleJob>(phase_).removing = false; }
  void removed(JobId older) { ledger_.keeper.removed(older); }

 private:
  template <typename Phase>
  bool is() const {
    return std::holds_alternative<Phase>(phase_);
  }
  const BetweenViews* between() const;  // null: a view is open
  BetweenViews* between();
  std::optional<Round> newest_state() const;
  bool stays_stopped() const;
  bool goes_on_without(std::uint16_t server) const;
  JobView* view();
  const JobView* view() const { return const_cast<CoordinatedJob*>(this)->view(); }

  // coordinated_job_open.cc: a view begins
  Result<ViewStart> begin_view(GatheringJob& gathering, JobId fresh_id, std::uint64_t now_ms);
  void cannot_open(const Error& error, std::uint64_t now_ms);
  void begin_opening(ViewStart start, std::uint64_t now_ms);
  // The state that a view was to begin with changes while its record is being saved: the view is given up, unannounced.
  void reconsider();
  Result<bool> take_newest(const JobMembers& members);
  Result<ViewStart> start_with_state(const ViewStart& start, const JobMembers& members, std::uint64_t now_ms);
  void run(std::uint64_t now_ms);

  // coordinated_job.cc: it ends
  void leave_running(RunningView& running, const Peers::Worker& worker, const LeaveJob& m, std::uint64_t now_ms);
  void lose_member(std::uint32_t node, const std::string& reason, std::uint64_t now_ms);
  void begin_stop(StopKind kind, Round round, const std::string& reason, std::uint64_t now_ms);
  void gather_again(const std::string& reason, std::uint64_t now_ms);
  void restart(const std::string& reason, std::uint64_t now_ms);
  void end_stop(StoppingView::Over over, std::uint64_t now_ms);
  void become_idle(BetweenViews between, std::uint64_t now_ms);

  // coordinated_job_kept.cc: between two views
  void ask_again(std::uint64_t now_ms);
  void keep_copied(std::uint64_t now_ms);
  void save_kept(const std::string& who, std::uint64_t now_ms);
  void look_at_kept(std::uint64_t now_ms);
  std::string why_not_saved(const BetweenViews& between, Round round) const;

  void look_for_state(std::uint64_t now_ms);
  std::string waiting_for() const;
  void tell_waits(std::uint64_t now_ms);

  JobLedger ledger_;
  JobPhase phase_;
  std::optional<ViewId> kept_tried_;  // what servers keep of this view was to become a snapshot
  std::uint64_t waits_told_ms_ = 0, asked_ms_ = 0, copies_due_ms_ = 0;
  std::uint64_t loaded_ = 0;  // bytes, by servers, for all of its views
};

}  // namespace tributary
