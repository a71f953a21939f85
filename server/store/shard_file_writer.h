// ShardFileWriter: one shard's file of a checkpoint under way, written chunk by chunk out of a store's snapshot or out of
// memory. One thread.
#pragma once

#include <memory>
#include <string>

#include "common/security/path_roots.h"
#include "server/checkpoint/checkpoint_file.h"
#include "server/store/store.h"

namespace tributary {

class ShardFileWriter final : public SnapshotWriter {
 public:
  // The folder that a checkpoint under way is written into: missing folders are made, and its own name is no link.
  static Result<Folder> open(const PathRoots& roots, const std::string& directory, ShardIndex shard);
  // Replaces the shard's file in it.
  static Result<std::unique_ptr<ShardFileWriter>> create(Folder folder, ShardIndex shard, const SnapshotInfo& info);
  ~ShardFileWriter() override;  // removes a file that is not finished
  ShardFileWriter(const ShardFileWriter&) = delete;
  ShardFileWriter& operator=(const ShardFileWriter&) = delete;

  Status add(const ChunkSnapshot& chunk) override;
  Status add(const StoredChunk& chunk) override;
  Status finish() override;
  std::uint64_t bytes() const override { return file_->bytes(); }
  std::string checksum() const override { return file_->checksum(); }

 private:
  ShardFileWriter(Folder folder, ShardIndex shard, SnapshotInfo info, std::unique_ptr<CheckpointFileWriter> file);
  Status put(const StoredChunk& chunk);
  // The error as the server says it, with the folder's name in place of the way through its descriptor.
  tl::unexpected<Error> in_words(const Error& error) const;

  const Folder folder_;
  const ShardIndex shard_;
  const SnapshotInfo info_;
  const std::unique_ptr<CheckpointFileWriter> file_;
  std::uint32_t chunks_ = 0;
  bool finished_ = false;
};

}  // namespace tributary
