#include "server/snapshot_file.h"

#include <xxhash.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <span>
#include <system_error>
#include <utility>

namespace tributary {
namespace {

constexpr std::size_t kKeyBytes = 5;

std::array<char, kKeyBytes> chunk_key(ChunkIndex chunk, std::uint8_t part) {
  return {static_cast<char>(chunk.value >> 24), static_cast<char>(chunk.value >> 16),
          static_cast<char>(chunk.value >> 8), static_cast<char>(chunk.value), static_cast<char>(part)};
}

rocksdb::Slice slice(const std::array<char, kKeyBytes>& key) {
  return {key.data(), key.size()};
}

rocksdb::Slice slice(std::span<const float> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size_bytes()};
}

// XXH3 of several arrays as if they were one.
class Checksum {
 public:
  Checksum() : state_(XXH3_createState(), &XXH3_freeState) { XXH3_64bits_reset(state_.get()); }
  void update(std::span<const float> values) { XXH3_64bits_update(state_.get(), values.data(), values.size_bytes()); }
  std::uint64_t value() const { return XXH3_64bits_digest(state_.get()); }

 private:
  std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state_;
};

std::string what_chunk(ChunkIndex chunk, const SnapshotInfo& info) {
  return "chunk " + std::to_string(chunk.value) + " of the " + describe(info);
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
    std::error_code ignored;  // ingested files are gone already; what cannot be removed now is removed at the next open
    std::filesystem::remove(file, ignored);
  }
}

Error SnapshotFileWriter::disk_error(const rocksdb::Status& status) const {
  return Error{ErrorCode::kStore, "cannot write the " + describe(info_) + " to " + prefix_ +
                                      "*.sst: " + status.ToString() +
                                      "; free space or check the disk; training goes on without it"};
}

Status SnapshotFileWriter::put(ChunkIndex chunk, std::uint8_t part, const rocksdb::Slice& value) {
  if (auto status = open_->Put(slice(chunk_key(chunk, part)), value); !status.ok()) {
    return tl::unexpected<Error>(disk_error(status));
  }
  open_bytes_ += value.size();
  bytes_ += value.size();
  return {};
}

Status SnapshotFileWriter::add(const ChunkSnapshot& chunk) {
  if (chunk.job != info_.job || chunk.round != info_.round || !chunk.params) {
    return fail(ErrorCode::kInternal, "chunk " + std::to_string(chunk.chunk.value) + " of job id " +
                                          std::to_string(chunk.job.value) + " at round " +
                                          std::to_string(chunk.round.value) + " was given to the " + describe(info_));
  }
  if (!chunks_.empty() && chunk.chunk <= chunks_.back()) {
    return fail(ErrorCode::kInternal, what_chunk(chunk.chunk, info_) + " came after chunk " +
                                          std::to_string(chunks_.back().value) +
                                          "; chunks are written in ascending order");
  }
  records::ChunkHeader header{
      chunk.job, chunk.round, chunk.chunk, chunk.version, chunk.step, chunk.params.floats().size(), 0, info_.optimizer,
      0};
  Checksum checksum;
  checksum.update(chunk.params.floats());
  while (header.slots < kernels::kMaxSlots && chunk.slots[header.slots]) {
    const auto values = chunk.slots[header.slots].floats();
    if (values.size() != header.elements) {
      return fail(ErrorCode::kInternal, what_chunk(chunk.chunk, info_) + " has " + std::to_string(header.elements) +
                                            " parameters but " + std::to_string(values.size()) +
                                            " values in state array " + std::to_string(header.slots));
    }
    checksum.update(values);
    ++header.slots;
  }
  header.checksum = checksum.value();

  if (!open_) {
    files_.push_back(prefix_ + std::to_string(files_.size()) + ".sst");
    open_ = std::make_unique<rocksdb::SstFileWriter>(rocksdb::EnvOptions(options_), options_);
    open_bytes_ = 0;
    if (auto status = open_->Open(files_.back()); !status.ok()) return tl::unexpected<Error>(disk_error(status));
  }
  chunks_.push_back(chunk.chunk);
  if (auto status = put(chunk.chunk, 0, records::seal(header)); !status) return status;
  if (auto status = put(chunk.chunk, 1, slice(chunk.params.floats())); !status) return status;
  for (std::uint8_t slot = 0; slot < header.slots; ++slot) {
    const auto part = static_cast<std::uint8_t>(2 + slot);
    if (auto status = put(chunk.chunk, part, slice(chunk.slots[slot].floats())); !status) return status;
  }
  return open_bytes_ >= kSnapshotFileBytes ? close() : Status{};
}

Status SnapshotFileWriter::close() {
  if (!open_) return {};
  const auto status = open_->Finish();
  open_.reset();
  if (!status.ok()) return tl::unexpected<Error>(disk_error(status));
  return {};
}

Status read_snapshot(rocksdb::Iterator& iterator, const records::SnapshotRecord& record,
                     const std::function<Status(const LoadedChunk&)>& each) {
  std::vector<float> arrays[1 + kernels::kMaxSlots];
  LoadedChunk loaded;
  iterator.SeekToFirst();
  for (const ChunkIndex chunk : record.chunks) {
    const std::string what = what_chunk(chunk, record.info);
    const auto damaged = [&](const std::string& why) {
      return fail(ErrorCode::kStore,
                  what + " is damaged: " + why +
                      "; check the disk, then restore the store from a copy, or remove it to start the "
                      "job over");
    };
    // The value of one part of this chunk; the iterator stands on it until the next part is asked for.
    const auto expect = [&](std::uint8_t part) -> Result<rocksdb::Slice> {
      if (part > 0) iterator.Next();
      if (!iterator.status().ok()) return damaged(iterator.status().ToString());
      if (!iterator.Valid() || iterator.key() != slice(chunk_key(chunk, part))) {
        return damaged(part == 0 ? "it is missing" : "its array " + std::to_string(part) + " is missing");
      }
      return iterator.value();
    };

    const auto sealed = expect(0);
    if (!sealed) return tl::unexpected<Error>(sealed.error());
    const auto header = records::unseal_chunk(sealed->ToStringView(), "the header of " + what);
    if (!header) return tl::unexpected<Error>(header.error());
    if (header->job != record.info.job || header->round != record.info.round || header->chunk != chunk ||
        header->optimizer != record.info.optimizer) {
      return damaged("its header names chunk " + std::to_string(header->chunk.value) + " of job id " +
                     std::to_string(header->job.value) + ", round " + std::to_string(header->round.value) +
                     ", optimizer " + header->optimizer);
    }
    Checksum checksum;
    for (std::uint8_t part = 0; part <= header->slots; ++part) {
      const auto value = expect(static_cast<std::uint8_t>(part + 1));
      if (!value) return tl::unexpected<Error>(value.error());
      if (value->size() != header->elements * sizeof(float)) {
        return damaged("array " + std::to_string(part + 1) + " has " + std::to_string(value->size()) + " bytes, not " +
                       std::to_string(header->elements * sizeof(float)));
      }
      arrays[part].resize(header->elements);  // a copy: values in a block have any alignment
      std::memcpy(arrays[part].data(), value->data(), value->size());
      checksum.update(arrays[part]);
    }
    if (checksum.value() != header->checksum) return damaged("its checksum does not match its values");

    loaded.chunk = chunk;
    loaded.version = header->version;
    loaded.step = header->step;
    loaded.params = arrays[0];
    loaded.slots.assign(arrays + 1, arrays + 1 + header->slots);
    if (auto status = each(loaded); !status) return status;
    iterator.Next();
  }
  if (!iterator.status().ok()) {
    return fail(ErrorCode::kStore, "the " + describe(record.info) + " is damaged: " + iterator.status().ToString());
  }
  if (iterator.Valid())
    return fail(ErrorCode::kStore, "the " + describe(record.info) + " has chunks that it does not list");
  return {};
}

}  // namespace tributary
