#include "server/store/snapshot_file.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <span>
#include <system_error>
#include <utility>

#include "common/base/checksum.h"

namespace tributary {
namespace {

std::string what_chunk(ChunkIndex chunk, const SnapshotInfo& info) {
  return "chunk " + std::to_string(chunk.value) + " of the " + describe(info);
}

// From where the iterator is.
Status read_here(rocksdb::Iterator& iterator, const SnapshotInfo& info, std::span<const ChunkIndex> chunks,
                 const std::function<Status(const StoredChunk&)>& each) {
  std::vector<std::string> values;
  for (const ChunkIndex chunk : chunks) {
    StoredChunk stored{chunk, {}};
    values.clear();
    for (; iterator.Valid(); iterator.Next()) {
      const std::string_view key = iterator.key().ToStringView();
      if (key.size() < kMinChunkKey || chunk_of_key(key) != chunk) break;
      if (stored.entries.empty() != (part_of_key(key) == kHeaderPart)) break;
      stored.entries.push_back({std::string(key), {}});
      values.push_back(iterator.value().ToString());  // a block's memory goes with the iterator's next step
    }
    if (!iterator.status().ok() || stored.entries.empty()) {
      return fail(ErrorCode::kStore, what_chunk(chunk, info) + " is damaged: " +
                                         (iterator.status().ok() ? "it is missing" : iterator.status().ToString()) +
                                         "; check the disk");
    }
    for (std::size_t i = 0; i < values.size(); ++i) stored.entries[i].value = values[i];
    if (Status status = each(stored); !status) return status;
  }
  return {};
}

}  // namespace

std::string describe(const SnapshotInfo& info) {
  return "snapshot of round " + std::to_string(info.round.value) + " of job '" + info.job_name + "' (job id " +
         std::to_string(info.job.value) + ")";
}

SnapshotFileWriter::SnapshotFileWriter(const rocksdb::Options& options, std::string prefix, SnapshotInfo info)
    : options_(options), prefix_(std::move(prefix)), info_(std::move(info)) {
  chunks_.reserve(info_.chunks);
}

SnapshotFileWriter::~SnapshotFileWriter() {
  open_.reset();
  for (const std::string& file : files_) {
    std::error_code ignored;  // ingested files are gone already; others are removed at the next open
    std::filesystem::remove(file, ignored);
  }
}

Error SnapshotFileWriter::disk_error(const rocksdb::Status& status) const {
  return Error{ErrorCode::kStore, "cannot write the " + describe(info_) + " to " + prefix_ +
                                      "*.sst: " + status.ToString() +
                                      "; free space or check the disk; training goes on without it"};
}

Status SnapshotFileWriter::put(const std::string& key, const rocksdb::Slice& value) {
  if (auto status = open_->Put(key, value); !status.ok()) {
    return tl::unexpected<Error>(disk_error(status));
  }
  open_bytes_ += value.size();
  bytes_ += value.size();
  return {};
}

Status SnapshotFileWriter::begin_chunk(ChunkIndex chunk) {
  if (!chunks_.empty() && chunk <= chunks_.back()) {
    return fail(ErrorCode::kInternal, what_chunk(chunk, info_) + " came after chunk " +
                                          std::to_string(chunks_.back().value) +
                                          "; chunks are written in ascending order");
  }
  if (!open_) {
    files_.push_back(prefix_ + std::to_string(files_.size()) + ".sst");
    // Past the page cache, where the file system can: the bytes are not read again, and copying them there and writing
    // them back costs as much processor time as all the rest.
    rocksdb::EnvOptions direct(options_);
    direct.use_direct_writes = true;
    open_ = std::make_unique<rocksdb::SstFileWriter>(direct, options_);
    open_bytes_ = 0;
    auto opened = open_->Open(files_.back());
    if (opened.IsInvalidArgument() || opened.IsNotSupported() || opened.IsIOError()) {
      open_ = std::make_unique<rocksdb::SstFileWriter>(rocksdb::EnvOptions(options_), options_);
      opened = open_->Open(files_.back());
    }
    if (!opened.ok()) return tl::unexpected<Error>(disk_error(opened));
  }
  chunks_.push_back(chunk);
  return {};
}

Status SnapshotFileWriter::end_chunk() {
  return open_bytes_ >= kSnapshotFileBytes ? close() : Status{};
}

Status SnapshotFileWriter::add(const StoredChunk& chunk) {
  if (Status begun = begin_chunk(chunk.chunk); !begun) return begun;
  for (const StoredEntry& entry : chunk.entries) {
    if (Status status = put(entry.key, rocksdb::Slice(entry.value.data(), entry.value.size())); !status) return status;
  }
  return end_chunk();
}

Status SnapshotFileWriter::add(const ChunkSnapshot& chunk) {
  if (chunk.job != info_.job || chunk.round != info_.round || !chunk.state.params) {
    return fail(ErrorCode::kInternal, "chunk " + std::to_string(chunk.chunk.value) + " of job id " +
                                          std::to_string(chunk.job.value) + " at round " +
                                          std::to_string(chunk.round.value) + " was given to the " + describe(info_));
  }
  std::string sealed;
  return add(records::compose_chunk(chunk, chunk.job, info_.optimizer, sealed));
}

Status SnapshotFileWriter::close() {
  if (!open_) return {};
  const auto status = open_->Finish();
  open_.reset();
  if (!status.ok()) return tl::unexpected<Error>(disk_error(status));
  return {};
}

Status read_stored(rocksdb::Iterator& iterator, const records::SnapshotRecord& record,
                   const std::function<Status(const StoredChunk&)>& each) {
  iterator.SeekToFirst();
  return read_here(iterator, record.info, record.chunks, each);
}

Status read_stored(rocksdb::Iterator& iterator, const records::SnapshotRecord& record, ChunkIndex chunk,
                   const std::function<Status(const StoredChunk&)>& each) {
  iterator.Seek(chunk_key(chunk, kHeaderPart));
  return read_here(iterator, record.info, {&chunk, 1}, each);
}

Status read_snapshot(rocksdb::Iterator& iterator, const records::SnapshotRecord& record, const EachChunk& each) {
  const Status read = read_stored(iterator, record, [&](const StoredChunk& stored) -> Status {
    const std::string what = what_chunk(stored.chunk, record.info);
    const auto damaged = [&](const std::string& why) {
      return fail(ErrorCode::kStore, what + " is damaged: " + why +
                                         "; check the disk, then restore the store from a copy, or remove it to start "
                                         "the job over");
    };
    const auto header = records::unseal_chunk(stored.entries.front().value, "the header of " + what);
    if (!header) return tl::unexpected<Error>(header.error());
    if (header->job != record.info.job || header->round != record.info.round || header->chunk != stored.chunk ||
        header->optimizer != record.info.optimizer) {
      return damaged("its header names chunk " + std::to_string(header->chunk.value) + " of job id " +
                     std::to_string(header->job.value) + ", round " + std::to_string(header->round.value) +
                     ", optimizer " + header->optimizer);
    }
    if (Status whole = records::check_arrays(*header, stored); !whole) return damaged(whole.error().message);
    return each(stored.chunk, records::state_of(*header, stored));
  });
  if (!read) return read;
  if (iterator.Valid())
    return fail(ErrorCode::kStore, "the " + describe(record.info) + " has chunks that it does not list");
  return {};
}

}  // namespace tributary
