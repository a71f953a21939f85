// CoordinatorCore: rendezvous, views, snapshots and graceful stops of all jobs. Pure: control messages and ticks in,
// actions out through CoordinatorOutput. Lives in server 0, or in a worker of a cluster without servers; its durable
// state is the job registry, written through the output.
//
// A job's life:   idle -> gathering (workers join) -> opening (shards load) -> running -> stopping -> idle
// Losing somebody while the shards load goes back to gathering: no worker has heard of that view yet, those that joined
// wait on. Losing a member (heartbeat timeout, a new incarnation, LeaveKind::kFailed) ends the view with
// StopKind::kRestart: everybody is told who was lost and may attach again; the next view goes on from what the servers
// kept in memory and what nodes can push again (coordinator_recover.cc), else from the last committed snapshot. Views
// of a job id only grow, so messages of an ended view are refused everywhere. A coordinator that keeps no registry
// begins with view 1 again, but under an id that nobody has used.
//
// In an elastic job (coordinator_members.cc) the next view goes on with the nodes that are there, and a node that joins
// or leaves ends the view like one that is lost. Elsewhere a view has as many nodes as the trainers say.
//
// A job of mode "allreduce" has no part on servers: it runs as soon as its nodes are there, goes on from the checkpoint
// that node 0 says it has (JoinJob::checkpoint_round), unless somebody knows of a newer one, and is over as soon as it
// stops, because node 0 keeps its state. What nodes need to connect to each other (PeerAddress) passes through here.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "common/config.h"
#include "common/layout.h"
#include "common/messages.h"
#include "common/patience.h"
#include "common/redo_plan.h"
#include "common/result.h"
#include "server/checkpoint_orders.h"
#include "server/job_placement.h"
#include "server/round_gate.h"
#include "server/straggler_watch.h"

namespace tributary {

struct SnapshotNeeds;

struct CoordinatorOptions {
  std::uint16_t servers = 1;  // 0: a cluster for all-reduce jobs only
  std::uint64_t incarnation = 0;
  std::uint64_t peer_timeout_ms = 10000;
  std::uint64_t job_id_seed = 0;  // random per process: makes the ids of new jobs
  // Shards with as much state, or more, are asked to get memory before a snapshot is named. Less than that is there
  // before the round is.
  std::uint64_t prepare_from_bytes = 16u << 20;
};

// The nodes of a view, and the first of the views in a row that had them, if any view before had others.
struct ViewNodes {
  std::uint64_t hash = 0;  // members_hash(); 0: there has been no view
  ViewId since;
  Round first;  // from here on they have made all chunks; others may have made some of the round before
};

// A job as the registry keeps it for ever.
struct JobRecord {
  JobId job;
  std::string job_json;
  std::vector<TensorSpec> tensors;
  std::uint64_t chunk_elements = 0;
  std::vector<ChunkOwner> owners;
  std::uint32_t world_size = 1;
  ViewId view;               // highest view ever given out: persisted before it is used
  Round committed;           // last committed consistent snapshot; 0: none
  bool initialised = false;  // a snapshot was ever committed
  bool finished = false;
  // Node ranks of the last view, ascending; empty after a stop in good order.
  std::vector<std::uint32_t> members;
  ViewNodes view_nodes;        // of the last view, whatever came then
  RankStates rank_states;      // kept with the committed snapshot
  std::string last_stop;       // why the last view that ended in good order did
  ComputeKinds computed_with;  // what ranks computed the state's gradients with
};

// Of node ranks, ascending: tells views of other nodes apart (JobWelcome::members). Views of the same nodes with others
// between them, too: those may have gone through the rounds again that these know.
std::uint64_t members_hash(const std::vector<std::uint32_t>& nodes, ViewId since = {});

enum class LogLevel { kInfo, kWarning, kError };

class CoordinatorOutput {
 public:
  virtual ~CoordinatorOutput() = default;
  virtual void send(PeerId to, const ControlMessage& message) = 0;
  // Durable before it returns.
  virtual Status save(const JobRecord& record) = 0;
  virtual Status remove(JobId job) = 0;  // its record, if there is one
  // Error: something that was wanted is lost or cannot be. Warning: it may be, or somebody is refused.
  virtual void log(const std::string& line, LogLevel level = LogLevel::kInfo) = 0;
};

class CoordinatorCore {
 public:
  static constexpr std::uint32_t kMaxPeerAddresses = 4096;  // of a node in a view; more are not passed on

  CoordinatorCore(CoordinatorOptions options, std::vector<JobRecord> registry, CoordinatorOutput& output);

  void on_message(PeerId from, const ControlMessage& message, std::uint64_t now_ms);
  void on_bad_message(PeerId from, const Error& error);
  void tick(std::uint64_t now_ms);
  // Stop everything in good order (server 0 was told to stop); idle() tells when it is done.
  void drain(std::uint64_t now_ms);
  bool idle() const;

  // Checkpoints (coordinator_checkpoint.cc): the id to ask for with checkpoint(), or why not.
  static constexpr std::size_t kMaxCheckpointsUnderWay = 8;
  static constexpr std::uint64_t kRefusalLogMs = 600'000;
  static constexpr std::size_t kMaxLoggedRefusals = 64;  // in that time
  static constexpr std::size_t kCheckpointsKept = 32;    // that are over and can still be asked for
  Result<std::uint64_t> save_checkpoint(const SaveOrder& order, std::uint64_t now_ms);
  Result<std::uint64_t> restore_checkpoint(const RestoreOrder& order, std::uint64_t now_ms);
  std::optional<CheckpointStatus> checkpoint(std::uint64_t id) const;
  // Deletes a job that is not in use, with all that anybody has of that name (coordinator_progress.cc). How many there
  // were.
  Result<std::uint64_t> remove_job(const std::string& name);

  struct JobStatus {
    JobRecord record;
    bool recorded = true;  // else what is saved of it is older
    std::string phase;     // idle, gathering, opening, running, stopping
    std::uint32_t nodes = 0, joined = 0;
    std::string waiting_for;  // gathering: which nodes and servers are missing
    Version min_version, max_version;
    std::string last_stop;
    std::string not_saved;                         // why the newest snapshot that was wanted is not there; empty: it is
    std::optional<JobPlacement> placement;         // of the last view opened since this process started
    std::vector<StragglerWatch::Node> paces;       // of its nodes while it runs
    std::map<std::uint32_t, std::string> workers;  // names, by node
  };
  struct PeerStatus {
    std::string kind, name;
    std::uint64_t last_heard_ms = 0;
    bool alive = false;
  };
  std::vector<JobStatus> jobs() const;
  std::vector<PeerStatus> peers() const;

 private:
  struct Server {
    PeerId peer;
    ServerHello hello;
    std::uint64_t heard_ms = 0;
    bool alive = false;
    std::uint64_t rival = 0;     // incarnation of another process that says it is this server; 0: none
    std::uint64_t rival_ms = 0;  // since when
  };
  struct Worker {
    PeerId peer;
    WorkerHello hello;
    std::uint64_t heard_ms = 0;
    std::uint64_t since_ms = 0;  // its first hello
    std::string called;          // as it calls itself; hello.name tells it from another that is called the same
  };
  static constexpr std::uint64_t kNever = ~0ull;
  enum class Phase { kIdle, kGathering, kOpening, kRunning, kStopping };
  struct Member {
    std::uint64_t worker = 0;  // its incarnation: peers change their connection, never their incarnation
    JoinJob join;
    std::optional<LeaveJob> left;
    std::uint32_t addresses = 0;  // PeerAddress messages passed on
    std::uint64_t answers = 0;    // as its last pace says
    bool leaving = false;         // elastic: its worker is being stopped, the job is not
  };
  // Who may give what ranks keep: also after its node has left the view.
  struct RankHolder {
    std::uint64_t worker = 0;  // its incarnation
    std::uint32_t ranks = 0;
  };
  // How far a shard is, and how fast it goes: to name a snapshot round that no shard has passed yet.
  struct Pace {
    Version min_version, max_version;
    std::uint64_t at_ms = 0;
    std::uint64_t said_ms = 0;   // the last heartbeat that named the job, whatever it said
    std::uint64_t wrote_ms = 0;  // the last one that said that a snapshot is being written
    double rounds_per_ms = 0.0;
    bool measured = false;  // two heartbeats of a view have been compared, of this one or of one before
  };
  struct Job {
    JobRecord record;
    std::set<JobId> older;  // trainings of its name that it took the place of, until they are dropped
    JobConfig config;
    Phase phase = Phase::kIdle;
    std::uint64_t phase_since_ms = 0;
    std::uint32_t nodes = 0;
    std::map<std::uint32_t, Member> members;  // by node rank
    // Elastic: the nodes of the last view that the next one waits for, with their workers (0: not known), until when.
    std::map<std::uint32_t, std::uint64_t> expected;
    std::uint64_t gather_until_ms = 0;
    ViewNodes began;                              // record.view_nodes of the last view that was not given up opening
    std::map<std::uint32_t, RankHolder> holders;  // of the view that opens, by node
    std::map<RankKey, std::map<Round, std::vector<std::byte>>> rank_states;  // not committed (yet)
    std::optional<Round> joins_after;          // somebody wants to join, after a later snapshot than this
    std::set<std::uint16_t> ready;             // shards that opened
    std::map<std::uint32_t, Pace> pace;        // by shard; all-reduce: by node
    std::optional<StragglerWatch> stragglers;  // of this view
    bool resume = false;
    Round resume_round;
    std::optional<Round> snapshot;  // under way
    std::set<std::uint16_t> snapshot_done;
    std::uint64_t snapshot_named_ms = 0;
    std::uint64_t snapshot_due_ms = kNever;
    std::uint64_t snapshot_retry_ms = 0;              // none is named before, whatever is due
    std::uint64_t missed_snapshots = 0;               // in a row; the next one is named further ahead
    std::uint64_t prepare_bytes = 0;                  // of memory that the largest shard needs for one
    std::optional<std::uint64_t> preparing_since_ms;  // shards were asked to get that
    std::set<std::uint16_t> prepared;                 // these have
    std::optional<Patience> lagging;                  // some nodes have finished, others not
    bool unrecorded = false;                          // the record has changed, and is to be saved
    bool untold = false;                              // that its snapshot is committed: told when the record is saved
    bool record_failed = false;                       // and that was logged
    std::uint64_t record_due_ms = 0;
    bool stop_requested = false;
    StopKind stop_kind = StopKind::kRestart;
    bool stop_failed = false;
    std::optional<SnapshotDone> checkpoint;  // all-reduce: what node 0 said of the view's end
    std::string last_stop;
    std::string not_saved;  // why the newest snapshot that was wanted is not there; empty: it is
    std::optional<JobPlacement> placement;
    bool restoring = false;  // its state is being loaded: nobody may join
    // Recovery: what shards kept of the last view, and who has yet to say. Then, of the view that opens:
    std::map<std::uint16_t, KeptJob> kept;
    std::set<std::uint16_t> parking;
    Round start;                        // where it begins: at or after resume_round
    std::set<std::uint16_t> kept_open;  // shards that go on with what they kept
    std::uint32_t redo_capacity = 0;    // rounds that every node can keep; 0: some keep none
    std::uint64_t snapshot_bytes = 0;   // most that a shard wrote for the snapshot under way
    std::uint64_t redo_due_ms = 0;      // no snapshot is named for their sake before

    std::optional<RoundGate> gate;  // of the view, if the job has one

    bool on_servers() const { return tributary::on_servers(config); }
    bool knows(JobId id) const { return id == record.job || older.contains(id); }
  };

  // coordinator_core.cc: peers and dispatch
  void on(PeerId from, const ServerHello& m, std::uint64_t now_ms);
  void on(PeerId from, const WorkerHello& m, std::uint64_t now_ms);
  void on(PeerId from, const Heartbeat& m, std::uint64_t now_ms);
  void on(PeerId from, const DrainRequest& m, std::uint64_t now_ms);
  void on(PeerId, const ControlError&, std::uint64_t) {}  // an error is never answered with an error
  template <class Other>
  void on(PeerId from, const Other& m, std::uint64_t now_ms);  // messages that only the coordinator sends
  Worker* worker_at(PeerId peer);
  std::string name_apart(const WorkerHello& m, std::uint64_t now_ms) const;
  Server* server_at(PeerId peer);
  bool all_servers() const;
  void lose_server(std::uint16_t index, const std::string& reason, std::uint64_t now_ms);
  void lose_worker(std::uint64_t incarnation, const std::string& reason, std::uint64_t now_ms);
  void lose_member(Job& job, std::uint32_t node, const std::string& reason, std::uint64_t now_ms);
  void moved(const Server& server);
  void moved(std::uint64_t incarnation, const Worker& worker);
  void answer_drains();
  void note_pace(std::uint64_t worker, const NodePace& pace);
  static void note_progress(Pace& pace, Round start, const JobProgress& progress, std::uint64_t now_ms);

  // coordinator_open.cc: gathering and opening a view
  void on(PeerId from, const JoinJob& m, std::uint64_t now_ms);
  void on(PeerId from, const ShardReady& m, std::uint64_t now_ms);
  Status admit(Job& job, const JoinJob& m, std::uint64_t worker, std::uint64_t now_ms);
  static Status stopping(const Job& job);
  Status same_as_others(const Job& job, const JoinJob& m) const;
  static Status same_as(const Job& job, const std::vector<TensorSpec>& tensors, const std::string& job_json,
                        const JoinJob& m);
  Status free_rank(Job& job, const JoinJob& m, std::uint64_t worker, std::uint64_t now_ms);
  void open_if_complete(Job& job, std::uint64_t now_ms);
  void refuse_opening(Job& job, const Error& error, std::uint64_t now_ms);
  OpenJob open_message(const Job& job, std::uint16_t shard) const;
  void welcome(Job& job, std::uint64_t now_ms);
  JobWelcome welcome_message(const Job& job, std::uint32_t node) const;
  void welcome_again(const Job& job, std::uint32_t node);
  JobId fresh_id() const;
  Status choose_snapshot(Job& job);
  void regather(Job& job, const std::string& reason, std::uint64_t now_ms);

  // coordinator_progress.cc: who has progress of a job
  static bool has_progress(const JobRecord& record) { return record.initialised || record.committed.value != 0; }
  Status choose_checkpoint(Job& job);
  std::set<JobId> strangers(const std::string& name) const;
  Status may_open_fresh(const Job& job) const;
  void note_strangers(const ServerHello& m);
  void drop_state(JobId id);
  void drop_older(Job& job);

  // coordinator_members.cc: who takes part in a view
  bool gathered(const Job& job, std::uint64_t now_ms) const;
  static std::uint32_t first_nodes(const Job& job);
  static void await_members(Job& job, std::uint64_t now_ms);
  static void await_again(Job& job, std::uint64_t now_ms);
  void await_not(Job& job, std::uint64_t worker, std::uint64_t now_ms);
  static void await_nobody(Job& job);
  static void settle_members(Job& job);
  static void settle_first_round(Job& job);
  void note_compute_kinds(Job& job);
  bool goes_on_without(const Job& job, std::uint32_t node) const;
  Status let_in(Job& job, const JoinJob& m, std::uint64_t now_ms);
  static std::string awaited(const Job& job);

  // coordinator_recover.cc: state that outlives a view
  void on(PeerId from, const ShardKept& m, std::uint64_t now_ms);
  void note_kept(const ServerHello& m, bool known);
  void park(Job& job);
  void end_unwritten(Job& job, std::uint64_t now_ms);
  void checkpointed(const Worker& worker, const SnapshotDone& m, std::uint64_t now_ms);
  void end_checkpointed(Job& job, std::uint64_t now_ms);
  void tell_saved(const Job& job, bool saved);
  void tell_saved_again(PeerId to, JobId id, ViewId view, Round round);
  std::string not_saved_in_words(const Job& job) const;
  void choose_start(Job& job);
  std::optional<Round> reach_of_redo(const Job& job) const;
  static bool residuals_at(const Job& job, Round round);
  bool keeps_redo(const Job& job) const;
  std::vector<Version> redo_after(const Job& job) const;
  static std::uint64_t redo_pause_ms(std::uint64_t bytes);
  bool redo_wants_snapshot(const Job& job, const SnapshotNeeds& needs, std::uint64_t now_ms) const;
  std::string beginning_in_words(const Job& job) const;

  // coordinator_gate.cc: one decision about a whole round
  void on(PeerId from, const RoundFacts& m, std::uint64_t now_ms);

  // coordinator_place.cc: which server owns which chunks
  JobHosts hosts_of(const Job& job) const;
  Status lay_out(Job& job);

  // coordinator_jobs.cc: running, snapshots, stopping
  void on(PeerId from, const SnapshotDone& m, std::uint64_t now_ms);
  void on(PeerId from, const LeaveJob& m, std::uint64_t now_ms);
  void on(PeerId from, const PeerAddress& m, std::uint64_t now_ms);
  Round stop_round(const Job& job, Round left) const;
  void request_stop(Job& job, const std::string& reason);
  static StopJob stop_message(const Job& job);
  static StopJob cut_message(const Job& job);
  void await_longer(const Job& job);
  void begin_stop(Job& job, StopKind kind, Round round, const std::string& reason, std::uint64_t now_ms);
  void restart(Job& job, const std::string& reason, std::uint64_t now_ms);
  void become_idle(Job& job, std::uint64_t now_ms);
  void commit(Job& job, Round round, std::uint64_t now_ms);
  void record_job(Job& job, std::uint64_t now_ms);
  void tick_job(Job& job, std::uint64_t now_ms);
  bool silent(const Job& job, std::uint64_t Pace::*sign, std::uint64_t since_ms, std::uint64_t now_ms) const;
  static std::uint64_t prepare_bytes(const Job& job);
  bool prepares(const Job& job) const;
  bool has_memory(Job& job, std::uint64_t now_ms);
  std::optional<std::uint64_t> next_to_name(const Job& job, std::uint64_t now_ms) const;
  void name_snapshot(Job& job, std::uint64_t now_ms);
  void announce_snapshot(Job& job, Round round, std::uint64_t now_ms);
  static std::uint64_t snapshot_due(const Job& job, std::uint64_t now_ms);
  void miss_snapshot(Job& job, std::uint64_t now_ms);
  std::set<std::uint16_t> shards_of(const Job& job) const;
  Job* job_with(JobId id);                  // nullptr: nobody knows it
  Job* job_in_view(JobId id, ViewId view);  // nullptr: it is not, or no view is open
  void send_members(const Job& job, const ControlMessage& message);
  void send_servers(const Job& job, const ControlMessage& message);
  void refuse(PeerId to, ErrorCode code, std::string message, const std::string& job = {});
  // Peers ask again and again, and are told each time; the log has it once in kRefusalLogMs.
  void log_refusal(PeerId to, ErrorCode code, const std::string& job, const std::string& line);
  static bool never_opened(const Job& job);
  void set_phase(Job& job, Phase phase, std::uint64_t now_ms);
  static std::string in_words(const Job& job) { return "job '" + job.config.name + "'"; }

  // coordinator_ranks.cc: what trainers keep with a snapshot
  void on(PeerId from, const NodeRankState& m, std::uint64_t now_ms);
  void commit_rank_states(Job& job, Round round);
  static void keep_rank_states(Job& job);
  void miss_rank_states(const Job& job);
  static std::vector<std::vector<std::byte>> rank_states_of(const Job& job, std::uint32_t node);

  // coordinator_checkpoint.cc: saving and restoring
  struct Checkpoint {
    CheckpointStatus status;
    SaveOrder save;
    JobRecord record;  // save: at the cut; restore: what the job will be
    std::uint32_t nodes = 0;
    std::vector<ManifestShard> shards;  // save: written
  };
  void on(PeerId from, const CheckpointDone& m, std::uint64_t now_ms);
  Result<std::uint64_t> begin_checkpoint(Checkpoint checkpoint, std::uint64_t now_ms);
  bool save_waits(const Job& job) const;
  void write_checkpoints(const Job& job, Round round, std::uint64_t now_ms);
  void write_checkpoint(Checkpoint& checkpoint, const Job& job, std::uint64_t now_ms);
  void seal_checkpoint(Checkpoint& checkpoint, std::uint64_t now_ms);
  Result<JobRecord> record_of(const RestoreOrder& order);
  void finish_restore(Checkpoint& checkpoint, std::uint64_t now_ms);
  void end_checkpoint(Checkpoint& checkpoint, const std::string& failure, std::uint64_t now_ms);
  void fail_checkpoints_of(const Job& job, const std::string& why, std::uint64_t now_ms);
  void fail_checkpoints_with(std::uint16_t server, const std::string& why, std::uint64_t now_ms);
  void tick_checkpoints(std::uint64_t now_ms);

  CoordinatorOptions options_;
  CoordinatorOutput& output_;
  std::map<std::uint16_t, Server> servers_;
  std::map<std::uint64_t, Worker> workers_;  // by incarnation
  std::map<std::string, Job> jobs_;          // by name
  bool draining_ = false;
  std::map<std::uint64_t, PeerId> drain_waiters_;    // by incarnation
  std::map<std::uint64_t, Checkpoint> checkpoints_;  // by id
  std::uint64_t last_checkpoint_ = 0;
  std::set<std::tuple<PeerId, ErrorCode, std::string>> logged_refusals_;  // with the job's name
  std::uint64_t forget_refusals_ms_ = 0;  // counted from the tick before the first of them; 0: no tick yet
};

}  // namespace tributary
