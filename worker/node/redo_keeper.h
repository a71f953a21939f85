// RedoKeeper: the redo rings of the jobs on a node, from view to view. Thread rule: the attach thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/config/config.h"
#include "common/daemon/log.h"
#include "common/wire/messages.h"
#include "worker/node/job.h"
#include "worker/reduce/redo_ring.h"

namespace tributary {

class RedoKeeper {
 public:
  // Without a view a ring is kept this long.
  static constexpr std::uint64_t kKeepMs = 600'000;

  // max_rounds: that a ring has, whatever the job would like.
  RedoKeeper(std::shared_ptr<MemoryBudget> budget, std::uint32_t max_rounds, Logger logger)
      : budget_(std::move(budget)), max_rounds_(max_rounds), logger_(logger) {}

  // Takes the ring of an earlier worker process from a trainer. Ignores it if there is a ring already, or if it is no
  // such ring (with a line in the log).
  void adopt(const JobConfig& config, NodeRank node, const std::vector<TensorSpec>& tensors,
             std::span<const std::uint32_t> model_ranks, FileDescriptor fd, std::uint64_t now_ms);
  // Returns whether a lane may still write into the ring, because it has not closed the last view: the next one waits.
  bool busy(const std::string& job) const;
  // Fills in the facts about kept pushes for the coordinator. Returns why no pushes will be kept, in words, if the job
  // asks for it; else nothing. spare: bytes of the budget that are free when a view wants them. REQUIRES: not busy().
  std::string describe(const JobConfig& config, JoinJob& join, std::uint64_t spare = 0) const;
  // Returns the ring of a view that begins; null if pushes are not to be kept. Its frames stay if they were pushed in
  // views of the same nodes. kUnavailable if the welcome counts on pushes that are not here; kLimit without memory.
  // REQUIRES: not busy().
  Result<std::shared_ptr<RedoRing>> begin(const JobConfig& config, NodeRank node, const Layout& layout,
                                          const JobWelcome& welcome, std::uint64_t now_ms);
  bool keeps(const std::string& name, JobId job) const;
  // Drops a ring without later rounds: no view of the job is open or awaited, and a snapshot has everything up to that
  // round.
  void covered(JobId job, Round round);
  // Keeps the job's ring from ageing: the job has a view.
  void in_use(const std::string& job, std::uint64_t now_ms);
  void tick(std::uint64_t now_ms);

 private:
  struct Kept {
    std::shared_ptr<RedoRing> ring;
    std::shared_ptr<const BudgetShare> share;
    std::uint64_t seen_ms = 0;
  };
  std::uint32_t rounds_for(const JobConfig& config, const Layout& layout) const;

  const std::shared_ptr<MemoryBudget> budget_;
  const std::uint32_t max_rounds_;
  Logger logger_;
  std::map<std::string, Kept> kept_;  // by job name
};

}  // namespace tributary
