// The chunks of one snapshot as sorted RocksDB files (SST), and back. Keys and values: server/chunk/stored_chunk.h.
#pragma once

#include <rocksdb/iterator.h>
#include <rocksdb/options.h>
#include <rocksdb/sst_file_writer.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "server/chunk/stored_chunk.h"
#include "server/shard/shard_core.h"
#include "server/store/records.h"
#include "server/store/store.h"

namespace tributary {

// A file is closed at the first chunk boundary after so many bytes.
inline constexpr std::uint64_t kSnapshotFileBytes = 64u << 20;

// "snapshot of round 7 of job 'mlp' (job id 12)": for messages.
std::string describe(const SnapshotInfo& info);

class SnapshotFileWriter {
 public:
  // Files are named `prefix`0.sst, `prefix`1.sst, ...
  SnapshotFileWriter(const rocksdb::Options& options, std::string prefix, SnapshotInfo info);
  ~SnapshotFileWriter();  // removes the files that were not taken
  SnapshotFileWriter(const SnapshotFileWriter&) = delete;
  SnapshotFileWriter& operator=(const SnapshotFileWriter&) = delete;

  // Ascending chunks, each once (kInternal otherwise). kStore: the disk's reason.
  Status add(const ChunkSnapshot& chunk);
  // As it lies in another store or a checkpoint, but with this job's header.
  Status add(const StoredChunk& chunk);
  // Synced and closed.
  Status close();

  const std::vector<std::string>& files() const { return files_; }
  const std::vector<ChunkIndex>& chunks() const { return chunks_; }
  std::uint64_t bytes() const { return bytes_; }

 private:
  Status begin_chunk(ChunkIndex chunk);
  Status put(const std::string& key, const rocksdb::Slice& value);
  Status end_chunk();
  Error disk_error(const rocksdb::Status& status) const;

  const rocksdb::Options options_;
  const std::string prefix_;
  const SnapshotInfo info_;
  std::unique_ptr<rocksdb::SstFileWriter> open_;
  std::uint64_t open_bytes_ = 0;
  std::uint64_t bytes_ = 0;
  std::vector<std::string> files_;
  std::vector<ChunkIndex> chunks_;
};

// Calls `each` for every chunk of `record`, in order. kStore, naming chunk and snapshot,
// if one is missing, damaged, or another's.
Status read_snapshot(rocksdb::Iterator& iterator, const records::SnapshotRecord& record, const EachChunk& each);

// The same without looking into the chunks, as they are stored. RocksDB checks its blocks; the arrays' checksum is in
// the header, for their users.
Status read_stored(rocksdb::Iterator& iterator, const records::SnapshotRecord& record,
                   const std::function<Status(const StoredChunk&)>& each);
// One of its chunks.
Status read_stored(rocksdb::Iterator& iterator, const records::SnapshotRecord& record, ChunkIndex chunk,
                   const std::function<Status(const StoredChunk&)>& each);

}  // namespace tributary
