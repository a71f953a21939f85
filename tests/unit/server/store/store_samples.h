// Fixtures for tests of the store: write and load sample snapshots, and edit the database behind the store's back.
#pragma once

#include <doctest/doctest.h>
#include <rocksdb/db.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/system/buffer_pool.h"
#include "server/store/store.h"
#include "tests/unit/expect.h"
#include "tests/unit/required.h"
#include "tests/unit/server/store/snapshot_samples.h"
#include "tests/unit/temp_dir.h"

namespace tributary::testing {

inline constexpr std::size_t kElements = 1000;
inline constexpr int kSlots = 2;

inline std::unique_ptr<Store> open_store(const std::string& path, std::uint16_t index = 0) {
  return required(Store::open(path, index));
}

// Chunks 1, 4, 7, ...: a shard does not own all chunks.
inline std::vector<ChunkIndex> owned(std::uint32_t count) {
  std::vector<ChunkIndex> out;
  for (std::uint32_t i = 0; i < count; ++i) out.emplace_back(1 + 3 * i);
  return out;
}

inline void write_snapshot(Store& store, BufferPool& pool, const SnapshotInfo& info, std::size_t elements = kElements) {
  auto writer = required(store.begin(info));
  for (const ChunkIndex chunk : owned(info.chunks)) {
    required(writer->add(sample_chunk(pool, info.job, info.round, chunk, elements, kSlots)));
  }
  required(writer->finish());
  CHECK(writer->bytes() >= info.chunks * elements * sizeof(float) * (1 + kSlots));
}

// Loads and checks every value; returns the status of the load.
inline Status load_snapshot(Store& store, const SnapshotInfo& info, std::size_t elements = kElements) {
  const auto expected = owned(info.chunks);
  std::size_t position = 0;
  auto status = store.load(info, [&](ChunkIndex chunk, const ChunkState& state) -> Status {
    REQUIRE(position < expected.size());
    CHECK(chunk == expected[position++]);
    CHECK(state.version == Version(info.round.value));
    CHECK(state.step == info.round.value);
    CHECK(state.params.floats().size() == elements);
    CHECK(sample_matches(state.params.floats(), info.round, chunk, 0));
    for (int slot = 0; slot < kSlots; ++slot) {
      REQUIRE(state.slots[slot]);
      CHECK(state.slots[slot].floats().size() == elements);
      CHECK(sample_matches(state.slots[slot].floats(), info.round, chunk, slot + 1));
    }
    return {};
  });
  if (status) CHECK(position == expected.size());
  return status;
}

inline std::string refusal(const Status& status, ErrorCode code) {
  REQUIRE_FALSE(status.has_value());
  CHECK_MESSAGE(status.error().code == code, status.error().message);
  return status.error().message;
}

template <class T>
inline std::string refusal(const Result<T>& result, ErrorCode code) {
  REQUIRE_FALSE(result.has_value());
  CHECK_MESSAGE(result.error().code == code, result.error().message);
  return result.error().message;
}

inline std::uint64_t bytes_below(const std::string& folder) {
  std::uint64_t bytes = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    std::error_code gone;  // RocksDB deletes in the background
    const std::uint64_t size = entry.is_regular_file(gone) ? entry.file_size(gone) : 0;
    if (!gone) bytes += size;
  }
  return bytes;
}

// A folder for a store, and memory for its chunks.
struct OnDisk {
  TempDir dir;
  BufferPool pool{kElements * sizeof(float), 16};
};

inline std::vector<std::string> families(const std::string& store) {
  std::vector<std::string> names;
  REQUIRE(rocksdb::DB::ListColumnFamilies(rocksdb::Options(), store + "/db", &names).ok());
  return names;
}

inline std::vector<Round> rounds(const Store& store) {
  const auto jobs = store.jobs();
  return jobs.empty() ? std::vector<Round>{} : jobs[0].snapshots;
}

// Edits the database behind the store's back, as another version of the program, a bug or a disk may do.
inline void edit(const std::string& store, const std::function<void(rocksdb::DB&)>& change) {
  rocksdb::Options options;
  std::vector<rocksdb::ColumnFamilyDescriptor> descriptors;
  for (const auto& name : families(store)) descriptors.emplace_back(name, options);
  std::vector<rocksdb::ColumnFamilyHandle*> handles;
  rocksdb::DB* raw = nullptr;
  REQUIRE(rocksdb::DB::Open(options, store + "/db", descriptors, &handles, &raw).ok());
  std::unique_ptr<rocksdb::DB> db(raw);
  change(*db);
  for (auto* handle : handles) REQUIRE(db->DestroyColumnFamilyHandle(handle).ok());
}

inline JobRecord sample_job(std::uint64_t id) {
  JobRecord record;
  record.job = JobId(id);
  record.job_json = R"({"name":"mlp"})";
  record.tensors = {{"w", {128, 784}}, {"b", {128}}, {"scale", {}}};
  record.chunk_elements = 65536;
  record.owners = {{ShardIndex(0), LaneIndex(0)}, {ShardIndex(1), LaneIndex(3)}};
  record.world_size = 8;
  record.view = ViewId(5);
  record.committed = Round(400);
  record.initialised = true;
  record.members = {0, 3};
  record.view_nodes = {0x123456789abcdef0, ViewId(4), Round(397)};
  record.rank_states[{3, 1}] = {std::byte{7}, std::byte{0}};
  record.last_stop = "server 1 was stopped";
  record.computed_with = {"torch 2.13.0 Haswell", "torch 2.13.0 Zen"};
  return record;
}

inline bool equal(const JobRecord& a, const JobRecord& b) {
  return a.job == b.job && a.job_json == b.job_json && a.tensors == b.tensors && a.chunk_elements == b.chunk_elements &&
         a.owners == b.owners && a.world_size == b.world_size && a.view == b.view && a.committed == b.committed &&
         a.initialised == b.initialised && a.finished == b.finished && a.members == b.members &&
         a.view_nodes.hash == b.view_nodes.hash && a.view_nodes.since == b.view_nodes.since &&
         a.view_nodes.first == b.view_nodes.first && a.rank_states == b.rank_states && a.last_stop == b.last_stop &&
         a.computed_with == b.computed_with;
}

}  // namespace tributary::testing
