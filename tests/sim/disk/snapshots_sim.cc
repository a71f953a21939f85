#include "tests/sim/disk/snapshots_sim.h"

#include <algorithm>
#include <utility>

#include "server/chunk/chunk_record.h"

namespace tributary::sim {

void SnapshotsSim::drop(Active& active, const std::string& reason) {
  if (!active.abandoned.empty()) return;
  active.abandoned = reason.empty() ? "it was abandoned" : reason;
  active.slots.clear();
}

void SnapshotsSim::expect(SnapshotPlan plan) {
  for (Active& active : active_) {
    if (active.plan.info.job == plan.info.job && active.captured < active.plan.chunks.size()) {
      drop(active, "the snapshot of round " + std::to_string(plan.info.round.value) + " replaced it");
    }
  }
  Active& active = active_.emplace_back();
  active.plan = std::move(plan);
  active.slots.resize(active.plan.chunks.size());
  active.present.resize(active.plan.chunks.size());
  work_soon();
}

void SnapshotsSim::captured(ChunkSnapshot chunk) {
  for (Active& active : active_) {
    const SnapshotPlan& plan = active.plan;
    if (plan.info.job != chunk.job || plan.info.round != chunk.round || plan.view != chunk.view) continue;
    if (!active.abandoned.empty()) continue;
    const auto found = std::ranges::lower_bound(plan.chunks, chunk.chunk);
    if (found == plan.chunks.end() || *found != chunk.chunk) continue;
    const auto position = static_cast<std::size_t>(found - plan.chunks.begin());
    if (active.present[position]) continue;
    active.present[position] = 1;
    active.slots[position] = std::move(chunk);
    ++active.captured;
    work_soon();
    return;
  }
}

void SnapshotsSim::abandon(JobId job, Round round, const std::string& reason) {
  for (Active& active : active_) {
    if (active.plan.info.job == job && active.plan.info.round == round) drop(active, reason);
  }
  work_soon();
}

void SnapshotsSim::work_soon() {
  if (std::exchange(due_, true)) return;
  owner_.after(options_.step_ns, [this] { work(); });
}

void SnapshotsSim::work() {
  due_ = false;
  const auto runnable = std::ranges::find_if(active_, [](const Active& active) {
    return !active.abandoned.empty() || active.next == active.plan.chunks.size() || active.present[active.next];
  });
  if (runnable == active_.end()) return;
  if (step(*runnable)) active_.erase(runnable);
  work_soon();
}

bool SnapshotsSim::step(Active& active) {
  if (active.plan.checkpoint) return step_to_checkpoint(active, *active.plan.checkpoint);
  SnapshotDone report{active.plan.info.job, active.plan.view, active.plan.info.round, true, 1, {}};
  const auto failed = [&](const std::string& why) {
    if (active.handle) store_.discard(*active.handle);
    report.ok = false;
    report.message = why;
    report.code = active.abandoned.empty() ? ErrorCode::kStore : ErrorCode::kStopped;
    done_(report);
    return true;
  };
  if (!active.abandoned.empty()) return failed(active.abandoned);
  if (!active.handle) active.handle = store_.create(active.plan.info);
  if (active.next < active.plan.chunks.size()) {
    const ChunkSnapshot chunk = std::move(active.slots[active.next++]);
    read_(chunk);
    const Status written = store_.write(*active.handle, chunk);
    return written ? false : failed(written.error().message);
  }
  if (options_.syncs && !std::exchange(active.synced, true)) {
    store_.sync(*active.handle);
    return false;
  }
  if (const Status recorded = store_.record(*active.handle); !recorded) return failed(recorded.error().message);
  done_(report);
  return true;
}

// The checkpoint's folder is another disk than the store's.
bool SnapshotsSim::step_to_checkpoint(Active& active, const WriteCheckpoint& order) {
  const std::string name = shard_file_name(options_.shard);
  CheckpointDone done;
  done.operation = order.operation;
  const auto in = files_.directories.find(order.directory);
  if (!active.abandoned.empty()) {
    if (in != files_.directories.end()) in->second.files.erase(name);
    done.ok = false;
    done.code = ErrorCode::kStopped;
    done.message = active.abandoned;
    written_(order, done);
    return true;
  }
  if (active.next == 0) files_.directories[order.directory].files[name] = {};
  if (active.next < active.plan.chunks.size()) {
    const ChunkSnapshot chunk = std::move(active.slots[active.next++]);
    read_(chunk);
    std::string sealed;
    active.file.chunks[chunk.chunk.value] =
        Disk::Piece::of(records::compose_chunk(chunk, JobId(0), active.plan.info.optimizer, sealed));
    if (CheckpointFiles::File* file = files_.file(order.directory, name)) *file = active.file;
    return false;
  }
  done.bytes = active.file.bytes();
  done.checksum = active.file.checksum();
  written_(order, done);
  return true;
}

}  // namespace tributary::sim
