// Checkpointer: copies the state of all chunks at one round while training goes on, and writes it in the background.
// Node 0's, in all-reduce jobs. A chunk is copied when it reaches the round; when all have, a thread of low priority
// writes it (worker/allreduce/replica_checkpoints.h). One checkpoint at a time: one that becomes due meanwhile is of a
// later round.
//
// Thread rule: reaches() and capture() from any thread, one at a time for a chunk; finish() when none can come any
// more.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "common/config/config.h"
#include "common/daemon/log.h"
#include "worker/allreduce/replica_checkpoints.h"
#include "worker/allreduce/replica_state.h"

namespace tributary {

class Checkpointer {
 public:
  Checkpointer(std::string store_path, const JobConfig& job, std::shared_ptr<const Layout> layout, Round start,
               ReplicaState& state, Logger logger);
  ~Checkpointer();  // what is being written is finished
  Checkpointer(const Checkpointer&) = delete;
  Checkpointer& operator=(const Checkpointer&) = delete;

  // A chunk has come to `round`. Is it to be copied? Then capture() must follow, with the values that it had then,
  // whatever has come since; until it does, the answer stays the same.
  bool reaches(Round round);
  void capture(ChunkIndex chunk, const float* parameters, std::span<const float* const> slots, std::uint64_t step);
  // Every chunk is at `round`: writes it, if it is not there already, before it returns.
  Status finish(Round round);

  Round written() const;  // newest one of this run; 0: none

 private:
  bool due(Round round, std::uint64_t now_ms) const;
  void run();
  Status write(Round round, const ReplicaArrays& state);

  const std::string job_name_;
  const std::shared_ptr<const Layout> layout_;
  const ReplicaCheckpoints checkpoints_;
  const SnapshotConfig config_;
  ReplicaState& state_;
  const Logger logger_;

  // Copies, allocated for the first checkpoint. Written by capture(), each chunk's part by one thread; read by the
  // writer once all are there.
  std::vector<FloatArray> copies_;  // parameters, then state arrays
  std::vector<std::uint64_t> copied_steps_;

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  Round newest_;          // that any chunk has reached
  Round capturing_;       // 0: none
  std::size_t left_ = 0;  // chunks that have not reached capturing_
  bool busy_ = false;     // from the first copy to the end of the writing
  bool owed_ = false;     // one became due while it was busy
  bool stopping_ = false;
  Round written_;
  std::uint64_t last_ms_ = 0;  // when the last one was begun
  std::thread thread_;
};

}  // namespace tributary
