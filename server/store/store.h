// Store: a server's data on disk (RocksDB): its identity, the coordinator's job registry, and consistent snapshots.
//
// Column families: "default" holds small records (written with sync); every snapshot is a column family of its own
// ("snap-JOB-ROUND-GENERATION"), filled by SST files that are written outside the write-ahead log and ingested, and
// made valid by one synced key in "default" (snapshot complete). A snapshot without that key is a leftover of a crash,
// or has lost its key: it is set aside, with a warning, until a later snapshot of its job is complete. Copies of other
// servers' parts ("copy-JOB-ROUND-SHARD-GENERATION") are the same, but a leftover is dropped at open. Large parts of
// ranks' states are families as well (server/store/large_part_families.h). Every record has a format number and an
// XXH3-64 checksum, checked on load.
//
// Thread rule: one thread at a time writes a snapshot; small records may be written from another thread. jobs() and
// has() wait for no disk.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/wire/messages.h"
#include "server/chunk/chunk_state.h"
#include "server/chunk/stored_chunk.h"
#include "server/coordinator/cluster/job_record.h"
#include "server/coordinator/cluster/job_registry.h"

namespace tributary {

// The identity of a snapshot. A load with other values is refused: kStore names both.
struct SnapshotInfo {
  JobId job;
  std::string job_name;
  Round round;
  std::uint64_t layout_hash = 0;
  std::string optimizer;  // name: the state arrays mean something to this optimizer only
  std::uint32_t chunks = 0;
  ShardIndex shard = {};  // whose part of the snapshot: this server's own, or another's, of which this is a copy
};

// Where the chunks of a snapshot go: into the store, or into a file of a checkpoint.
class SnapshotWriter {
 public:
  virtual ~SnapshotWriter() = default;
  // Chunks in ascending order, each once.
  virtual Status add(const ChunkSnapshot& chunk) = 0;
  virtual Status add(const StoredChunk& chunk) = 0;  // of a checkpoint; its header names this job
  // Durable and complete when it returns. kStore if not all info.chunks chunks were added.
  virtual Status finish() = 0;
  virtual std::uint64_t bytes() const = 0;
  virtual std::string checksum() const { return {}; }  // a checkpoint's file, when it is finished
  // Destroyed without finish(): the snapshot is dropped.
};

// A complete snapshot that can be read although it may be dropped meanwhile. Goes before its store.
struct PinnedSnapshot {
  using Each = std::function<Status(const StoredChunk&)>;
  SnapshotInfo info;
  std::vector<ChunkIndex> chunks;  // ascending
  std::function<Status(const Each&)> read;
  std::function<Status(std::size_t place, const Each&)> read_one;  // chunks[place]
};

using EachChunk = std::function<Status(ChunkIndex, ChunkState)>;

class Store : public JobRegistry {
 public:
  // Opens or creates. kStore: held by another process, or it belongs to another server index (both are named);
  // kStoreFormat: written by a newer format (both numbers are named). warn: gets the
  // database's warnings and errors, on any thread; may be empty.
  using Warn = std::function<void(const std::string&)>;
  static Result<std::unique_ptr<Store>> open(const std::string& path, std::uint16_t server_index, Warn warn = {});

  // Complete snapshots that are here, by job and shard.
  virtual std::vector<StoredJob> jobs() const = 0;
  virtual bool has(JobId job, Round round, ShardIndex shard) const = 0;  // that part, complete
  virtual Result<std::unique_ptr<SnapshotWriter>> begin(const SnapshotInfo& info) = 0;
  virtual Status load(const SnapshotInfo& expected, const EachChunk& each) = 0;
  // kNotFound: it is not here.
  virtual Result<PinnedSnapshot> pin(JobId job, Round round, ShardIndex shard) = 0;
  // Complete snapshots of that job and of these rounds, `last` included; copies, too.
  virtual Status drop(JobId job, Round first, Round last) = 0;
  virtual Status drop_job(JobId job) = 0;  // all of its snapshots

  virtual std::string path() const = 0;
};

}  // namespace tributary
