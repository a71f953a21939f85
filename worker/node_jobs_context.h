// The shared state of a node's jobs: the ports through which their actions go out, and records of jobs whose trainers
// have gone. NodeJobs owns it. Thread rule: the attach thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/daemon/log.h"
#include "common/wire/messages.h"
#include "common/wire/redo_plan.h"
#include "common/wire/trace_buffer.h"
#include "worker/node/held_states.h"
#include "worker/node/job.h"
#include "worker/node/node_devices.h"
#include "worker/node/node_values.h"
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
  // By lane; null: it records no more. Jobs on servers only.
  virtual void trace(const std::shared_ptr<NodeJob>& /*job*/,
                     const std::vector<std::shared_ptr<TraceBuffer>>& /*buffers*/) {}
};

struct NodeJobsOptions {
  std::uint64_t incarnation = 0;
  std::uint64_t max_memory = 0;  // bytes for all jobs
  std::uint64_t peer_timeout_ms = 10'000;
  std::uint64_t stop_timeout_ms = 30'000;          // a clean stop waits for answers while they come, and so long more
  std::uint32_t max_redo_rounds = kMaxRedoRounds;  // that a redo ring has at most
  std::shared_ptr<NodeDevices> devices;            // null: everything is reduced on the host
  std::string no_allreduce;                        // why jobs of that mode are refused; empty: they are not
};

// As which node this worker joined a job, and the last view of it that began here: the coordinator may name either
// when the trainers have gone.
struct JoinRecord {
  NodeRank joined_as, begun_as;
  JobId job;
  ViewId view;
  std::weak_ptr<const NodeJob> memory;  // of that view

  bool has_begun(const JobWelcome& m) const { return job == m.job && view >= m.view; }
};

// CheckpointReports: what the ends of all-reduce views left on node 0's disk. Each is repeated to the coordinator
// until it answers. At most kMax; then the oldest gives way.
class CheckpointReports {
 public:
  static constexpr std::size_t kMax = 64;
  static constexpr std::uint64_t kRepeatMs = 5000;

  explicit CheckpointReports(CoordinatorPort& coordinator) : coordinator_(coordinator) {}

  void tell(const SnapshotDone& done, std::uint64_t now_ms) {
    coordinator_.send(done);
    if (open_.size() >= kMax) open_.erase(open_.begin());
    open_.push_back({done, now_ms + kRepeatMs});
  }
  void answered(JobId job, ViewId view) {
    std::erase_if(open_, [&](const Report& report) { return report.done.job == job && report.done.view == view; });
  }
  void forget_all() { open_.clear(); }
  bool empty() const { return open_.empty(); }
  void tick(std::uint64_t now_ms) {
    for (Report& report : open_) {
      if (now_ms < report.next_ms) continue;
      coordinator_.send(report.done);
      report.next_ms = now_ms + kRepeatMs;
    }
  }

 private:
  struct Report {
    SnapshotDone done;
    std::uint64_t next_ms = 0;
  };
  CoordinatorPort& coordinator_;
  std::vector<Report> open_;
};

struct NodeJobsContext {
  const NodeJobsOptions options;
  TrainerPort& trainers;
  CoordinatorPort& coordinator;
  LanePort& lanes;
  Logger logger;
  std::shared_ptr<MemoryBudget> budget = std::make_shared<MemoryBudget>(options.max_memory);
  RedoKeeper redo{budget, options.max_redo_rounds, logger};
  KeptParameters parameters{};
  HeldStates held{budget};
  KeptAnswers answers{};
  CheckpointReports checkpoints{coordinator};
  std::map<std::string, JoinRecord> joins{};  // by job name; at most kMaxJoins
  std::uint64_t last_join = 0;                // JoinJob::number

  static constexpr std::size_t kMaxJoins = 256;

  void refuse(TrainerId trainer, const Error& error) {
    logger->warn("refused a trainer: {}", error.message);
    trainers.send(trainer, AttachError{error.code, error.message});
  }
  // One more takes the place of another.
  JoinRecord& join_record(const std::string& job) {
    if (joins.size() >= kMaxJoins && !joins.contains(job)) joins.erase(joins.begin());
    return joins[job];
  }
  // This node, which joined as `node`, takes no part in the view that it is welcomed to.
  void decline(const JobWelcome& m, NodeRank node, const std::string& reason) {
    coordinator.send(LeaveJob{m.job, m.view, node, LeaveKind::kFailed, m.resume_round, reason, m.name});
  }
};

}  // namespace tributary
