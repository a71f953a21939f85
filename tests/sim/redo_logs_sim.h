// server/redo_logs.h without its thread and its files: the same orders, the same outcomes, a record at a time on the
// virtual clock.
//
// A batch takes a step of the disk, and its records reach it one after another: of a process that is killed those are
// there that had. What was not synced when the power failed is there, lost or torn, and the log ends at the first
// record that is not whole. A full disk has room only in the file that is open, and so has a log that is at its bound,
// but for the record that says what is void.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "server/redo_logs.h"
#include "tests/sim/disk_sim.h"
#include "tests/sim/wires.h"

namespace tributary::sim {

class RedoLogsSim final : public RedoLogOrders {
 public:
  struct Options {
    std::uint64_t step_ns = 1'000'000;
    std::uint32_t file_records = 16;
    std::uint32_t bound_rounds = 0;  // that have room, and two files besides (server/redo_record.h); 0: no bound
    std::function<void()> at_bound;
    // Planted bugs: what is logged of later rounds stays when a view goes back; a flush waits for nothing; records that
    // are not whole are taken; what cannot be written does not wait.
    bool cuts = true, flushes = true, checks = true, holds = true;
  };
  // As RedoLogs::open().
  RedoLogsSim(Process& owner, Disk& disk, const std::vector<StoredJob>& stored, Options options);

  void append(LoggedStep step);
  void begin(const Plan& plan, std::optional<Round> after) override;
  void drop(JobId job) override;
  void trim(JobId job, Round round) override;
  void flush(JobId job, std::function<void()> done) override;
  LoggedRounds range(JobId job) const override;
  Status replay(JobId job, Round after, Round to, const RedoLog::Each& each) override;
  std::optional<RedoLogStatus> status(JobId job) const override;
  bool idle(JobId job) const;   // nothing is on its way
  bool whole(JobId job) const;  // the disk has taken all steps

 private:
  struct Job {
    Plan plan;
    bool begun = false;
    bool anew = false;  // there had been a log, with void steps
    RedoQueue queue;
    std::deque<RedoQueue::Item> in_hand;
    RedoQueue::Calls flushed;  // by the batch in hand
    std::uint64_t batch = 0;
    bool written = false;  // something of it
    RedoIndex index;
    RedoLogStatus status;
    std::uint64_t retry_ns = 0, synced_ns = 0;
    std::optional<std::uint32_t> file;  // that is open, for so many records more
    std::uint32_t room = 0;
    bool dirty = false, busy = false;
    std::uint64_t wake_ns = ~0ull;
  };
  Disk::Log& disk_log(const Job& job) { return disk_.logs[job.plan.job]; }
  static void give_back(Job& job);
  void later(const std::shared_ptr<Job>& job, std::uint64_t delay_ns, void (RedoLogsSim::*what)(Job&));
  void work(Job& job);
  void write_next(Job& job);
  void end_batch(Job& job, const Status& status);
  void sync(Job& job);
  void failed(Job& job, const Error& error);
  Status write(Job& job, RedoQueue::Item& item);
  Status begin_file(Job& job, bool cut);
  std::shared_ptr<Job> find(JobId id) const;

  Process& owner_;
  Disk& disk_;
  const Options options_;
  std::map<JobId, std::shared_ptr<Job>> jobs_;
};

}  // namespace tributary::sim
