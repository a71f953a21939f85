// NodeJobs: all jobs on this node, between its trainers, its lanes and the coordinator. No sockets, threads or clocks
// of its own: events and times come in, actions go out through the three ports. (It does create shared memory.)
//
// This is the front: it hands what others say to the jobs that it is about (worker/attached_job.h). A job is found by
// its name until its view is over; after that a new attach starts gathering the next view, whatever is left of the old
// one.
//
// Thread rule: one thread (the attach thread).
#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "worker/attached_job.h"
#include "worker/node_jobs_context.h"

namespace tributary {

// Returns a heartbeat's report of the views that run here.
std::vector<JobProgress> progress_of(const std::vector<NodeJobSummary>& summaries);

class NodeJobs {
 public:
  static constexpr std::size_t kMaxJobs = 64;
  static constexpr std::uint64_t kRefusalMs = 60'000;    // before the log has the same refusal once more
  static constexpr std::uint64_t kDrainAgainMs = 5'000;  // a question that is not answered is asked again

  NodeJobs(NodeJobsOptions options, TrainerPort& trainers, CoordinatorPort& coordinator, LanePort& lanes, Logger logger)
      : context_{std::move(options), trainers, coordinator, lanes, std::move(logger)} {}

  // Trainers. peer_pid: as the kernel knows it, 0 if it does not.
  // kept: what it has of an earlier session (RecoveryHandle).
  void attach(TrainerId trainer, const AttachRequest& request, int peer_pid, std::uint64_t now_ms,
              FileDescriptor kept = {});
  void initial_values(TrainerId trainer);
  void rank_state(TrainerId trainer, const RankState& state);
  void held_state(TrainerId trainer, KeptState state, std::uint64_t now_ms);
  void figures(TrainerId trainer, const Figures& figures);
  void values(TrainerId trainer, const SharedValues& said, std::uint64_t now_ms);
  void detach(TrainerId trainer, const Detach& detach, std::uint64_t now_ms);
  void gone(TrainerId trainer, std::uint64_t now_ms);  // its connection is closed
  bool known(TrainerId trainer) { return find(trainer).has_value(); }

  // The coordinator.
  void on_control(const ControlMessage& message, std::uint64_t now_ms);
  void coordinator_restarted(std::uint64_t now_ms);

  // The lanes.
  void lane_failed(const std::shared_ptr<NodeJob>& job, const LaneFailure& failure, std::uint64_t now_ms);
  // All-reduce, node 0: what the view's end left on the disk. Told to the coordinator until it has said what follows.
  void checkpointed(const SnapshotDone& done, std::uint64_t now_ms) { context_.checkpoints.tell(done, now_ms); }
  // All-reduce: the view's other nodes need it to connect. Told again until the view has its first values.
  void publish(const PeerAddress& address, std::uint64_t now_ms);

  void tick(std::uint64_t now_ms);  // about every 100 ms

  // Stop everything cleanly. drained(): no trainer takes part in a view or has still to detach from one that
  // ended cleanly, and the coordinator has no part of ours open, as far as known.
  void drain(std::uint64_t now_ms);
  bool drained() const;
  // No more patience: fails what is left.
  void abandon(const std::string& reason, std::uint64_t now_ms);

  std::vector<NodeJobSummary> summaries() const;
  const MemoryBudget& budget() const { return *context_.budget; }

 private:
  using Found = std::optional<std::pair<AttachedJob*, std::uint32_t>>;  // with the local rank
  Found find(TrainerId trainer);
  AttachedJob* open_job(const std::string& name);  // that takes trainers; null: none
  AttachedJob* job_of(const auto& message);        // whose view it names; null: none
  Status admit(const AttachedJob* job, const AttachRequest& request, const JobConfig& config) const;
  void erase_finished();
  void ask_to_drain(std::uint64_t now_ms);

  void on(const JobWelcome& m, std::uint64_t now_ms);
  void on(const SnapshotCommit& m, std::uint64_t now_ms);
  void on(const ControlError& m, std::uint64_t now_ms);
  void on(const JobWaits& m, std::uint64_t now_ms);
  void on(const PeerAddresses& m, std::uint64_t now_ms);
  void on(const WantPart& m, std::uint64_t now_ms);
  void on(const StatePart& m, std::uint64_t now_ms);
  void on(const DrainDone&, std::uint64_t) { drain_done_ = true; }
  void on(const auto& message, std::uint64_t now_ms);  // about a view, or not for workers

  NodeJobsContext context_;
  std::list<AttachedJob> jobs_;
  std::string last_refusal_;  // of nothing that a trainer asked for: the coordinator's, as the log has it
  std::uint64_t refusal_ms_ = 0;
  bool draining_ = false;
  bool drain_done_ = false;
  std::uint64_t drain_due_ms_ = 0;
  bool gave_large_ = false;  // ranks gave large parts: the coordinator, which takes its time, may still ask for them
};

}  // namespace tributary
