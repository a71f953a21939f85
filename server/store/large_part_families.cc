#include "server/store/large_part_families.h"

#include <cinttypes>
#include <cstdio>
#include <vector>

#include "common/base/assert.h"
#include "server/store/disk_space.h"

namespace tributary {
namespace {

constexpr char kRecordPrefix[] = "part/";  // in "default": it is complete
constexpr char kRecord[] = "1";

std::string name_of(JobId job, const LargePart& large) {
  char text[80];
  std::snprintf(text, sizeof(text), "%016" PRIx64 "-%016" PRIx64 "%016" PRIx64 "-%" PRIu64, job.value, large.high,
                large.low, large.bytes);
  return text;
}

std::optional<std::pair<JobId, LargePart>> read_name(const std::string& name) {
  std::uint64_t job = 0;
  LargePart large;
  const int read = std::sscanf(name.c_str(), "%16" SCNx64 "-%16" SCNx64 "%16" SCNx64 "-%" SCNu64, &job, &large.high,
                               &large.low, &large.bytes);
  if (read != 4 || name_of(JobId(job), large) != name) return std::nullopt;
  return std::pair{JobId(job), large};
}

// Keys in order, as offsets are.
std::string piece_key(std::uint64_t offset) {
  char text[17];
  std::snprintf(text, sizeof(text), "%016" PRIx64, offset);
  return text;
}

std::string in_words(const LargePart& large) {
  return "a large part of what ranks keep (" + large.in_words() + ")";
}

}  // namespace

rocksdb::ColumnFamilyOptions LargePartFamilies::family_options(const rocksdb::Options& options) {
  rocksdb::ColumnFamilyOptions parts(options);
  parts.write_buffer_size = kBufferBytes;
  return parts;
}

Error LargePartFamilies::error(const std::string& doing, const rocksdb::Status& status) const {
  return Error{ErrorCode::kStore, "store " + owner_.path + ": cannot " + doing + ": " + status.ToString() +
                                      "; check the disk's space, permissions and health"};
}

LargePartFamilies::Family LargePartFamilies::own(rocksdb::ColumnFamilyHandle* handle) const {
  return Family(handle, [db = &owner_.db](rocksdb::ColumnFamilyHandle* h) { db->DestroyColumnFamilyHandle(h); });
}

Status LargePartFamilies::find(std::map<std::string, Family>& families) {
  for (auto at = families.lower_bound(kFamilyPrefix); at != families.end() && at->first.starts_with(kFamilyPrefix);) {
    const std::string name = at->first.substr(sizeof(kFamilyPrefix) - 1);
    const auto key = read_name(name);
    std::string record;
    const auto found = owner_.db.Get(rocksdb::ReadOptions(), kRecordPrefix + name, &record);
    if (!found.ok() && !found.IsNotFound()) return tl::unexpected<Error>(error("read its records", found));
    if (key && found.ok()) {
      parts_[*key] = Part{std::move(at->second), true};
    } else if (const auto status = owner_.db.DropColumnFamily(at->second.get()); !status.ok()) {
      return tl::unexpected<Error>(error("drop the unfinished " + at->first, status));
    }
    at = families.erase(at);
  }
  return {};
}

Status LargePartFamilies::gone(const std::string& doing) const {
  return fail(ErrorCode::kNotFound, "store " + owner_.path + ": cannot " + doing + ": it was dropped meanwhile");
}

LargePartStore::Complete LargePartFamilies::complete() const {
  const std::lock_guard lock(mutex_);
  Complete all;
  for (const auto& [key, part] : parts_) {
    if (part.complete) all[key.first].insert(key.second);
  }
  return all;
}

std::optional<LargePartFamilies::Part> LargePartFamilies::part(const Key& key) const {
  const std::lock_guard lock(mutex_);
  const auto at = parts_.find(key);
  return at == parts_.end() ? std::nullopt : std::optional(at->second);
}

LargePartFamilies::Family LargePartFamilies::family(JobId job, const LargePart& large, bool complete) const {
  const auto found = part({job, large});
  return found && found->complete == complete ? found->family : nullptr;
}

Status LargePartFamilies::begin(JobId job, const LargePart& large) {
  const Key key{job, large};
  if (const auto before = part(key)) {
    if (Status dropped = drop(key, *before); !dropped) return dropped;
  }
  const std::string doing = "keep " + in_words(large);
  if (Status room = owner_.room(doing, large.bytes + kSpareBytes); !room) return room;
  owner_.db.Resume().PermitUncheckedError();  // a full disk made RocksDB read-only; there may be room again
  rocksdb::ColumnFamilyHandle* handle = nullptr;
  const auto status =
      owner_.db.CreateColumnFamily(family_options(owner_.options), kFamilyPrefix + name_of(job, large), &handle);
  if (!status.ok()) return tl::unexpected<Error>(error(doing, status));
  const std::lock_guard lock(mutex_);
  parts_[key] = Part{own(handle)};
  return {};
}

Status LargePartFamilies::add(JobId job, const LargePart& large, std::uint64_t offset,
                              std::span<const std::byte> piece) {
  const Family into = family(job, large, false);
  const std::string doing = "keep " + in_words(large);
  if (!into) return gone(doing);
  if (Status room = owner_.room(doing, 2 * kBufferBytes + kSpareBytes); !room) return room;
  rocksdb::WriteOptions past_the_log;
  past_the_log.disableWAL = true;
  const rocksdb::Slice value(reinterpret_cast<const char*>(piece.data()), piece.size());
  const auto status = owner_.db.Put(past_the_log, into.get(), piece_key(offset), value);
  if (!status.ok()) return tl::unexpected<Error>(error(doing, status));
  return {};
}

Status LargePartFamilies::finish(JobId job, const LargePart& large) {
  const Family whole = family(job, large, false);
  const std::string doing = "complete " + in_words(large);
  if (!whole) return gone(doing);
  if (Status room = owner_.room(doing, 2 * kBufferBytes + kSpareBytes); !room) return room;
  auto status = owner_.db.Flush(rocksdb::FlushOptions(), whole.get());  // synced
  rocksdb::WriteOptions synced;
  synced.sync = true;
  if (status.ok()) status = owner_.db.Put(synced, kRecordPrefix + name_of(job, large), kRecord);
  if (!status.ok()) return tl::unexpected<Error>(error(doing, status));
  const std::lock_guard lock(mutex_);
  if (const auto at = parts_.find({job, large}); at != parts_.end()) at->second.complete = true;
  return {};
}

Result<std::vector<std::byte>> LargePartFamilies::read(JobId job, const LargePart& large, std::uint64_t offset) const {
  const Family of = family(job, large, true);
  if (!of) {
    return fail(ErrorCode::kNotFound, "store " + owner_.path + " does not have " + in_words(large) + " (any more)");
  }
  rocksdb::PinnableSlice value;
  rocksdb::ReadOptions options;
  options.verify_checksums = true;
  options.fill_cache = false;
  const auto status = owner_.db.Get(options, of.get(), piece_key(offset), &value);
  if (!status.ok()) {
    return tl::unexpected<Error>(error("read " + in_words(large) + " at " + std::to_string(offset), status));
  }
  const auto* bytes = reinterpret_cast<const std::byte*>(value.data());
  return std::vector<std::byte>(bytes, bytes + value.size());
}

Status LargePartFamilies::drop(JobId job, const std::set<LargePart>& but_these) {
  std::vector<std::pair<Key, Part>> others;
  {
    const std::lock_guard lock(mutex_);
    for (auto at = parts_.lower_bound({job, LargePart()}); at != parts_.end() && at->first.first == job; ++at) {
      if (!but_these.contains(at->first.second)) others.push_back(*at);
    }
  }
  for (const auto& [key, part] : others) {
    if (Status dropped = drop(key, part); !dropped) return dropped;
  }
  return {};
}

Status LargePartFamilies::drop(const Key& key, const Part& part) {
  const auto& [job, large] = key;
  const std::string doing = "drop " + in_words(large);
  if (part.complete) {
    if (Status room = owner_.room(doing, kRecordBytes); !room) return room;
    rocksdb::WriteOptions synced;
    synced.sync = true;
    const auto status = owner_.db.Delete(synced, kRecordPrefix + name_of(job, large));
    if (!status.ok()) return tl::unexpected<Error>(error(doing, status));
  }
  // Without its record it is none any more; should this fail, the next open drops it.
  owner_.db.DropColumnFamily(part.family.get()).PermitUncheckedError();
  const std::lock_guard lock(mutex_);
  parts_.erase(key);
  return {};
}

}  // namespace tributary
