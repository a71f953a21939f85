#include "tests/sim/disk/disk_sim.h"

#include <rocksdb/iterator.h>

#include <algorithm>
#include <iterator>

#include "server/chunk/chunk_record.h"
#include "server/store/records.h"
#include "server/store/snapshot_file.h"

namespace tributary::sim {
namespace {

Error full() {
  return {ErrorCode::kStore, "the disk is full"};
}

// The entries of a snapshot's chunks, in order, as RocksDB has them.
class Entries final : public rocksdb::Iterator {
 public:
  explicit Entries(const Disk::Snapshot& snapshot) {
    for (const auto& [index, piece] : snapshot.pieces) {
      for (const auto& entry : piece.entries) entries_.push_back(&entry);
    }
  }
  bool Valid() const override { return at_ < entries_.size(); }
  void SeekToFirst() override { at_ = 0; }
  void SeekToLast() override { at_ = entries_.empty() ? 0 : entries_.size() - 1; }
  void Seek(const rocksdb::Slice& target) override {
    for (at_ = 0; Valid() && key().compare(target) < 0;) ++at_;
  }
  void SeekForPrev(const rocksdb::Slice& target) override {
    for (at_ = entries_.size(); at_ > 0 && rocksdb::Slice(entries_[at_ - 1]->first).compare(target) > 0;) --at_;
    at_ = at_ == 0 ? entries_.size() : at_ - 1;
  }
  void Next() override { ++at_; }
  void Prev() override { at_ = at_ == 0 ? entries_.size() : at_ - 1; }
  rocksdb::Slice key() const override { return entries_[at_]->first; }
  rocksdb::Slice value() const override { return entries_[at_]->second; }
  rocksdb::Status status() const override { return {}; }

 private:
  std::vector<const std::pair<std::string, std::string>*> entries_;
  std::size_t at_ = 0;
};

}  // namespace

Disk::Piece Disk::Piece::of(const StoredChunk& chunk) {
  Piece piece;
  for (const StoredEntry& entry : chunk.entries) piece.entries.emplace_back(entry.key, entry.value);
  return piece;
}

StoredChunk Disk::Piece::stored(ChunkIndex chunk) const {
  StoredChunk out{chunk, {}};
  for (const auto& [key, value] : entries) out.entries.push_back({key, value});
  return out;
}

void Disk::Piece::damage(Random& random) {
  damaged = true;
  std::string& value = entries[random.below(entries.size())].second;
  value[random.below(value.size())] ^= static_cast<char>(1u << random.below(8));
}

Status Disk::Snapshot::read(const EachChunk& each) const {
  Entries entries(*this);
  return read_snapshot(entries, {.info = info, .generation = 0, .bytes = 0, .chunks = chunks}, each);
}

bool Disk::Snapshot::synced() const {
  return record_synced && std::ranges::all_of(pieces, [](const auto& entry) { return entry.second.synced; });
}

std::vector<Disk::Snapshot*> Disk::complete_snapshots(std::uint32_t server) {
  std::vector<Snapshot*> all;
  for (auto& [handle, snapshot] : snapshots) {
    const bool own = snapshot.info.shard.value == server;
    if (snapshot.recorded && !snapshot.pieces.empty() && own) all.push_back(&snapshot);
  }
  return all;
}

std::vector<const Disk::Snapshot*> Disk::parts(JobId job, Round round) const {
  std::vector<const Snapshot*> all;
  for (const auto& [handle, snapshot] : snapshots) {
    if (snapshot.recorded && snapshot.info.job == job && snapshot.info.round == round) all.push_back(&snapshot);
  }
  return all;
}

bool Disk::has(JobId job, ShardIndex shard, Round round) const {
  return std::ranges::any_of(snapshots, [&](const auto& entry) {
    const Snapshot& snapshot = entry.second;
    return entry.first.first == Key{job, shard, round} && snapshot.recorded &&
           snapshot.pieces.size() == snapshot.chunks.size() &&
           std::ranges::none_of(snapshot.pieces, [](const auto& piece) { return piece.second.damaged; });
  });
}

void Disk::Snapshot::damage_chunk(Random& random) {
  std::next(pieces.begin(), static_cast<std::ptrdiff_t>(random.below(pieces.size())))->second.damage(random);
}

void Disk::fail_power(Random& random) {
  for (auto& [key, snapshot] : snapshots) {
    for (auto at = snapshot.pieces.begin(); at != snapshot.pieces.end();) {
      const std::uint64_t fate = at->second.synced ? 2 : random.below(3);
      if (fate == 1) at->second.entries.back().second.back() += 1;  // torn
      at = fate == 0 ? snapshot.pieces.erase(at) : std::next(at);
    }
    if (snapshot.recorded && !snapshot.record_synced) snapshot.recorded = random.chance(0.5);
  }
  for (auto at = jobs.begin(); at != jobs.end();) {
    Record& record = at->second;
    if (record.synced || random.chance(0.5)) {
      ++at;
    } else if (record.before) {
      record.record = *record.before;
      record.synced = true;
      ++at;
    } else {
      at = jobs.erase(at);
    }
  }
}

LargePartsSim::LargePartsSim(Disk& disk) : disk_(disk) {
  std::erase_if(disk_.large_parts, [](const auto& entry) { return !entry.second.complete; });
}

LargePartStore::Complete LargePartsSim::complete() const {
  Complete all;
  for (const auto& [key, part] : disk_.large_parts) {
    if (part.complete) all[key.first].insert(key.second);
  }
  return all;
}

Status LargePartsSim::begin(JobId job, const LargePart& large) {
  if (disk_.full) return tl::unexpected(full());
  disk_.large_parts[{job, large}] = {};
  return {};
}

Result<Disk::LargePieces*> LargePartsSim::begun(JobId job, const LargePart& large) const {
  const auto found = disk_.large_parts.find({job, large});
  if (found == disk_.large_parts.end()) return fail(ErrorCode::kNotFound, "the part was dropped meanwhile");
  return &found->second;
}

Status LargePartsSim::add(JobId job, const LargePart& large, std::uint64_t offset, std::span<const std::byte> piece) {
  if (disk_.full) return tl::unexpected(full());
  const auto part = begun(job, large);
  if (!part) return tl::unexpected(part.error());
  (*part)->pieces[offset].assign(piece.begin(), piece.end());
  return {};
}

Status LargePartsSim::finish(JobId job, const LargePart& large) {
  if (disk_.full) return tl::unexpected(full());
  const auto part = begun(job, large);
  if (!part) return tl::unexpected(part.error());
  (*part)->complete = true;
  return {};
}

Result<std::vector<std::byte>> LargePartsSim::read(JobId job, const LargePart& large, std::uint64_t offset) const {
  const auto found = disk_.large_parts.find({job, large});
  if (found == disk_.large_parts.end() || !found->second.complete || !found->second.pieces.contains(offset)) {
    return fail(ErrorCode::kNotFound, "no such part of a state");
  }
  return found->second.pieces.at(offset);
}

Status LargePartsSim::drop(JobId job, const std::set<LargePart>& but_these) {
  if (disk_.full) return tl::unexpected(full());
  std::erase_if(disk_.large_parts,
                [&](const auto& entry) { return entry.first.first == job && !but_these.contains(entry.first.second); });
  return {};
}

StoreSim::StoreSim(Disk& disk, ShardIndex own, bool sync_records, bool drops_fail)
    : disk_(disk), own_(own), sync_records_(sync_records), drops_fail_(drops_fail), large_parts_(disk) {
  std::erase_if(disk_.snapshots, [](const auto& entry) { return !entry.second.recorded; });
}

std::vector<StoredJob> StoreSim::jobs() const {
  std::vector<StoredJob> found;
  for (const auto& [handle, snapshot] : disk_.snapshots) {
    if (!snapshot.recorded) continue;
    const SnapshotInfo& info = snapshot.info;
    const ShardIndex copy_of = info.shard == own_ ? kNoShard : info.shard;
    if (found.empty() || found.back().job != info.job || found.back().copy_of != copy_of) {
      found.push_back({info.job, info.job_name, info.layout_hash, {}, copy_of});
    }
    found.back().snapshots.push_back(info.round);
  }
  return found;
}

Result<std::unique_ptr<SnapshotWriter>> StoreSim::begin(const SnapshotInfo&) {
  return fail(ErrorCode::kInternal, "snapshots are written step by step here");
}

const Disk::Snapshot* StoreSim::find(JobId job, Round round, ShardIndex shard) const {
  const auto found = std::ranges::find_if(disk_.snapshots, [&](const auto& entry) {
    return entry.second.recorded && entry.first.first == Disk::Key{job, shard, round};
  });
  return found == disk_.snapshots.end() ? nullptr : &found->second;
}

Result<PinnedSnapshot> StoreSim::pin(JobId job, Round round, ShardIndex shard) {
  const Disk::Snapshot* found = find(job, round, shard);
  if (!found) {
    return fail(ErrorCode::kNotFound, "no snapshot of round " + std::to_string(round.value) + " (any more)");
  }
  const auto snapshot = std::make_shared<const Disk::Snapshot>(*found);
  const auto one = [snapshot](std::size_t place, const PinnedSnapshot::Each& each) -> Status {
    const ChunkIndex chunk = snapshot->chunks.at(place);
    const auto piece = snapshot->pieces.find(chunk.value);
    // As RocksDB finds it. (load() shows that the records' own checksums do, too.)
    const bool whole = piece != snapshot->pieces.end() && !piece->second.damaged;
    return whole ? each(piece->second.stored(chunk)) : fail(ErrorCode::kStore, "a block's checksum does not match");
  };
  const auto all = [snapshot, one](const PinnedSnapshot::Each& each) -> Status {
    for (std::size_t place = 0; place < snapshot->chunks.size(); ++place) {
      if (Status taken = one(place, each); !taken) return taken;
    }
    return {};
  };
  return PinnedSnapshot{snapshot->info, snapshot->chunks, all, one};
}

ViewId StoreSim::view_of(JobId job, Round round, ShardIndex shard) const {
  const Disk::Snapshot* found = find(job, round, shard);
  return found ? found->view : ViewId();
}

Status StoreSim::load(const SnapshotInfo& expected, const EachChunk& each) {
  const Disk::Snapshot* found = find(expected.job, expected.round, expected.shard);
  if (!found) return fail(ErrorCode::kNotFound, "no snapshot of round " + std::to_string(expected.round.value));
  if (found->info.layout_hash != expected.layout_hash || found->info.chunks != expected.chunks) {
    return fail(ErrorCode::kStore, "the snapshot is of another model");
  }
  return found->read(each);
}

Status StoreSim::drop(JobId job, Round first, Round last) {
  if (disk_.full) return drops_fail_ ? tl::unexpected(full()) : Status{};
  std::erase_if(disk_.snapshots, [&](const auto& entry) {
    const auto& [of, shard, round] = entry.first.first;
    return entry.second.recorded && of == job && round >= first && round <= last;
  });
  return {};
}

Status StoreSim::drop_job(JobId job) {
  if (disk_.full) return tl::unexpected(full());
  std::erase_if(disk_.snapshots, [&](const auto& entry) { return std::get<JobId>(entry.first.first) == job; });
  return {};
}

Result<std::vector<JobId>> StoreSim::recorded() const {
  std::vector<JobId> jobs;
  for (const auto& [id, record] : disk_.jobs) jobs.push_back(id);
  return jobs;
}

Result<JobRecord> StoreSim::record(JobId job) const {
  const auto found = disk_.jobs.find(job);
  if (found == disk_.jobs.end()) return fail(ErrorCode::kNotFound, "there is no such record");
  return found->second.record;
}

Status StoreSim::save_all(std::span<const JobRecord> records) {
  if (disk_.full) return tl::unexpected(full());
  for (const JobRecord& record : records) {
    Disk::Record& kept = disk_.jobs[record.job];
    if (!sync_records_ && kept.record.job == record.job && (kept.synced || !kept.before)) kept.before = kept.record;
    kept.record = record;
    kept.synced = sync_records_;
  }
  return {};
}

Status StoreSim::promise(Term term) {
  if (disk_.full) return tl::unexpected(full());
  disk_.terms.promised = std::max(disk_.terms.promised, term);
  return {};
}

Status StoreSim::own(Term term) {
  if (disk_.full) return tl::unexpected(full());
  disk_.terms.owned = std::max(disk_.terms.owned, term);
  return {};
}

Status StoreSim::remove(JobId job) {
  if (disk_.full) return tl::unexpected(full());
  disk_.jobs.erase(job);
  return {};
}

StoreSim::Handle StoreSim::create(const SnapshotInfo& info) {
  Handle handle{Disk::key_of(info), 0};
  while (disk_.snapshots.contains(handle)) ++handle.second;
  disk_.snapshots[handle].info = info;
  return handle;
}

Status StoreSim::write(const Handle& handle, const ChunkSnapshot& chunk) {
  std::string sealed;
  const std::string& optimizer = disk_.snapshots[handle].info.optimizer;
  const StoredChunk stored = records::compose_chunk(chunk, chunk.job, optimizer, sealed);
  return write(handle, chunk.view, chunk.chunk, Disk::Piece::of(stored));
}

Status StoreSim::write(const Handle& handle, ViewId view, ChunkIndex chunk, Disk::Piece piece) {
  if (disk_.full) return tl::unexpected(full());
  Disk::Snapshot& snapshot = disk_.snapshots[handle];
  snapshot.view = view;
  snapshot.pieces[chunk.value] = std::move(piece);
  return {};
}

void StoreSim::sync(const Handle& handle) {
  for (auto& [index, piece] : disk_.snapshots[handle].pieces) piece.synced = true;
}

Status StoreSim::record(const Handle& handle) {
  if (disk_.full) return tl::unexpected(full());
  Disk::Snapshot& snapshot = disk_.snapshots[handle];
  snapshot.recorded = snapshot.record_synced = true;
  for (const auto& [index, piece] : snapshot.pieces) snapshot.chunks.emplace_back(index);
  std::erase_if(disk_.snapshots, [&](const auto& entry) {
    return entry.first.first == handle.first && entry.first.second != handle.second && entry.second.recorded;
  });
  return {};
}

void StoreSim::discard(const Handle& handle) {
  disk_.snapshots.erase(handle);
}

}  // namespace tributary::sim
