#include "server/store/shard_file_writer.h"

#include <filesystem>
#include <system_error>
#include <utility>

#include "common/files/checkpoint_manifest.h"
#include "common/files/durable_file.h"
#include "server/chunk/chunk_record.h"
#include "server/store/disk_space.h"
#include "server/store/snapshot_file.h"

namespace tributary {
namespace {

namespace fs = std::filesystem;

std::string me(ShardIndex shard) {
  return "server " + std::to_string(shard.value) + ": ";
}

}  // namespace

// The way to the folder may have links, as loads may: its own name is no link, which somebody may have put there.
Result<Folder> ShardFileWriter::open(const PathRoots& roots, const std::string& directory, ShardIndex shard) {
  const fs::path path(directory);
  Result<Folder> folder = roots.open(path.parent_path().string(), true);
  if (folder) folder = folder->enter(path.filename().string(), true);
  if (folder) return folder;
  return fail(ErrorCode::kIo,
              me(shard) + folder.error().message + "; save into a directory that every server may write");
}

ShardFileWriter::ShardFileWriter(Folder folder, ShardIndex shard, SnapshotInfo info,
                                 std::unique_ptr<CheckpointFileWriter> file)
    : folder_(std::move(folder)), shard_(shard), info_(std::move(info)), file_(std::move(file)) {}

Result<std::unique_ptr<ShardFileWriter>> ShardFileWriter::create(Folder folder, ShardIndex shard,
                                                                 const SnapshotInfo& info) {
  auto file = CheckpointFileWriter::create(folder.in(shard_file_name(shard)), {shard, info.round, info.layout_hash});
  if (!file) return fail(file.error().code, me(shard) + folder.named(file.error()).message);
  return std::unique_ptr<ShardFileWriter>(new ShardFileWriter(std::move(folder), shard, info, std::move(*file)));
}

// Half of a file is of no use, and the disk may be full.
ShardFileWriter::~ShardFileWriter() {
  std::error_code ignored;
  if (!finished_) fs::remove(folder_.in(shard_file_name(shard_)), ignored);
}

tl::unexpected<Error> ShardFileWriter::in_words(const Error& error) const {
  return fail(error.code, me(shard_) + folder_.named(error).message);
}

// It may be the store's disk, which is needed more.
Status ShardFileWriter::put(const StoredChunk& chunk) {
  Status status = room_on_disk(folder_.through(), bytes_of(chunk) + kSpareBytes);
  if (status) status = file_->add(chunk);
  if (!status) return in_words(status.error());
  ++chunks_;
  return {};
}

Status ShardFileWriter::add(const StoredChunk& chunk) {
  StoredChunk nobodys = chunk;
  std::string sealed;
  const Status renamed = records::rename_job(nobodys, JobId(0), sealed);
  return renamed ? put(nobodys) : in_words(renamed.error());
}

Status ShardFileWriter::add(const ChunkSnapshot& chunk) {
  std::string sealed;
  return put(records::compose_chunk(chunk, JobId(0), info_.optimizer, sealed));
}

Status ShardFileWriter::finish() {
  if (chunks_ != info_.chunks) {
    return fail(ErrorCode::kInternal, me(shard_) + "the " + describe(info_) + " has " + std::to_string(chunks_) +
                                          " of " + std::to_string(info_.chunks) + " chunks");
  }
  Status status = file_->finish();
  if (status) status = sync_directory(folder_.through());
  if (!status) return in_words(status.error());
  finished_ = true;
  return {};
}

}  // namespace tributary
