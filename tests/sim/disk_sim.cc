#include "tests/sim/disk_sim.h"

#include <algorithm>
#include <iterator>

namespace tributary::sim {
namespace {

Error full() {
  return {ErrorCode::kStore, "the disk is full"};
}

BufferRef on_disk(std::span<const std::byte> values) {
  BufferRef copy = BufferRef::alone(values.size());
  std::ranges::copy(values, copy.data());
  return copy;
}

// In memory that is no server's.
ChunkState on_disk(const ChunkState& state) {
  ChunkState copy = state;
  for (BufferRef* array : copy.arrays()) {
    if (*array) *array = on_disk(array->bytes());
  }
  for (NodeResidual& residual : copy.residuals) {
    residual = NodeResidual::of(residual.node, on_disk(residual.bytes()));
  }
  return copy;
}

}  // namespace

void Disk::fail_power(Random& random) {
  for (auto& [key, snapshot] : snapshots) {
    for (auto at = snapshot.pieces.begin(); at != snapshot.pieces.end();) {
      const std::uint64_t fate = at->second.synced ? 2 : random.below(3);
      at->second.torn |= fate == 1;
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

StoreSim::StoreSim(Disk& disk, bool sync_records, bool drops_fail)
    : disk_(disk), sync_records_(sync_records), drops_fail_(drops_fail) {
  std::erase_if(disk_.snapshots, [](const auto& entry) { return !entry.second.recorded; });
}

std::vector<StoredJob> StoreSim::jobs() const {
  std::vector<StoredJob> found;
  for (const auto& [handle, snapshot] : disk_.snapshots) {
    if (!snapshot.recorded) continue;
    if (found.empty() || found.back().job != handle.first.first) {
      found.push_back({handle.first.first, snapshot.info.job_name, snapshot.info.layout_hash, {}});
    }
    found.back().snapshots.push_back(handle.first.second);
  }
  return found;
}

Result<std::unique_ptr<SnapshotWriter>> StoreSim::begin(const SnapshotInfo&) {
  return fail(ErrorCode::kInternal, "snapshots are written step by step here");
}

Result<PinnedSnapshot> StoreSim::pin(JobId, Round) {
  return fail(ErrorCode::kNotFound, "checkpoints are not simulated");
}

Status StoreSim::load(const SnapshotInfo& expected, const EachChunk& each) {
  const auto found = std::ranges::find_if(disk_.snapshots, [&](const auto& entry) {
    return entry.second.recorded && entry.first.first == Disk::Key{expected.job, expected.round};
  });
  if (found == disk_.snapshots.end()) {
    return fail(ErrorCode::kNotFound, "no snapshot of round " + std::to_string(expected.round.value));
  }
  const Disk::Snapshot& snapshot = found->second;
  if (snapshot.info.layout_hash != expected.layout_hash || snapshot.info.chunks != expected.chunks) {
    return fail(ErrorCode::kStore, "the snapshot is of another model");
  }
  if (snapshot.pieces.size() != snapshot.info.chunks) return fail(ErrorCode::kStore, "chunks of a snapshot are lost");
  for (const auto& [index, piece] : snapshot.pieces) {
    if (piece.torn) return fail(ErrorCode::kStore, "a chunk of a snapshot is torn");
    if (Status taken = each(ChunkIndex(index), piece.chunk); !taken) return taken;
  }
  return {};
}

Status StoreSim::drop_before(JobId job, Round round) {
  if (disk_.full) return drops_fail_ ? tl::unexpected(full()) : Status{};
  std::erase_if(disk_.snapshots, [&](const auto& entry) {
    return entry.second.recorded && entry.first.first.first == job && entry.first.first.second < round;
  });
  return {};
}

Status StoreSim::drop_after(JobId job, Round round) {
  if (disk_.full) return drops_fail_ ? tl::unexpected(full()) : Status{};
  std::erase_if(disk_.snapshots, [&](const auto& entry) {
    return entry.second.recorded && entry.first.first.first == job && entry.first.first.second > round;
  });
  return {};
}

Status StoreSim::drop_job(JobId job) {
  if (disk_.full) return tl::unexpected(full());
  std::erase_if(disk_.snapshots, [&](const auto& entry) { return entry.first.first.first == job; });
  return {};
}

Result<std::vector<JobRecord>> StoreSim::registry() const {
  std::vector<JobRecord> records;
  for (const auto& [id, record] : disk_.jobs) records.push_back(record.record);
  return records;
}

Status StoreSim::save(const JobRecord& record) {
  if (disk_.full) return tl::unexpected(full());
  Disk::Record& kept = disk_.jobs[record.job];
  if (!sync_records_ && kept.record.job == record.job && (kept.synced || !kept.before)) kept.before = kept.record;
  kept.record = record;
  kept.synced = sync_records_;
  return {};
}

Status StoreSim::remove(JobId job) {
  if (disk_.full) return tl::unexpected(full());
  disk_.jobs.erase(job);
  return {};
}

StoreSim::Handle StoreSim::create(const SnapshotInfo& info) {
  Handle handle{{info.job, info.round}, 0};
  while (disk_.snapshots.contains(handle)) ++handle.second;
  disk_.snapshots[handle].info = info;
  return handle;
}

Status StoreSim::write(const Handle& handle, const ChunkSnapshot& chunk) {
  if (disk_.full) return tl::unexpected(full());
  disk_.snapshots[handle].view = chunk.view;
  disk_.snapshots[handle].pieces[chunk.chunk.value].chunk = on_disk(chunk.state);
  return {};
}

void StoreSim::sync(const Handle& handle) {
  for (auto& [index, piece] : disk_.snapshots[handle].pieces) piece.synced = true;
}

Status StoreSim::record(const Handle& handle) {
  if (disk_.full) return tl::unexpected(full());
  Disk::Snapshot& snapshot = disk_.snapshots[handle];
  snapshot.recorded = snapshot.record_synced = true;
  std::erase_if(disk_.snapshots, [&](const auto& entry) {
    return entry.first.first == handle.first && entry.first.second != handle.second && entry.second.recorded;
  });
  return {};
}

void StoreSim::discard(const Handle& handle) {
  disk_.snapshots.erase(handle);
}

}  // namespace tributary::sim
