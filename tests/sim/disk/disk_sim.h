// A simulated server's disk and the store on it. As in the real one (server/store/store.h), the chunks of a snapshot go
// into files, which are synced; then a synced record makes them a snapshot. After a power failure each piece that was
// not synced is there, lost, or torn. A killed process loses nothing. A snapshot without its record is a leftover, and
// dropped at open.
//
// Chunks lie there as the product writes them (server/chunk/chunk_record.h) and are read by the product's reader
// (server/store/snapshot_file.h), so the product must find the damage.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "server/store/store.h"
#include "tests/sim/judge/judge.h"
#include "tests/sim/random.h"

namespace tributary::sim {

// Outlives the server's processes.
struct Disk {
  struct Piece {
    std::vector<std::pair<std::string, std::string>> entries;  // key and value: the header, then arrays
    bool synced = false;
    bool damaged = false;  // a file's blocks show the damage
    static Piece of(const StoredChunk& chunk);
    StoredChunk stored(ChunkIndex chunk) const;  // as long as this is
    void damage(Random& random);                 // a bit of it is turned over
  };
  struct Snapshot {
    SnapshotInfo info;
    std::map<std::uint32_t, Piece> pieces;
    std::vector<ChunkIndex> chunks;  // that its record names
    ViewId view;
    bool recorded = false, record_synced = false;
    // REQUIRES: recorded.
    Status read(const EachChunk& each) const;
    bool synced() const;
    // Damages a chunk, or loses the record that makes the snapshot complete, between two starts of the process.
    void damage_chunk(Random& random);
    void lose_record() { recorded = false; }
  };
  struct Record {
    JobRecord record;
    bool synced = false;
    std::optional<JobRecord> before;  // the one that is lost with it
  };
  using Key = std::tuple<JobId, ShardIndex, Round>;  // whose part
  static Key key_of(const SnapshotInfo& info) { return {info.job, info.shard, info.round}; }
  std::map<std::pair<Key, std::uint32_t>, Snapshot> snapshots;  // by generation
  std::map<JobId, Record> jobs;
  SeatTerms terms;  // synced
  // Large parts of ranks' states. A complete one is synced; an incomplete one is lost with the process.
  struct LargePieces {
    std::map<std::uint64_t, std::vector<std::byte>> pieces;  // by offset
    bool complete = false;
  };
  std::map<std::pair<JobId, LargePart>, LargePieces> large_parts;
  bool full = false, was_full = false;

  void fail_power(Random& random);
  // All that is complete here of a job's snapshot, with copies of other servers' parts.
  std::vector<const Snapshot*> parts(JobId job, Round round) const;
  // This server's own parts, with chunks; by job and round.
  std::vector<Snapshot*> complete_snapshots(std::uint32_t server);
  // Has it all of a server's part of this snapshot, undamaged?
  bool has(JobId job, ShardIndex shard, Round round) const;
};

class LargePartsSim final : public LargePartStore {
 public:
  explicit LargePartsSim(Disk& disk);

  Complete complete() const override;
  Status begin(JobId job, const LargePart& large) override;
  Status add(JobId job, const LargePart& large, std::uint64_t offset, std::span<const std::byte> piece) override;
  Status finish(JobId job, const LargePart& large) override;
  Result<std::vector<std::byte>> read(JobId job, const LargePart& large, std::uint64_t offset) const override;
  Status drop(JobId job, const std::set<LargePart>& but_these) override;

 private:
  Result<Disk::LargePieces*> begun(JobId job, const LargePart& large) const;  // kNotFound: it was dropped since

  Disk& disk_;
};

class StoreSim final : public Store {
 public:
  // sync_records: false plants a bug: the registry is written without sync. drops_fail: false plants one, too: a full
  // disk keeps what is to be dropped, and reports no error.
  StoreSim(Disk& disk, ShardIndex own, bool sync_records, bool drops_fail = true);

  std::vector<StoredJob> jobs() const override;
  bool has(JobId job, Round round, ShardIndex shard) const override { return find(job, round, shard) != nullptr; }
  Result<std::unique_ptr<SnapshotWriter>> begin(const SnapshotInfo& info) override;
  Status load(const SnapshotInfo& expected, const EachChunk& each) override;
  Result<PinnedSnapshot> pin(JobId job, Round round, ShardIndex shard) override;
  Status drop(JobId job, Round first, Round last) override;
  Status drop_job(JobId job) override;
  Result<std::vector<JobId>> recorded() const override;
  Result<JobRecord> record(JobId job) const override;
  Status save_all(std::span<const JobRecord> records) override;
  Status remove(JobId job) override;
  LargePartStore& large_parts() override { return large_parts_; }
  Result<SeatTerms> terms() const override { return disk_.terms; }
  Status promise(Term term) override;
  Status own(Term term) override;
  std::string path() const override { return "disk"; }

  ViewId view_of(JobId job, Round round, ShardIndex shard) const;  // that made a complete snapshot

  // Writes a snapshot, a step at a time. The handle names it from create() on.
  using Handle = std::pair<Disk::Key, std::uint32_t>;
  Handle create(const SnapshotInfo& info);
  Status write(const Handle& handle, const ChunkSnapshot& chunk);
  Status write(const Handle& handle, ViewId view, ChunkIndex chunk, Disk::Piece piece);  // of a checkpoint
  void sync(const Handle& handle);
  Status record(const Handle& handle);  // complete from now on
  void discard(const Handle& handle);

 private:
  const Disk::Snapshot* find(JobId job, Round round, ShardIndex shard) const;  // a complete one; null: none

  Disk& disk_;
  const ShardIndex own_;
  const bool sync_records_, drops_fail_;
  LargePartsSim large_parts_;
};

}  // namespace tributary::sim
