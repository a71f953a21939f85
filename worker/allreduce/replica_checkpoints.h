// ReplicaCheckpoints: the checkpoints of one all-reduce job, which a node's worker keeps below its own [store] path:
//
//   STORE/allreduce/NAME-round-R/   a checkpoint of one shard, as servers write it (common/files/checkpoint_manifest.h)
//
// So `tributary checkpoint list`, `verify` and `export` read them, too. A checkpoint is written in a directory next to
// its final one, synced and renamed; every value is also checked when it is read. The last two are kept.
//
// Thread rule: const; one thread at a time for a job's directories.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/layout.h"
#include "common/base/result.h"
#include "common/config/config.h"
#include "server/chunk/chunk_state.h"

namespace tributary {

// A job's whole state, in flat arrays of layout.flat_elements() values.
struct ReplicaArrays {
  float* parameters = nullptr;
  std::span<float* const> slots;   // the optimizer's state arrays
  std::span<std::uint64_t> steps;  // by chunk

  ChunkState copy_of(ChunkIndex chunk, const ChunkRange& range) const;
  void take(ChunkIndex chunk, const ChunkRange& range, const ChunkState& state) const;
};

class ReplicaCheckpoints {
 public:
  // layout outlives this.
  ReplicaCheckpoints(std::string store_path, JobConfig job, const Layout& layout);

  // Writes the checkpoint of `round`, replacing an existing one, and removes the job's older ones but for the newest of
  // them. (Later ones could not be read when the job began: they stay until the job comes to their round.)
  Status write(Round round, const ReplicaArrays& state) const;

  // kNotFound, kIo, or kStore: the message names file and flaw.
  Status read(Round round, const ReplicaArrays& state) const;

  // Returns the newest round whose checkpoint is complete: it can be read and its checksums hold. Round 0: there is
  // none. If checkpoints exist but none is complete, the error names the newest and its flaw. kConfigMismatch if the
  // newest is another training's under the same name (defined in common/config/job_json.h), or has another layout: a
  // changed job never restarts from scratch.
  Result<Round> newest() const;

  std::string path_of(Round round) const;

 private:
  // Returns the rounds of all directories whose names end with `suffix`, complete or not, newest first.
  std::vector<Round> rounds(const std::string& suffix = {}) const;
  void remove_older(Round newest) const;
  Status same_training(Round round, const std::string& path, const std::string& job_json,
                       std::uint64_t layout_hash) const;

  const std::string store_path_;
  const JobConfig job_;
  const Layout& layout_;
};

}  // namespace tributary
