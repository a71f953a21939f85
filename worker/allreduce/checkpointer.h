// Checkpointer: copies the state of all chunks at one round while training continues, and writes it in the background.
// The nodes of an all-reduce job that keep checkpoints have one each. A chunk is copied when it reaches the round; when
// all have, a low-priority thread writes the copy (worker/allreduce/replica_checkpoints.h). One checkpoint at a time:
// one that becomes due meanwhile is of a later round.
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
  ~Checkpointer();  // finishes the checkpoint that is being written
  Checkpointer(const Checkpointer&) = delete;
  Checkpointer& operator=(const Checkpointer&) = delete;

  // Returns whether a chunk that has come to `round` is to be copied. If so, capture() must follow with the chunk's
  // values at that time; until it does, the answer stays the same.
  bool reaches(Round round);
  void capture(ChunkIndex chunk, const float* parameters, std::span<const float* const> slots, std::uint64_t step);
  // Writes the checkpoint of `round`, unless it exists, before it returns. REQUIRES: every chunk is at `round`.
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
