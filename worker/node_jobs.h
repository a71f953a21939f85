// NodeJobs: the life of all jobs on this node, between its trainers, its lanes and the coordinator. No sockets, threads
// or clocks of its own: events and times come in, actions go out through the three ports.
// (It does create shared memory.)
//
//   gathering --all local ranks attached--> joining --JobWelcome--> running
//   joining --JobWelcome, all-reduce on devices--> agreeing --every node's offer--> running
//   running --every rank detached--> left --StopJob--> (gone)
//   running --StopJob, a lost trainer--> over --trainers close--> (gone)
//
// Agreeing: the trainers of an all-reduce job must be told whether their gradients are on devices or in shared memory,
// and it must be the same on all nodes. So nodes that can add up on devices tell each other (as PeerAddress, with what
// they have of NCCL) and wait; one that cannot goes on at once, and its Gloo address tells the others.
//
// A trainer that goes while gathering only frees its place. One that goes without detaching while running is a loss:
// the coordinator is told, the others are asked to attach again. A job is found by its name until its view is over;
// after that a new attach starts gathering the next view, whatever is left of the old one.
//
// Thread rule: one thread (the attach thread).
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "common/base/patience.h"
#include "common/daemon/log.h"
#include "common/wire/messages.h"
#include "common/wire/redo_plan.h"
#include "worker/allreduce/allreduce_lane.h"
#include "worker/node/job.h"
#include "worker/node/lane_listener.h"
#include "worker/node/node_devices.h"
#include "worker/node/redo_keeper.h"

namespace tributary {

using TrainerId = StrongId<struct TrainerTag, std::uint64_t>;  // one connection of a trainer; grows

class TrainerPort {
 public:
  virtual ~TrainerPort() = default;
  virtual void send(TrainerId trainer, const AttachMessage& message, std::span<const int> fds = {}) = 0;
};

class CoordinatorPort {
 public:
  virtual ~CoordinatorPort() = default;
  virtual void send(const ControlMessage& message) = 0;
};

// The lanes: WorkerLane for jobs on servers, AllreduceLane for the others.
class LanePort {
 public:
  virtual ~LanePort() = default;
  virtual std::vector<int> doorbells(bool allreduce) const = 0;  // of the lanes for such jobs: one eventfd each
  virtual void open(const std::shared_ptr<NodeJob>& job) = 0;
  virtual void peer_address(const PeerAddress& address) = 0;
  // As checkpoint.h. Nothing while a job that is over still writes one.
  virtual Result<std::optional<Round>> newest_checkpoint(const JobConfig& config, const Layout& layout) const = 0;
  virtual void initial_values(const std::shared_ptr<NodeJob>& job) = 0;
  virtual void close(const std::shared_ptr<NodeJob>& job, bool keep) = 0;  // as WorkerLane::close()
};

struct NodeJobsOptions {
  std::uint64_t incarnation = 0;
  std::uint64_t max_memory = 0;  // bytes for all jobs
  std::uint64_t peer_timeout_ms = 10'000;
  std::uint64_t stop_timeout_ms = 30'000;  // a stop in good order waits for answers while they come, and so long more
  std::uint32_t max_redo_rounds = kMaxRedoRounds;  // that a redo ring has at most
  std::shared_ptr<NodeDevices> devices;            // null: everything is reduced on the host
};

// What /status and /metrics show of a job.
struct NodeJobSummary {
  std::string name, phase;
  std::uint32_t node = 0, local_world_size = 0, world_size = 0;
  struct RankSummary {
    std::uint32_t rank = 0, local_rank = 0;
    std::int32_t pid = 0;
  };
  std::vector<RankSummary> attached;
  std::string last_refusal;      // of a join that is tried again
  std::shared_ptr<NodeJob> job;  // while running
};

// What a heartbeat says of the views that run here.
std::vector<JobProgress> progress_of(const std::vector<NodeJobSummary>& summaries);

class NodeJobs {
 public:
  static constexpr std::uint32_t kMaxLocalRanks = 256;
  static constexpr std::size_t kMaxJobs = 64;
  static constexpr std::size_t kMaxJoined = 4 * kMaxJobs;   // joins remembered after their trainers went
  static constexpr std::uint64_t kJoinRetryMs = 500;        // after "not now" from the coordinator
  static constexpr std::uint64_t kJoinRepeatMs = 5000;      // while the coordinator says nothing
  static constexpr std::uint64_t kLeaveRepeatMs = 5000;     // until the coordinator has said StopJob
  static constexpr std::uint64_t kCheckpointRetryMs = 100;  // while the last view's checkpoint is being written
  static constexpr std::uint64_t kRingRetryMs = 20;         // while a lane has not closed the last view
  // For the coordinator's words after it has missed a node for peer_timeout_ms.
  static constexpr std::uint64_t kVerdictMs = 2000;

  NodeJobs(NodeJobsOptions options, TrainerPort& trainers, CoordinatorPort& coordinator, LanePort& lanes,
           Logger logger);
  ~NodeJobs();

  // Trainers. peer_pid: as the kernel knows it, 0 if it does not.
  // kept: what it has of an earlier session (SessionKeepsake).
  void attach(TrainerId trainer, const AttachRequest& request, int peer_pid, std::uint64_t now_ms,
              FileDescriptor kept = {});
  void initial_values(TrainerId trainer);
  void rank_state(TrainerId trainer, const RankState& state);
  void detach(TrainerId trainer, const Detach& detach, std::uint64_t now_ms);
  void gone(TrainerId trainer, std::uint64_t now_ms);  // its connection is closed
  bool known(TrainerId trainer) const;

  // The coordinator.
  void on_control(const ControlMessage& message, std::uint64_t now_ms);
  void coordinator_restarted(std::uint64_t now_ms);

  // The lanes.
  void lane_failed(const std::shared_ptr<NodeJob>& job, const LaneFailure& failure, std::uint64_t now_ms);
  // All-reduce, node 0: what the view's end left on the disk. Told to the coordinator until it has said what follows.
  void checkpointed(const SnapshotDone& done, std::uint64_t now_ms);

  void tick(std::uint64_t now_ms);  // about every 100 ms

  // Stop everything in good order. drained(): no trainer takes part in a view or has still to detach from one that
  // ended in good order, and the coordinator has no part of ours open, as far as known.
  void drain();
  bool drained() const;
  // No more patience: fails what is left.
  void abandon(const std::string& reason, std::uint64_t now_ms);

  std::vector<NodeJobSummary> summaries() const;
  const MemoryBudget& budget() const { return *budget_; }

 private:
  enum class Phase { kGathering, kJoining, kAgreeing, kRunning, kLeft, kOver };
  struct Place {  // of a local rank
    TrainerId trainer;
    std::uint32_t rank = 0;
    std::int32_t pid = 0;
    std::string device;           // of its gradients; empty: host memory
    bool gradients_move = false;  // AttachRequest::gradients_move
    std::string computes_with;
    bool connected = true;
    std::optional<LeaveKind> left;
    bool told_end = false;  // what came of the job's state
  };
  struct Entry {
    std::shared_ptr<const JobPlan> plan;
    std::vector<TensorSpec> tensors;
    NodeRank node;
    std::uint32_t world_size = 1, local_world_size = 1;  // as its trainers say
    std::uint32_t ranks_in_view = 0;                     // running; in an elastic job another number
    Phase phase = Phase::kGathering;
    std::map<std::uint32_t, Place> places;  // by local rank
    std::shared_ptr<NodeJob> job;           // running
    // Device memory may be freed only when no trainer has it open any more: held until the entry is erased.
    std::shared_ptr<DeviceLender> lent;
    std::shared_ptr<const ViewPlan> view;  // the last that began; null: none
    std::optional<LeaveJob> leave;         // left: what was said
    std::uint64_t next_ms = 0;             // joining: try again then; left: repeat then (0: no)
    bool in_order = false;            // over: by a stop in good order, after which its trainers give what they keep
    std::string stopped_by;           // who asked for the stop, in words; empty: nobody, or not known
    StopJob ended;                    // over in good order: as the coordinator said
    std::optional<Status> saved;      // whether the state that it ended with is
    std::optional<StopJob> stop;      // running: to be carried out when its answers are in ...
    std::optional<Patience> answers;  // ... or no more come; of a restart: at stop_by_ms
    std::uint64_t stop_by_ms = 0;
    std::string last_refusal;
    struct Agreement {
      JobWelcome welcome;
      std::shared_ptr<AllreduceDevices> devices;
      std::map<std::uint32_t, std::string> offers;  // by node; empty: in host memory
      std::uint64_t until_ms = 0;
      bool stop_requested = false;
    };
    std::optional<Agreement> agreement;  // agreeing

    const std::string& name() const { return plan->name(); }
    bool is(JobId of, ViewId at) const { return view && view->job == of && view->view == at; }
    std::vector<std::string> devices() const {  // by local rank
      std::vector<std::string> uuids;
      for (const auto& [local_rank, place] : places) uuids.push_back(place.device);
      return uuids;
    }
    bool told_of_redo = false;  // that nothing is kept for lost servers
  };

  // node_jobs.cc
  Status admit(Entry* entry, const AttachRequest& request, const JobConfig& config) const;
  Entry* open_entry(const std::string& name);
  std::pair<Entry*, Place*> find(TrainerId trainer);
  Entry* in_view(JobId job, ViewId view);
  void join(Entry& entry, std::uint64_t now_ms);
  void refuse(TrainerId trainer, const Error& error);
  void lost(Entry& entry, std::uint32_t local_rank, const std::string& what, std::uint64_t now_ms);
  void erase_finished();
  std::string who(const Entry& entry, std::uint32_t local_rank) const;

  // node_jobs_view.cc: what happens to a view
  void on(const JobWelcome& m, std::uint64_t now_ms);
  void on(const StopRequest& m);
  void on(const PeerAddress& m, std::uint64_t now_ms);
  void on(const SnapshotAt& m);
  void on(const SnapshotCommit& m);
  void on(const SnapshotDone& m);
  void on(const StopJob& m, std::uint64_t now_ms);
  void on(const ControlError& m, std::uint64_t now_ms);
  Status begin(Entry& entry, const JobWelcome& m, std::uint64_t now_ms);
  void begun(Entry& entry, const JobWelcome& m, const Status& status);

  // node_jobs_agree.cc
  Status agree(Entry& entry, const JobWelcome& m, std::uint64_t now_ms);
  void offered(Entry& entry, const PeerAddress& m, std::uint64_t now_ms);
  void join_again(Entry& entry, std::uint64_t when_ms);
  void tick_agreeing(Entry& entry, std::uint64_t now_ms);
  Status run(Entry& entry, const JobWelcome& m, std::shared_ptr<AllreduceDevices> devices, const std::string& why_host,
             std::uint64_t now_ms);
  void leave_if_all_detached(Entry& entry, std::uint64_t now_ms);
  void leave(Entry& entry, LeaveKind kind, const std::string& message);
  void stop_others(Entry& entry, Round round);
  static bool awaits_saved(const Entry& entry);
  void settle(Entry& entry, const Status& saved);
  void tell_saved(Entry& entry);
  void end_view(Entry& entry, StopKind kind, Round round, const std::string& reason);
  void fail_view(Entry& entry, const Error& error);
  void close_lanes(Entry& entry, bool keep);
  void forget_checkpointed(JobId job, ViewId view);
  void tick_running(Entry& entry, std::uint64_t now_ms);

  const NodeJobsOptions options_;
  TrainerPort& trainers_;
  CoordinatorPort& coordinator_;
  LanePort& lanes_;
  Logger logger_;
  std::shared_ptr<MemoryBudget> budget_;
  RedoKeeper redo_;
  std::list<Entry> entries_;
  struct Begun {
    ViewId view;
    NodeRank node;  // as the job knows it
  };
  struct Checkpointed {
    SnapshotDone done;
    std::uint64_t next_ms = 0;
  };
  std::map<JobId, Begun> begun_;            // the last view of each job; at most kMaxJoined
  std::vector<Checkpointed> checkpointed_;  // not answered; at most kMaxJobs
  std::map<std::string, NodeRank> joined_;  // by job name: joins that the coordinator has not answered
  bool draining_ = false;
  bool drain_done_ = false;
};

}  // namespace tributary
