// Checkpoints of all-reduce jobs: the state of all chunks at one round, in one file of node 0's worker.
//
//   STORE/allreduce/JOB-HASH/round-R.ckpt     JOB: the job's name, made fit for a file name; HASH: of the name
//
// (Earlier releases made the hash of the name and the layout. Such folders are read, too.)
//
//   CheckpointHeader | name, a zero, the job's JSON, padded with zeros to 8 bytes |
//   per chunk: ChunkRecord, parameters, state arrays (fp32)
//
// Numbers are little-endian. A file is written beside its place, synced and renamed, so that what bears the name is
// complete; every value is checked all the same when it is read. The newest two are kept.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/ids.h"
#include "common/layout.h"
#include "common/result.h"

namespace tributary {

inline constexpr std::uint64_t kCheckpointMagic = 0x74706b6354524942ull;
inline constexpr std::uint32_t kCheckpointFormat = 1;

struct CheckpointHeader {
  std::uint64_t magic = kCheckpointMagic;
  std::uint32_t format = kCheckpointFormat;
  std::uint32_t slots = 0;  // state arrays per parameter
  std::uint64_t layout_hash = 0;
  std::uint64_t round = 0;
  std::uint64_t chunks = 0;
  std::uint64_t elements = 0;    // of all chunks
  std::uint64_t name_bytes = 0;  // of the name, the zero and the JSON
  std::uint64_t checksum = 0;    // XXH3-64 of this header with checksum 0, and of those
};
struct ChunkRecord {
  std::uint64_t chunk = 0;
  std::uint64_t step = 0;
  std::uint64_t elements = 0;
  std::uint64_t checksum = 0;  // XXH3-64 of the three above and of the arrays
};
static_assert(sizeof(CheckpointHeader) == 64 && sizeof(ChunkRecord) == 32);

// The state of one job, in flat arrays of layout.flat_elements() values.
struct CheckpointView {
  std::string_view job_name;
  const Layout* layout = nullptr;
  Round round;
  const float* parameters = nullptr;
  std::span<const float* const> slots;
  std::span<const std::uint64_t> steps;  // by chunk
  std::string_view job_json = {};        // canonical: what the job was when it was written
};
struct CheckpointTarget {
  float* parameters = nullptr;
  std::span<float* const> slots;
  std::span<std::uint64_t> steps;
};

// Writes STORE's file for view.round and removes all but the newest two of the job.
Status write_checkpoint(const std::string& store_path, const CheckpointView& view);

// Reads the checkpoint of `round` into `target`. kNotFound, kIo, or kStoreFormat: the message names file and flaw.
Status read_checkpoint(const std::string& store_path, std::string_view job_name, const Layout& layout, Round round,
                       const CheckpointTarget& target);

// The newest round whose checkpoint of this job is whole: it can be read and its checksums hold. Round 0: there is
// none. An error if there are files but none of them is whole; it names the newest and what is wrong with it.
// kConfigMismatch if the newest is another training's under the same name (common/job_json.h says what that is), or has
// another layout: a job never begins anew because it was changed. job_json: this job's, empty: not compared.
Result<Round> newest_checkpoint(const std::string& store_path, std::string_view job_name, std::uint64_t layout_hash,
                                std::string_view job_json = {});

}  // namespace tributary
