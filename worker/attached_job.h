// AttachedJob: a job on this node, from the first trainer that attaches to the last that goes, phase by phase
// (worker/attached_job_phases.h). NodeJobs owns it. It runs in one view only. Pure, but for the shared memory that it
// creates.
//
// A trainer that goes while gathering only frees its place. One that goes without detaching while running is a loss:
// the coordinator is told, the others are asked to attach again. Trainers that left cleanly wait to hear the
// outcome: whether the state that the job ended with is saved.
//
// Thread rule: the attach thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "worker/attached_job_phases.h"
#include "worker/local_trainers.h"
#include "worker/node/job.h"
#include "worker/node_jobs_context.h"
#include "worker/node_trace.h"

namespace tributary {

// A job's data for /status and /metrics.
struct NodeJobSummary {
  std::string name, phase;
  std::uint32_t node = 0, local_world_size = 0, world_size = 0;
  struct RankSummary {
    std::uint32_t rank = 0, local_rank = 0;
    std::int32_t pid = 0;
  };
  std::vector<RankSummary> attached;
  std::string last_refusal;      // of a join that is tried again
  Figures figures;               // what its ranks reported last, together
  std::shared_ptr<NodeJob> job;  // while running
};

class AttachedJob {
 public:
  static constexpr std::uint64_t kJoinRetryMs = 500;        // after "not now" from the coordinator
  static constexpr std::uint64_t kTellWaitsMs = 2000;       // to trainers that attach: who is missing
  static constexpr std::uint64_t kJoinRepeatMs = 5000;      // while the coordinator says nothing
  static constexpr std::uint64_t kGiveRepeatMs = 2000;      // until the first state comes back from the coordinator
  static constexpr std::uint64_t kAddressRepeatMs = 2000;   // until all nodes of an all-reduce view have connected
  static constexpr std::uint64_t kLeaveRepeatMs = 5000;     // until the coordinator has said StopJob
  static constexpr std::uint64_t kCheckpointRetryMs = 100;  // while the last view's checkpoint is being written
  static constexpr std::uint64_t kRingRetryMs = 20;         // while a lane has not closed the last view
  // For its word that trainers may stop, while no answer comes: then they are asked to all the same.
  static constexpr std::uint64_t kStopRequestMs = 5000;
  // For the coordinator's words after it has missed a node for peer_timeout_ms.
  static constexpr std::uint64_t kVerdictMs = 2000;

  // As its first trainer says.
  AttachedJob(NodeJobsContext& context, const JobConfig& config, const AttachRequest& request);
  ~AttachedJob();
  AttachedJob(const AttachedJob&) = delete;
  AttachedJob& operator=(const AttachedJob&) = delete;

  const std::string& name() const { return plan_->name(); }
  const LocalTrainers& trainers() const { return trainers_; }
  std::pair<JobId, ViewId> view() const;  // that it has or had a part in; 0: none
  bool takes_trainers() const { return !in<attached::Left>() && !over(); }
  bool joining() const { return in<attached::Joining>(); }
  // The coordinator chooses, or has chosen, where a view begins by what this node has said that it keeps.
  bool awaits_view() const { return joining() || in<attached::Agreeing>(); }
  // The coordinator answers a join. Is it one of this job's, or none in particular?
  bool asked(std::uint64_t join) const { return join == 0 || join == number_; }
  bool over() const { return in<attached::Over>(); }
  std::shared_ptr<NodeJob> running() const;  // null: it is not
  bool finished() const;                     // nobody is attached, and nothing is to be said
  // Like NodeJobs::drained(), as far as this job goes. coordinator_done: it has said that it has no part of ours open.
  bool drained(bool coordinator_done) const;
  NodeJobSummary summary() const;

  // Trainers, by local rank. admit(): may one more take part?
  Status admit(const AttachRequest& request, const JobConfig& config) const;
  void attach(TrainerId id, const AttachRequest& request, int peer_pid, FileDescriptor kept, std::uint64_t now_ms);
  void initial_values(std::uint32_t local_rank);
  void rank_state(std::uint32_t local_rank, const RankState& state);
  void held_state(std::uint32_t local_rank, KeptState state, std::uint64_t now_ms);
  void values(std::uint32_t local_rank, const SharedValues& said, std::uint64_t now_ms);
  void figures(std::uint32_t local_rank, const Figures& figures) { trainers_.at(local_rank).figures.renew(figures); }
  void detach(std::uint32_t local_rank, const Detach& detach, std::uint64_t now_ms);
  void gone(std::uint32_t local_rank, std::uint64_t now_ms);

  // The coordinator. on() takes those of its messages that name this job's view.
  void join(std::uint64_t now_ms);
  void welcome(const JobWelcome& m, std::uint64_t now_ms);  // REQUIRES: joining()
  void refused(const Error& error, std::uint64_t now_ms);   // REQUIRES: joining()
  void waits(const JobWaits& m);                            // REQUIRES: joining()
  void on(const PeerAddress& m, std::uint64_t now_ms);
  void on(const SnapshotAt& m, std::uint64_t now_ms);
  void on(const NodeRankState& m, std::uint64_t now_ms);
  void on(const StatePart& m, std::uint64_t now_ms);
  void on(const RankValues& m, std::uint64_t now_ms);
  void on(const StopRequest& m, std::uint64_t now_ms);
  void on(const TraceRounds& m, std::uint64_t now_ms);
  void on(const StopJob& m, std::uint64_t now_ms);
  void on(const SnapshotDone& m, std::uint64_t now_ms);
  void coordinator_restarted(std::uint64_t now_ms);
  void say_values();  // all that the coordinator may not have heard

  void lane_failed(const LaneFailure& failure, std::uint64_t now_ms);  // REQUIRES: running()
  // All-reduce: what the view's other nodes need to connect to this one.
  void publish(const PeerAddress& address, std::uint64_t now_ms);
  void tick(std::uint64_t now_ms);
  void drain(const Error& why, std::uint64_t now_ms);  // it stops after its round, or does not begin
  void abandon(const std::string& reason);             // its view is cut

 private:
  template <class Phase>
  bool in() const {
    return std::holds_alternative<Phase>(phase_);
  }
  std::string in_words() const { return job_in_words(name()); }
  bool awaits_outcome() const;

  // attached_job_begin.cc
  Status begin(const JobWelcome& m, std::uint64_t now_ms);
  Status run(const JobWelcome& m, NodeJobSpec spec, std::uint64_t now_ms);
  void decline(const JobWelcome& m, const Error& error);
  void deliver_states(attached::Running& running, const JobWelcome& m, std::uint64_t now_ms);
  void keep_parameters(attached::Running& running);

  // attached_job_values.cc
  void carry_out(const NodeValues::Actions& actions);

  // attached_job.cc
  LeaveJob leave(LeaveKind kind, Round round, const std::string& message);
  void leave_if_all_detached(attached::Running& running, std::uint64_t now_ms);
  void stop_after(attached::Running& running, StopKind kind);
  std::optional<Round> last_of_left(const attached::Running& running) const;  // nobody has left: none
  void stop_others(attached::Running& running, StopKind kind);
  void lose(attached::Running& running, std::uint32_t local_rank, const std::string& what);
  void cut(attached::Running& running, const std::string& reason);
  StopJob cut_message(Round round = {}, const std::string& reason = {}) const;
  void end(attached::Running& running, StopJob stop);
  void fail_with(const Error& error);
  Status unsaved(const Error& error);
  void set_outcome(const Status& outcome);
  void become_over(attached::Over over);
  void tell_outcome(const attached::Over& over, const LocalTrainer& trainer);
  void tick(attached::Running& running, std::uint64_t now_ms);
  void tell_waits(std::uint64_t now_ms);
  void repeat_addresses(std::uint64_t now_ms);
  void end_trace();
  // Gives the state of the view's first rank to the trainers, for those that have no state.
  void deliver_first(attached::Running& running, const RankState& state, std::uint64_t now_ms);

  NodeJobsContext& context_;
  const std::shared_ptr<const JobPlan> plan_;
  const std::vector<TensorSpec> tensors_;
  std::uint64_t number_ = 0;  // JoinJob::number: another one whenever other trainers join
  // All-reduce: the newest that was here when it joined first, or why none can be read.
  std::optional<Result<Round>> checkpoint_;
  LocalTrainers trainers_;
  attached::Phase phase_;
  std::optional<NodeTrace> trace_;

  // From phase to phase.
  std::vector<FileDescriptor> brought_;  // by trainers, of an earlier worker process, until the job is joined
  std::string last_refusal_;             // of a join, until a view runs
  std::uint64_t waits_told_ms_ = 0;
  std::vector<PeerAddress> addresses_;  // this node's, of an all-reduce view
  std::uint64_t addresses_told_ms_ = 0;
  bool told_of_redo_ = false;  // that nothing is kept for lost servers
  bool told_of_held_ = false;  // that what a rank keeps is not held
  // Device memory may be freed only when no trainer has it open any more.
  std::shared_ptr<DeviceLender> lent_;
};

}  // namespace tributary
