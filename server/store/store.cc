#include "server/store/store.h"

#include <fcntl.h>
#include <rocksdb/db.h>
#include <rocksdb/write_batch.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>

#include "server/coordinator/cluster/job_record_seal.h"
#include "server/store/disk_space.h"
#include "server/store/large_part_families.h"
#include "server/store/records.h"
#include "server/store/rocks_options.h"
#include "server/store/snapshot_file.h"

namespace tributary {
namespace {

namespace fs = std::filesystem;
using records::SnapshotRecord;

// On disk:  PATH/lock      held while a process has the store open; names the process
//           PATH/db/       RocksDB
//           PATH/incoming/ files of a snapshot being written; emptied at open
// In the column family "default":  identity, job/<id>, snapshot/<job id>/<round>, copy/<job id>/<round>/<shard>
constexpr char kIdentityKey[] = "identity";
constexpr char kJobPrefix[] = "job/";
constexpr char kSnapshotPrefix[] = "snapshot/";
constexpr char kCopyPrefix[] = "copy/";  // of another server's part
constexpr char kFamilyPrefix[] = "snap-";
constexpr char kCopyFamilyPrefix[] = "copy-";

std::string hex(std::uint64_t value) {
  char text[17];
  std::snprintf(text, sizeof(text), "%016" PRIx64, value);
  return text;
}

std::string job_key(JobId job) {
  return kJobPrefix + hex(job.value);
}
std::string snapshot_key(JobId job, Round round) {
  return kSnapshotPrefix + hex(job.value) + "/" + hex(round.value);
}
std::string copy_key(JobId job, Round round, ShardIndex shard) {
  return kCopyPrefix + hex(job.value) + "/" + hex(round.value) + "/" + hex(shard.value);
}

// A snapshot written again (after a restart that went back behind it) gets a family of its own, so that the older one
// stays valid until the key of the newer one is durable.
std::string family_name(const SnapshotInfo& info, std::uint32_t generation, bool copy) {
  return (copy ? kCopyFamilyPrefix : kFamilyPrefix) + hex(info.job.value) + "-" + std::to_string(info.round.value) +
         "-" + (copy ? std::to_string(info.shard.value) + "-" : std::string()) + std::to_string(generation);
}

// Job and round of a family's name; of no job, if it is no snapshot's.
std::pair<JobId, Round> named_by(const std::string& name) {
  std::uint64_t job = 0, round = 0;
  const bool right = std::sscanf(name.c_str(), "snap-%16" SCNx64 "-%" SCNu64 "-", &job, &round) == 2;
  return right ? std::pair{JobId(job), Round(round)} : std::pair{JobId(0), Round(0)};
}

rocksdb::WriteOptions synced() {
  rocksdb::WriteOptions options;
  options.sync = true;
  return options;
}

// Admits one process at a time, by a lock that the kernel drops with the process, however it ends.
class StoreLock {
 public:
  static Result<StoreLock> take(const fs::path& store) {
    const std::string file = store / "lock";
    StoreLock lock(::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
    if (lock.fd_ < 0) {
      return fail(ErrorCode::kStore, "cannot open " + file + ": " + std::strerror(errno) +
                                         "; give this server a [store] path that it may write");
    }
    if (::flock(lock.fd_, LOCK_EX | LOCK_NB) != 0) {
      char pid[32] = {};
      const auto size = ::pread(lock.fd_, pid, sizeof(pid) - 1, 0);
      const std::string holder = size > 0 ? "process " + std::string(pid) : std::string("another process");
      return fail(ErrorCode::kStore, "store " + store.string() + " is in use by " + holder +
                                         "; stop that server, or give this one another [store] path");
    }
    const std::string pid = std::to_string(::getpid());
    // Only for the message above: whether it is written does not matter to the lock.
    if (::ftruncate(lock.fd_, 0) != 0 || ::pwrite(lock.fd_, pid.data(), pid.size(), 0) < 0) errno = 0;
    return lock;
  }
  StoreLock(StoreLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  StoreLock& operator=(StoreLock&&) = delete;
  ~StoreLock() {
    if (fd_ >= 0) ::close(fd_);
  }

 private:
  explicit StoreLock(int fd) : fd_(fd) {}
  int fd_;
};

class RocksStore final : public Store {
 public:
  RocksStore(std::string path, std::uint16_t server_index, StoreLock lock)
      : path_(std::move(path)), own_(server_index), lock_(std::move(lock)) {}
  ~RocksStore() override {
    snapshots_.clear();
    aside_.clear();
    large_parts_.reset();
    default_.reset();
    if (db_) db_->Close();
  }

  Status open_db(Warn warn);

  std::vector<StoredJob> jobs() const override;
  bool has(JobId job, Round round, ShardIndex shard) const override {
    const std::lock_guard lock(mutex_);
    return snapshots_.contains({job, shard, round});
  }
  Result<std::unique_ptr<SnapshotWriter>> begin(const SnapshotInfo& info) override;
  Status load(const SnapshotInfo& expected, const EachChunk& each) override;
  Result<PinnedSnapshot> pin(JobId job, Round round, ShardIndex shard) override;
  Status drop(JobId job, Round first, Round last) override;
  Status drop_job(JobId job) override;
  Status save_all(std::span<const JobRecord> records) override;
  Status remove(JobId job) override;
  Result<std::vector<JobId>> recorded() const override;
  Result<JobRecord> record(JobId job) const override;
  LargePartStore& large_parts() override { return *large_parts_; }
  Result<SeatTerms> terms() const override;
  Status promise(Term term) override;
  Status own(Term term) override;
  std::string path() const override { return path_; }
  const rocksdb::Options& options() const { return options_; }
  ShardIndex own() const { return own_; }

  // kStore if the disk has less.
  Status room(const std::string& doing, std::uint64_t bytes = kRecordBytes) const;
  // Makes the closed files of a writer a complete snapshot.
  Status complete(SnapshotRecord record, const std::vector<std::string>& files);

 private:
  using Family = std::shared_ptr<rocksdb::ColumnFamilyHandle>;  // shared, so that a load outlives a drop
  using SnapshotKey = std::tuple<JobId, ShardIndex, Round>;
  struct Snapshot {
    SnapshotRecord record;
    Family family;
  };

  static SnapshotKey key_of(const SnapshotInfo& info) { return {info.job, info.shard, info.round}; }
  std::string record_key(const SnapshotInfo& info) const {
    return info.shard == own_ ? snapshot_key(info.job, info.round) : copy_key(info.job, info.round, info.shard);
  }
  std::string family_of(const SnapshotInfo& info, std::uint32_t generation) const {
    return family_name(info, generation, info.shard != own_);
  }

  Family own(rocksdb::ColumnFamilyHandle* handle) {
    return Family(handle, [this](rocksdb::ColumnFamilyHandle* h) { db_->DestroyColumnFamilyHandle(h); });
  }
  Error error(const std::string& doing, const rocksdb::Status& status) const {
    return Error{ErrorCode::kStore, "store " + path_ + ": cannot " + doing + ": " + status.ToString() +
                                        "; check the disk's space, permissions and health"};
  }
  std::unique_ptr<rocksdb::Iterator> iterate(const Family& family) const;
  Status check_identity();
  Status put_identity(const SeatTerms& terms);  // with terms_mutex_, but for the first time
  Status find_snapshots(std::map<std::string, Family>& families, bool copies, const Warn& warn);
  void set_aside(std::map<std::string, Family> families, const Warn& warn);
  // Drops families that are set aside. REQUIRES: families_mutex_ held.
  void drop_aside(JobId job, Round first, Round last);
  // Calls each(key, value) for the keys of the default family that begin with prefix.
  Status scan(const std::string& prefix,
              const std::function<Status(const rocksdb::Slice&, const rocksdb::Slice&)>& each) const;

  const std::string path_;
  const ShardIndex own_;
  const StoreLock lock_;
  rocksdb::Options options_;
  std::unique_ptr<rocksdb::DB> db_;
  Family default_;
  std::unique_ptr<LargePartFamilies> large_parts_;
  std::mutex terms_mutex_;                     // held while terms are read and written
  std::mutex families_mutex_;                  // held while column families are made or dropped, waiting for the disk
  mutable std::mutex mutex_;                   // guards snapshots_ and aside_, for moments
  std::map<SnapshotKey, Snapshot> snapshots_;  // complete ones
  std::map<std::string, Family> aside_;        // by name: of snapshots without a record that they are complete
};

class RocksSnapshotWriter final : public SnapshotWriter {
 public:
  // family: the name that it will have.
  RocksSnapshotWriter(RocksStore& store, const SnapshotInfo& info, const std::string& family, std::uint32_t generation)
      : store_(store),
        own_(info.shard == store.own()),
        files_(store.options(), store.path() + "/incoming/" + family + "-", info) {
    record_.info = info;
    record_.generation = generation;
  }

  Status add(const ChunkSnapshot& chunk) override { return add_if_room(chunk, chunk.state.bytes()); }
  Status add(const StoredChunk& chunk) override { return add_if_room(chunk, bytes_of(chunk)); }
  Status finish() override {
    record_.chunks = files_.chunks();
    record_.bytes = files_.bytes();
    if (record_.chunks.size() != record_.info.chunks) {
      return fail(ErrorCode::kStore, "the " + describe(record_.info) + " has " + std::to_string(record_.chunks.size()) +
                                         " of " + std::to_string(record_.info.chunks) + " chunks and is dropped");
    }
    if (auto status = files_.close(); !status) return status;
    return store_.complete(record_, files_.files());
  }
  std::uint64_t bytes() const override { return files_.bytes(); }

 private:
  template <class Chunk>
  Status add_if_room(const Chunk& chunk, std::size_t bytes) {
    // A copy leaves more room than a server's own snapshots, which may be written at the same time.
    const std::uint64_t spare = (own_ ? 1 : 4) * kSpareBytes;
    if (Status room = store_.room("write the " + describe(record_.info), bytes + spare); !room) return room;
    return files_.add(chunk);
  }

  RocksStore& store_;
  const bool own_;
  SnapshotRecord record_;
  SnapshotFileWriter files_;
};

Status RocksStore::open_db(Warn warn) {
  const std::string db_path = path_ + "/db";
  std::error_code failed;
  fs::remove_all(path_ + "/incoming", failed);
  fs::create_directories(path_ + "/incoming", failed);
  if (failed) {
    return fail(ErrorCode::kStore, "cannot create " + path_ + "/incoming: " + failed.message() +
                                       "; give this server a [store] path that it may write");
  }
  options_ = rocks_options(path_ + "/incoming", warn);
  std::vector<std::string> names;
  if (fs::exists(db_path + "/CURRENT", failed)) {
    const auto listed = rocksdb::DB::ListColumnFamilies(options_, db_path, &names);
    if (!listed.ok()) return tl::unexpected<Error>(error("read its list of snapshots", listed));
  } else {
    names = {rocksdb::kDefaultColumnFamilyName};
  }
  std::vector<rocksdb::ColumnFamilyDescriptor> descriptors;
  for (const std::string& name : names) {
    const bool records = name == rocksdb::kDefaultColumnFamilyName;
    const bool parts = name.starts_with(LargePartFamilies::kFamilyPrefix);
    descriptors.emplace_back(name, records ? record_options(options_)
                                   : parts ? LargePartFamilies::family_options(options_)
                                           : rocksdb::ColumnFamilyOptions(options_));
  }
  std::vector<rocksdb::ColumnFamilyHandle*> handles;
  rocksdb::DB* db = nullptr;
  const auto opened = rocksdb::DB::Open(options_, db_path, descriptors, &handles, &db);
  if (!opened.ok()) return tl::unexpected<Error>(error("open it", opened));
  db_.reset(db);
  std::map<std::string, Family> families;
  for (auto* handle : handles) families.emplace(handle->GetName(), own(handle));
  default_ = families.extract(rocksdb::kDefaultColumnFamilyName).mapped();

  if (auto status = check_identity(); !status) return status;
  large_parts_ = std::make_unique<LargePartFamilies>(LargePartFamilies::Owner{
      *db_, options_, path_, [this](const std::string& doing, std::uint64_t bytes) { return room(doing, bytes); }});
  if (auto status = large_parts_->find(families); !status) return status;
  for (const bool copies : {false, true}) {
    if (auto status = find_snapshots(families, copies, warn); !status) return status;
  }
  set_aside(std::move(families), warn);
  return {};
}

Status RocksStore::check_identity() {
  const std::uint16_t server_index = own_.value;
  std::string bytes;
  const auto status = db_->Get(rocksdb::ReadOptions(), kIdentityKey, &bytes);
  if (status.IsNotFound()) {
    std::unique_ptr<rocksdb::Iterator> any(db_->NewIterator(rocksdb::ReadOptions(), default_.get()));
    any->SeekToFirst();
    if (any->Valid()) {
      return fail(ErrorCode::kStore, "store " + path_ +
                                         " has records but does not say whose it is; it is damaged or not "
                                         "Tributary's: restore it from a copy or use another [store] path");
    }
    return put_identity({});
  }
  if (!status.ok()) return tl::unexpected<Error>(error("read its identity", status));
  const auto identity = records::unseal_identity(bytes, "store " + path_);
  if (!identity) return tl::unexpected<Error>(identity.error());
  if (identity->server_index != server_index) {
    return fail(ErrorCode::kStore, "store " + path_ + " belongs to server " + std::to_string(identity->server_index) +
                                       ", this is server " + std::to_string(server_index) +
                                       "; set [store] path to this server's own, or [server] index to " +
                                       std::to_string(identity->server_index));
  }
  return {};
}

// Takes the families of complete snapshots.
Status RocksStore::find_snapshots(std::map<std::string, Family>& families, bool copies, const Warn& warn) {
  std::vector<std::string> orphans;
  auto scanned = scan(
      copies ? kCopyPrefix : kSnapshotPrefix, [&](const rocksdb::Slice& key, const rocksdb::Slice& value) -> Status {
        auto record =
            records::unseal_snapshot(value.ToStringView(), "the record " + key.ToString() + " in store " + path_);
        if (!record) return tl::unexpected<Error>(record.error());
        if (!copies) record->info.shard = own_;  // older records do not say so
        auto family = families.extract(family_name(record->info, record->generation, copies));
        if (family.empty()) {
          orphans.push_back(key.ToString());  // its drop was interrupted, or it is damaged: a snapshot no more
          return {};
        }
        const SnapshotKey id = key_of(record->info);
        snapshots_.emplace(id, Snapshot{std::move(*record), std::move(family.mapped())});
        return {};
      });
  if (!scanned) return scanned;
  for (const std::string& key : orphans) {
    if (warn) {
      warn("store " + path_ + ": the record " + key + " is of a snapshot whose data is gone; the record is removed");
    }
    if (auto status = db_->Delete(synced(), key); !status.ok()) {
      return tl::unexpected<Error>(error("remove the record " + key, status));
    }
  }
  return {};
}

// Families without a record. A copy that was not complete is of no use to anybody.
void RocksStore::set_aside(std::map<std::string, Family> families, const Warn& warn) {
  for (auto& [name, family] : families) {
    if (name.starts_with(kCopyFamilyPrefix)) db_->DropColumnFamily(family.get()).PermitUncheckedError();
    if (!name.starts_with(kFamilyPrefix)) continue;
    const auto [job, round] = named_by(name);
    if (warn) {
      warn("store " + path_ + ": no record says that " + name + ", the snapshot of round " +
           std::to_string(round.value) + " of job id " + std::to_string(job.value) +
           ", is complete: a crash came before the record, or the record was lost with a damaged log. What is there is "
           "set aside until a later snapshot of the job is complete");
    }
    aside_.emplace(name, std::move(family));
  }
}

void RocksStore::drop_aside(JobId job, Round first, Round last) {
  std::vector<Family> dropped;
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(aside_, [&](auto& entry) {
      const auto [of, round] = named_by(entry.first);
      if (of != job || round < first || round > last) return false;
      dropped.push_back(std::move(entry.second));
      return true;
    });
  }
  for (const Family& family : dropped) db_->DropColumnFamily(family.get()).PermitUncheckedError();
}

Status RocksStore::scan(const std::string& prefix,
                        const std::function<Status(const rocksdb::Slice&, const rocksdb::Slice&)>& each) const {
  std::unique_ptr<rocksdb::Iterator> it(db_->NewIterator(rocksdb::ReadOptions(), default_.get()));
  for (it->Seek(prefix); it->Valid() && it->key().starts_with(prefix); it->Next()) {
    if (auto status = each(it->key(), it->value()); !status) return status;
  }
  if (!it->status().ok()) return tl::unexpected<Error>(error("read its records", it->status()));
  return {};
}

std::vector<StoredJob> RocksStore::jobs() const {
  std::lock_guard lock(mutex_);
  std::vector<StoredJob> out;
  for (const auto& [key, snapshot] : snapshots_) {  // sorted by job, shard and round
    const SnapshotInfo& info = snapshot.record.info;
    const ShardIndex copy_of = info.shard == own_ ? kNoShard : info.shard;
    if (out.empty() || out.back().job != info.job || out.back().copy_of != copy_of) {
      out.push_back({info.job, {}, 0, {}, copy_of});
    }
    out.back().name = info.job_name;
    out.back().layout_hash = info.layout_hash;
    out.back().snapshots.push_back(info.round);
  }
  return out;
}

Result<std::unique_ptr<SnapshotWriter>> RocksStore::begin(const SnapshotInfo& info) {
  std::lock_guard lock(mutex_);
  const auto existing = snapshots_.find(key_of(info));
  std::uint32_t generation = existing == snapshots_.end() ? 0 : existing->second.record.generation + 1;
  while (aside_.contains(family_of(info, generation))) ++generation;
  return std::make_unique<RocksSnapshotWriter>(*this, info, family_of(info, generation), generation);
}

Status RocksStore::room(const std::string& doing, std::uint64_t bytes) const {
  const Status room = room_on_disk(path_, bytes);
  if (room) return {};
  return fail(ErrorCode::kStore, "store " + path_ + ": cannot " + doing + ": " + room.error().message + "; free space");
}

Status RocksStore::complete(SnapshotRecord record, const std::vector<std::string>& files) {
  const std::lock_guard changing(families_mutex_);
  if (Status enough = room("complete the " + describe(record.info)); !enough) return enough;
  db_->Resume().PermitUncheckedError();  // a full disk made RocksDB read-only; there may be room again
  const std::string name = family_of(record.info, record.generation);
  rocksdb::ColumnFamilyHandle* handle = nullptr;
  if (auto status = db_->CreateColumnFamily(options_, name, &handle); !status.ok()) {
    return tl::unexpected<Error>(error("create " + name, status));
  }
  const Family family = own(handle);
  const SnapshotInfo info = record.info;
  const auto write = [&]() -> rocksdb::Status {
    if (!files.empty()) {
      rocksdb::IngestExternalFileOptions ingest;
      ingest.move_files = true;
      ingest.snapshot_consistency = false;  // this family has no readers yet
      ingest.allow_global_seqno = false;    // nor are there older keys in it
      ingest.write_global_seqno = false;
      if (auto status = db_->IngestExternalFile(handle, files, ingest); !status.ok()) return status;
    }
    return db_->Put(synced(), record_key(info), records::seal(record));
  };
  if (auto status = write(); !status.ok()) {
    db_->DropColumnFamily(handle).PermitUncheckedError();  // else a leftover until the next open
    return tl::unexpected<Error>(error("complete the " + describe(record.info), status));
  }
  Family older;
  {
    const std::lock_guard lock(mutex_);
    Snapshot& snapshot = snapshots_[key_of(info)];
    older = std::exchange(snapshot.family, family);
    snapshot.record = std::move(record);
  }
  if (older) db_->DropColumnFamily(older.get()).PermitUncheckedError();
  if (info.shard == own_) drop_aside(info.job, info.round, info.round);
  return {};
}

Status RocksStore::load(const SnapshotInfo& expected, const EachChunk& each) {
  Snapshot snapshot;
  {
    std::lock_guard lock(mutex_);
    const auto found = snapshots_.find(key_of(expected));
    if (found == snapshots_.end()) {
      std::string rounds;
      for (const auto& [key, other] : snapshots_) {
        const auto& [job, shard, round] = key;
        if (job == expected.job && shard == expected.shard)
          rounds += (rounds.empty() ? "" : ", ") + std::to_string(round.value);
      }
      return fail(ErrorCode::kNotFound, "store " + path_ + " has no " + describe(expected) + "; it has " +
                                            (rounds.empty() ? "none of that job" : "rounds " + rounds) +
                                            "; is [store] path the one that the job ran with?");
    }
    snapshot = found->second;
  }
  const SnapshotInfo& stored = snapshot.record.info;
  const auto refuse = [&](const char* thing, const std::string& ours, const std::string& theirs) {
    return fail(ErrorCode::kStore, "the " + describe(stored) + " in store " + path_ + " has " + thing + " " + ours +
                                       ", the job that is to be resumed has " + theirs +
                                       "; start it with what it began with, or under another name");
  };
  if (stored.job_name != expected.job_name)
    return refuse("the name", "'" + stored.job_name + "'", "'" + expected.job_name + "'");
  if (stored.layout_hash != expected.layout_hash) {
    return refuse("the layout hash", hex(stored.layout_hash), hex(expected.layout_hash));
  }
  if (stored.optimizer != expected.optimizer) return refuse("the optimizer", stored.optimizer, expected.optimizer);
  if (stored.chunks != expected.chunks) {
    return refuse("a number of chunks here of", std::to_string(stored.chunks), std::to_string(expected.chunks));
  }
  return read_snapshot(*iterate(snapshot.family), snapshot.record, each);
}

Result<PinnedSnapshot> RocksStore::pin(JobId job, Round round, ShardIndex shard) {
  std::lock_guard lock(mutex_);
  const auto found = snapshots_.find({job, shard, round});
  if (found == snapshots_.end()) {
    return fail(ErrorCode::kNotFound,
                "store " + path_ + " has no snapshot of round " + std::to_string(round.value) + " of job id " +
                    std::to_string(job.value) +
                    (shard == own_ ? "" : ", server " + std::to_string(shard.value) + "'s part,") + " (any more)");
  }
  const Snapshot& snapshot = found->second;
  return PinnedSnapshot{snapshot.record.info, snapshot.record.chunks,
                        [this, snapshot](const PinnedSnapshot::Each& each) {
                          return read_stored(*iterate(snapshot.family), snapshot.record, each);
                        },
                        [this, snapshot](std::size_t place, const PinnedSnapshot::Each& each) {
                          const SnapshotRecord& record = snapshot.record;
                          return read_stored(*iterate(snapshot.family), record, record.chunks.at(place), each);
                        }};
}

std::unique_ptr<rocksdb::Iterator> RocksStore::iterate(const Family& family) const {
  rocksdb::ReadOptions options;
  options.verify_checksums = true;
  options.fill_cache = false;
  options.readahead_size = 4u << 20;
  return std::unique_ptr<rocksdb::Iterator>(db_->NewIterator(options, family.get()));
}

// The keys go first, then the families.
Status RocksStore::drop(JobId job, Round first, Round last) {
  const std::lock_guard changing(families_mutex_);
  drop_aside(job, first, last);
  rocksdb::WriteBatch batch;
  std::vector<SnapshotKey> keys;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, snapshot] : snapshots_) {
      const SnapshotInfo& info = snapshot.record.info;
      if (info.job != job || info.round < first || info.round > last) continue;
      keys.push_back(key);
      batch.Delete(record_key(info));
    }
  }
  if (keys.empty()) return {};
  if (Status enough = room("drop snapshots"); !enough) return enough;
  if (auto status = db_->Write(synced(), &batch); !status.ok()) {
    return tl::unexpected<Error>(error("drop snapshots", status));
  }
  std::vector<Family> families;
  {
    const std::lock_guard lock(mutex_);
    for (const SnapshotKey& key : keys) families.push_back(std::move(snapshots_.extract(key).mapped().family));
  }
  // Without its key it is no snapshot any more; should this fail, the next open drops it.
  for (const Family& family : families) db_->DropColumnFamily(family.get()).PermitUncheckedError();
  return {};
}

Status RocksStore::drop_job(JobId job) {
  return drop(job, Round(0), Round(~0ull));
}

Status RocksStore::save_all(std::span<const JobRecord> records) {
  std::string doing = "save the records of " + std::to_string(records.size()) + " jobs";
  if (records.size() == 1) doing = "save the registry record of job id " + std::to_string(records[0].job.value);
  rocksdb::WriteBatch all;
  for (const JobRecord& record : records) all.Put(job_key(record.job), records::seal(record));
  if (Status enough = room(doing, all.GetDataSize() + kRecordBytes); !enough) return enough;
  if (auto status = db_->Write(synced(), &all); !status.ok()) return tl::unexpected<Error>(error(doing, status));
  return {};
}

Status RocksStore::remove(JobId job) {
  const std::string doing = "remove the registry record of job id " + std::to_string(job.value);
  if (Status enough = room(doing); !enough) return enough;
  if (auto status = db_->Delete(synced(), job_key(job)); !status.ok()) {
    return tl::unexpected<Error>(error(doing, status));
  }
  return {};
}

Status RocksStore::promise(Term term) {
  const std::lock_guard lock(terms_mutex_);
  Result<SeatTerms> terms = this->terms();
  if (!terms) return tl::unexpected(terms.error());
  if (term <= terms->promised) return {};
  terms->promised = term;
  return put_identity(*terms);
}

Status RocksStore::own(Term term) {
  const std::lock_guard lock(terms_mutex_);
  Result<SeatTerms> terms = this->terms();
  if (!terms) return tl::unexpected(terms.error());
  terms->owned = std::max(terms->owned, term);
  return put_identity(*terms);
}

Status RocksStore::put_identity(const SeatTerms& terms) {
  const auto written = db_->Put(synced(), kIdentityKey, records::seal(records::StoreIdentity{own_.value, terms}));
  if (!written.ok()) return tl::unexpected<Error>(error("write its identity", written));
  return {};
}

Result<SeatTerms> RocksStore::terms() const {
  std::string bytes;
  const auto status = db_->Get(rocksdb::ReadOptions(), default_.get(), kIdentityKey, &bytes);
  if (!status.ok()) return tl::unexpected<Error>(error("read its identity", status));
  return records::unseal_identity(bytes, "store " + path_).map([](const auto& identity) { return identity.terms; });
}

Result<std::vector<JobId>> RocksStore::recorded() const {
  std::vector<JobId> jobs;
  const Status scanned = scan(kJobPrefix, [&](const rocksdb::Slice& key, const rocksdb::Slice&) -> Status {
    jobs.emplace_back(std::strtoull(key.ToString().c_str() + std::strlen(kJobPrefix), nullptr, 16));
    return {};
  });
  if (!scanned) return tl::unexpected<Error>(scanned.error());
  return jobs;
}

Result<JobRecord> RocksStore::record(JobId job) const {
  const std::string what = "the registry record " + job_key(job) + " in store " + path_;
  std::string sealed;
  const auto status = db_->Get(rocksdb::ReadOptions(), default_.get(), job_key(job), &sealed);
  if (status.IsNotFound()) return fail(ErrorCode::kNotFound, what + " is not there");
  if (!status.ok()) return tl::unexpected<Error>(error("read its records", status));
  return records::unseal_job(sealed, what);
}

}  // namespace

Result<std::unique_ptr<Store>> Store::open(const std::string& path, std::uint16_t server_index, Warn warn) {
  std::error_code failed;
  fs::create_directories(path, failed);
  if (failed) {
    return fail(ErrorCode::kStore, "cannot create the store " + path + ": " + failed.message() +
                                       "; give this server a [store] path that it may write");
  }
  auto lock = StoreLock::take(path);
  if (!lock) return tl::unexpected<Error>(lock.error());
  auto store = std::make_unique<RocksStore>(path, server_index, std::move(*lock));
  if (auto status = store->open_db(std::move(warn)); !status) return tl::unexpected<Error>(status.error());
  return std::unique_ptr<Store>(std::move(store));
}

}  // namespace tributary
