// One file of a checkpoint: the chunks of one shard at one round, with everything that belongs to them.
//
//   header: "TRIBCKPT" | u32 format | u32 shard | u64 round | u64 layout hash | u64 XXH3-64 of those
//   per chunk, ascending, its entries (server/chunk/stored_chunk.h): u32 key bytes | u32 0 | u64 value bytes |
//     u64 XXH3-64 of those and of key and value | key | value
//
// Numbers are little-endian. Chunk headers have job id 0: the file names the training, not its cluster, so the
// same state gives the same bytes.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/checksum.h"
#include "common/base/ids.h"
#include "common/base/layout.h"
#include "common/base/result.h"
#include "common/files/durable_file.h"
#include "server/checkpoint/uncached_file.h"
#include "server/chunk/stored_chunk.h"

namespace tributary {

inline constexpr std::uint32_t kCheckpointFileFormat = 1;

struct CheckpointFileInfo {
  ShardIndex shard;
  Round round;
  std::uint64_t layout_hash = 0;
  bool operator==(const CheckpointFileInfo&) const = default;
};

class CheckpointFileWriter {
 public:
  // A file of that name is replaced.
  static Result<std::unique_ptr<CheckpointFileWriter>> create(std::string path, const CheckpointFileInfo& info);
  Status add(const StoredChunk& chunk);        // chunks ascending
  Status finish() { return file_->finish(); }  // durable when it returns

  std::uint64_t bytes() const { return file_->bytes(); }
  std::string checksum() const { return file_->checksum(); }

 private:
  explicit CheckpointFileWriter(std::unique_ptr<UncachedFileWriter> file) : file_(std::move(file)) {}

  const std::unique_ptr<UncachedFileWriter> file_;
};

class CheckpointFile {
 public:
  // Reads the header. kNotFound, kIo, or kStore with the flaw.
  static Result<std::unique_ptr<CheckpointFile>> open(std::string path);
  const CheckpointFileInfo& info() const { return info_; }
  std::uint64_t bytes() const { return size_; }

  struct Place {
    std::uint64_t begin = 0, end = 0;
  };
  // Finds the chunks. Every array must have the size that the layout gives its chunk, so that no reader takes memory
  // for what a file only claims. kIo, or kStore with the flaw and its place.
  Status find_chunks(const Layout& layout);
  const std::map<ChunkIndex, Place>& chunks() const { return chunks_; }

  // Reads a chunk and checks all its checksums; an entry gets memory when those before it are whole. `whole` also gets
  // the bytes (for the file's checksum). The values are valid until the next call. kStore names the file, the chunk and
  // its damaged part. REQUIRES: chunks() has it.
  Result<StoredChunk> read(ChunkIndex chunk, Checksum128* whole = nullptr);
  Status add_header_to(Checksum128& whole);

 private:
  CheckpointFile(std::string path, FileDescriptor file);
  Status read_header();

  const std::string path_;
  const FileDescriptor file_;
  std::uint64_t size_ = 0;
  CheckpointFileInfo info_;
  std::map<ChunkIndex, Place> chunks_;
  std::vector<std::vector<char>> entries_;  // of the chunk that was read last; kept for the next
};

}  // namespace tributary
