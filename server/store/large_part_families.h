// LargePartFamilies: large parts of ranks' states (server/coordinator/cluster/large_part_store.h) in a server's RocksDB.
//
// Each is a column family of its own ("part-JOB-DIGEST-BYTES"), as snapshots are, so no merge ever writes a part a
// second time, and a dropped part frees its room at once. Pieces go past the write-ahead log into files of some
// megabytes. When all are there and on the disk, a synced record in the family "default" makes the part complete. One
// without that record is a leftover of a crash and is dropped at open.
//
// Thread rule: any thread, but each part has one author at a time: the thread of the coordinator's records, or that of checkpoints,
// which loads the parts of jobs that the coordinator does not know yet.
#pragma once

#include <rocksdb/db.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "server/coordinator/cluster/large_part_store.h"

namespace tributary {

class LargePartFamilies final : public LargePartStore {
 public:
  static constexpr char kFamilyPrefix[] = "part-";
  static constexpr std::size_t kBufferBytes = 8u << 20;  // pieces that are not written yet

  // The store, which outlives this. room: returns kStore if the disk has less room.
  struct Owner {
    rocksdb::DB& db;
    const rocksdb::Options& options;
    std::string path;
    std::function<Status(const std::string& doing, std::uint64_t bytes)> room;
  };
  using Family = std::shared_ptr<rocksdb::ColumnFamilyHandle>;

  explicit LargePartFamilies(Owner owner) : owner_(std::move(owner)) {}

  // The options of a family of this name.
  static rocksdb::ColumnFamilyOptions family_options(const rocksdb::Options& options);
  // Takes the families of large parts out of `families` at open, and drops the incomplete ones.
  Status find(std::map<std::string, Family>& families);

  Complete complete() const override;
  Status begin(JobId job, const LargePart& large) override;
  Status add(JobId job, const LargePart& large, std::uint64_t offset, std::span<const std::byte> piece) override;
  Status finish(JobId job, const LargePart& large) override;
  Result<std::vector<std::byte>> read(JobId job, const LargePart& large, std::uint64_t offset) const override;
  Status drop(JobId job, const std::set<LargePart>& but_these) override;

 private:
  using Key = std::pair<JobId, LargePart>;
  struct Part {
    Family family;
    bool complete = false;
  };

  Error error(const std::string& doing, const rocksdb::Status& status) const;
  Family own(rocksdb::ColumnFamilyHandle* handle) const;
  Status gone(const std::string& doing) const;  // what is to be written to
  std::optional<Part> part(const Key& key) const;
  // The family of a part that is (not) complete; null: there is none. Outlives a drop.
  Family family(JobId job, const LargePart& large, bool complete) const;
  // Its record, then its family.
  Status drop(const Key& key, const Part& part);

  const Owner owner_;
  mutable std::mutex mutex_;  // parts_; never held while the disk is waited for
  std::map<Key, Part> parts_;
};

}  // namespace tributary
