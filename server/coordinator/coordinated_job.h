// CoordinatedJob: the life of a job in the coordinator, phase by phase (server/coordinator/job_phases.h). Pure: what
// its peers say and ticks in, messages out. CoordinatorCore owns it and opens its views.
//
// Losing somebody while the shards load goes back to gathering: no worker has heard of that view yet, those that joined
// wait on. Losing a member of a running view (heartbeat timeout, a new incarnation, LeaveKind::kFailed) ends it with
// StopKind::kRestart: everybody is told who was lost and may attach again; the next view goes on from what the servers
// kept in memory and what nodes can push again (server/coordinator/view_start.h), else from the last committed
// snapshot. Views of a job id only grow, so messages of an ended view are refused everywhere. A coordinator that keeps
// no registry begins with view 1 again, but under an id that nobody has used.
//
// In an elastic job (membership.on_worker_loss = "continue") a view begins with the nodes that are there. Whoever was
// in the view before is waited for, if it is not known to be lost; a node that joins ends the running view, as one that
// leaves or is lost does. That costs what a loss costs, the round that is open: its samples are dealt out anew and
// computed again, and where a chunk has it already, it has the sum over the same samples. Elsewhere a view has as many
// nodes as the trainers say.
//
// An all-reduce job has no part on servers: it runs as soon as its nodes are there, and is over as soon as it stops,
// because node 0 keeps its state (server/coordinator/state_home.h). What nodes need to connect to each other
// (PeerAddress) passes through here.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "server/coordinator/coordinator_context.h"
#include "server/coordinator/job_phases.h"
#include "server/coordinator/job_record_keeper.h"
#include "server/coordinator/state_home.h"

namespace tributary {

struct JobStatus {
  JobRecord record;
  std::string name, mode;  // of the record's configuration; empty: it has none yet
  bool recorded = true;    // else what is saved of it is older
  std::string phase;       // idle, gathering, opening, running, stopping
  std::uint32_t nodes = 0, joined = 0;
  std::string waiting_for;  // gathering: which nodes and servers are missing
  Version min_version, max_version;
  std::string last_stop;
  std::string not_saved;                         // why the newest snapshot that was wanted is not there; empty: it is
  std::optional<JobPlacement> placement;         // of the last view opened since this process started
  std::vector<StragglerWatch::Node> paces;       // of its nodes while it runs
  std::map<std::uint32_t, std::string> workers;  // names, by node
};

class CoordinatedJob {
 public:
  static constexpr std::uint32_t kMaxPeerAddresses = 4096;  // of a node in a view; more are not passed on

  // older: trainings of its name that it took the place of, until they are dropped.
  CoordinatedJob(CoordinatorContext& context, const JobConfig& config, JobRecord record = {},
                 std::set<JobId> older = {});

  // ---- What it is ----
  const JobConfig& config() const { return config_; }
  const JobRecord& record() const { return keeper_.record(); }
  std::string in_words() const { return "job '" + config_.name + "'"; }
  std::set<JobId> ids() const { return keeper_.ids(); }  // its own and those of older trainings of its name
  bool knows(JobId id) const { return keeper_.knows(id); }
  std::uint16_t servers() const { return home_->servers(); }  // that take part in its views: all or none
  const JobMembers& members() const;
  std::uint32_t nodes() const { return nodes_; }
  std::set<std::uint16_t> shards() const { return home_->shards(record()); }
  bool idle() const { return std::holds_alternative<phase::Idle>(phase_); }
  bool running() const { return std::holds_alternative<phase::Running>(phase_); }
  bool stopping() const { return std::holds_alternative<phase::Stopping>(phase_); }
  bool trains() const { return running() || stopping(); }
  bool restoring() const { return idle() && std::get<phase::Idle>(phase_).restoring.has_value(); }
  bool in_view() const { return view() != nullptr; }
  bool in_view(ViewId id) const { return in_view() && record().view == id; }
  bool takes_snapshot() const;
  bool kept_by_servers() const;
  // Its nodes left before it had an id: nothing of it is anywhere.
  bool never_opened() const;
  JobStatus status() const;

  // ---- Nodes join, and a view opens ----
  Status check(const JoinJob& m) const;
  // A worker that holds the rank that this one asks for, and is gone: it is to be lost first.
  Result<std::optional<std::uint64_t>> outlived_by(const JoinJob& m, const Peers::Worker& worker,
                                                   std::uint64_t now_ms) const;
  Status join(const JoinJob& m, const JobConfig& config, const Peers::Worker& worker, std::uint64_t now_ms);
  // Is everybody there? Then it is to open(), with that id if it has none.
  bool complete(std::uint64_t now_ms) const;
  void open(JobId fresh_id, std::uint64_t now_ms);
  void on(std::uint16_t server, const ShardReady& m, std::uint64_t now_ms);

  // ---- While a view is open ----
  void on(PeerId from, const RoundFacts& m);
  void on(const Peers::Worker& worker, const NodePace& pace);
  void on_progress(std::uint32_t maker, const JobProgress& progress, std::uint64_t now_ms);
  void on(const Peers::Worker& worker, const PeerAddress& m);
  void on(const Peers::Worker& worker, const NodeRankState& m);
  void on(const Peers::Worker& worker, const LeaveJob& m, std::uint64_t now_ms);
  void on(std::uint16_t server, const SnapshotDone& m, std::uint64_t now_ms);
  void on(const Peers::Worker& worker, const SnapshotDone& m, std::uint64_t now_ms);  // node 0 of an all-reduce job
  // What came of a view that is over, to a node that says again with which round it ended.
  void tell_outcome(PeerId to, ViewId view, Round round);
  // Its nodes are asked to stop after their round.
  void request_stop(const std::string& reason);
  void tick(std::uint64_t now_ms);

  // ---- Peers come and go ----
  void on(std::uint16_t server, const ShardKept& m);
  // A server is met, the first time or again.
  void on(const ServerHello& hello, bool known);
  // What was under way to it may be lost with its old connection. What it can be told twice, it is.
  void tell_again(const Peers::Server& server);
  void tell_again(std::uint64_t worker);
  void server_lost(std::uint16_t server, const std::string& reason, std::uint64_t now_ms);
  void worker_lost(std::uint64_t worker, const std::string& reason, std::uint64_t now_ms);
  // It will not attach again: the others need not wait for it. Did they?
  bool forget_worker(std::uint64_t worker) { return awaited_.forget_worker(worker); }
  void server_stops(const std::string& who, std::uint64_t now_ms);
  void worker_stops(std::uint64_t worker, const std::string& who, std::uint64_t now_ms);
  void drain(const std::string& who, std::uint64_t now_ms);

  // ---- Restored from a checkpoint ----
  void begin_restore(JobConfig config) { std::get<phase::Idle>(phase_).restoring = std::move(config); }
  JobConfig end_restore() { return *std::exchange(std::get<phase::Idle>(phase_).restoring, std::nullopt); }
  void drop_older() { keeper_.drop_older(); }

 private:
  BetweenViews* between();
  JobView* view();
  const JobView* view() const { return const_cast<CoordinatedJob*>(this)->view(); }
  void set_config(const JobConfig& config);

  // coordinated_job_open.cc: a view begins
  Status let_in(const JoinJob& m, const JobConfig& config, std::uint64_t now_ms);
  Result<ViewStart> begin_view(phase::Gathering& gathering, JobId fresh_id);
  void run(std::uint64_t now_ms);
  JobWelcome welcome_message(std::uint32_t node) const;

  // coordinated_job_run.cc: it runs
  void commit(Round round, bool finished, std::uint64_t now_ms);
  void tell_commit();
  void tick(phase::Running& running, std::uint64_t now_ms);

  // coordinated_job.cc: it ends
  void lose_member(std::uint32_t node, const std::string& reason, std::uint64_t now_ms);
  bool goes_on_without(std::uint32_t node) const;
  Round stop_round(Round left) const;
  void begin_stop(StopKind kind, Round round, const std::string& reason, std::uint64_t now_ms);
  void end_checkpointed(const SnapshotDone& kept, std::uint64_t now_ms);
  void end_unsaved(std::uint64_t now_ms);
  void tell_saved(bool saved);
  void gather_again(const std::string& reason, std::uint64_t now_ms);
  void restart(const std::string& reason, std::uint64_t now_ms);
  void become_idle(BetweenViews between, std::uint64_t now_ms);
  StopJob cut_message() const;
  StopJob stop_message() const;
  void send_members(const ControlMessage& message);
  void send_servers(const ControlMessage& message);

  CoordinatorContext& context_;
  JobConfig config_;
  std::unique_ptr<StateHome> home_;  // as config_ says
  JobRecordKeeper keeper_;
  JobPhase phase_;

  // From view to view.
  std::uint32_t nodes_ = 0;  // of the last view, or of the one that is gathered
  AwaitedNodes awaited_;     // elastic
  Round reached_;            // where the last view began
  JobPaces paces_;
  std::uint64_t redo_due_ms_ = 0;        // no snapshot is named for rings' sake before
  StopKind ended_ = StopKind::kRestart;  // how the last view did
  std::string last_stop_;
  std::string not_saved_;  // why the newest snapshot that was wanted is not there; empty: it is
  std::optional<JobPlacement> placement_;
};

}  // namespace tributary
