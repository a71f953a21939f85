// RedoLogs: the redo logs of all jobs of a server, and the background thread that writes them, so that no lane ever
// waits for a disk.
//
//   lanes --append(): blocks, by reference--> a queue a job --writer thread--> RedoLog --> the blocks' pool
//
// What waits is bounded by that pool: a step without a block keeps its round open (ShardCore::stalled()). So a disk
// that is slower than the training slows it down, and one that is full stops it, if the job wants that (Plan::waits),
// until there is room: it is tried again all the time, and nothing is lost. If it does not, steps that cannot be
// written are dropped, and the log is of use again when a snapshot covers the gap. Log and status say so in both cases.
//
// Nobody waits for fsync: the thread syncs what it has written every kSyncNs. A process that is killed loses what is
// queued; a machine that loses power also what was written since the last sync.
//
// Thread rule: append() and status() from any thread; the rest from one thread (the control thread).
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/messages.h"
#include "common/result.h"
#include "server/redo_log.h"
#include "server/redo_queue.h"

namespace tributary {

struct RedoLogStatus {
  LoggedRounds range;  // on disk
  std::uint64_t bytes = 0, bound_bytes = 0;
  std::uint64_t queued = 0;   // steps
  std::uint64_t written = 0;  // bytes since the process began
  std::uint64_t dropped = 0;  // steps
  std::string error;          // why nothing can be written now
};

// What ControlJobs asks of the logs of its server.
class RedoLogOrders {
 public:
  struct Plan {
    JobId job;
    std::string name;
    std::uint32_t chunks = 0;  // that this server owns
    RedoLog::Limits limits;
    bool waits = false;  // when_full = "wait"
  };
  virtual ~RedoLogOrders() = default;
  // A view begins whose chunks may be logged; with `after` at that round, so that what was logged of later ones is
  // void.
  virtual void begin(const Plan& plan, std::optional<Round> after) = 0;
  // The job has no log (any more).
  virtual void drop(JobId job) = 0;
  // A snapshot of `round` is committed.
  virtual void trim(JobId job, Round round) = 0;
  // Calls `done` (on any thread) when everything that was appended before is on disk, or cannot be written.
  virtual void flush(JobId job, std::function<void()> done) = 0;
  // On disk, and not about to be void.
  virtual LoggedRounds range(JobId job) const = 0;
  virtual Status replay(JobId job, Round after, Round to, const RedoLog::Each& each) = 0;
  virtual std::optional<RedoLogStatus> status(JobId job) const = 0;  // none: it has no log
};

class RedoLogs final : public RedoLogOrders {
 public:
  static constexpr std::uint64_t kSyncNs = 250'000'000;
  static constexpr std::uint64_t kRetryNs = 1'000'000'000;
  // Written at once: the control thread may wait for that long when it trims.
  static constexpr std::uint64_t kBatchBytes = 16u << 20;
  static constexpr std::uint64_t kTellNs = 60'000'000'000;  // between two lines of one job that cannot write

  using Log = std::function<void(const std::string&)>;

  // Opens the logs in `folder`, of these jobs; others there are removed. kIo: the system's reason.
  static Result<std::unique_ptr<RedoLogs>> open(std::string folder, const std::vector<JobId>& jobs, Log log);
  ~RedoLogs() override;  // stop()
  RedoLogs(const RedoLogs&) = delete;
  RedoLogs& operator=(const RedoLogs&) = delete;

  void begin(const Plan& plan, std::optional<Round> after) override;
  void drop(JobId job) override;
  // Of a job without begin(): dropped.
  void append(LoggedStep step);
  void trim(JobId job, Round round) override;
  void flush(JobId job, std::function<void()> done) override;
  LoggedRounds range(JobId job) const override;
  Status replay(JobId job, Round after, Round to, const RedoLog::Each& each) override;
  std::optional<RedoLogStatus> status(JobId job) const override;
  // Writes what is queued, if that can be done at once, and ends the thread. Idempotent.
  void stop();

 private:
  struct Job {
    Plan plan;
    std::mutex disk;               // guards log; taken without mutex_ held, or before it
    std::unique_ptr<RedoLog> log;  // null: it cannot be opened now
    bool gone = false;             // guarded by disk
    // Guarded by mutex_:
    bool begun = false;
    RedoQueue queue;
    RedoLogStatus status;
    std::uint64_t retry_ns = 0;   // not before, if there is an error
    std::uint64_t failed_ns = 0;  // since when there is one
    std::uint64_t told_ns = 0;
    std::uint64_t synced_ns = 0;
    bool dirty = false;
    bool busy = false;  // the thread has some of the queue in hand
  };

  RedoLogs(std::string folder, Log log) : folder_(std::move(folder)), log_(std::move(log)) {}
  Result<std::unique_ptr<RedoLog>> open_log(JobId id) const;
  Status reopen(Job& job) const;
  std::shared_ptr<Job> next_job(std::uint64_t now, std::uint64_t& wake_ns) const;
  std::string cannot_write(const Job& job, const std::string& why) const;
  std::shared_ptr<Job> find(JobId id) const;
  void run();
  void write_some(Job& job, std::unique_lock<std::mutex>& lock);
  void failed(Job& job, const Error& error, std::unique_lock<std::mutex>& lock);
  void publish(Job& job) const;  // REQUIRES: job.disk and mutex_ held

  const std::string folder_;
  const Log log_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::map<JobId, std::shared_ptr<Job>> jobs_;
  JobId served_;  // last: the others' turns come first
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace tributary
