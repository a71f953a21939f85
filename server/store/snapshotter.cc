#include "server/store/snapshotter.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "common/base/assert.h"
#include "common/base/clock.h"
#include "common/base/printed.h"
#include "common/daemon/background_thread.h"
#include "common/daemon/daemon_thread.h"
#include "server/store/shard_file_writer.h"
#include "server/store/snapshot_file.h"
#include "server/store/token_bucket.h"

namespace tributary {

Snapshotter::Snapshotter(Store& store, Options options, Done done, PartDone part_done, Log log)
    : store_(store),
      options_(std::move(options)),
      done_(std::move(done)),
      part_done_(std::move(part_done)),
      log_(std::move(log)),
      thread_(start_thread("snapshotter", log_, [this] { run(); })) {}

Snapshotter::~Snapshotter() {
  stop();
}

void Snapshotter::stop() {
  std::vector<ChunkSnapshot> dropped;
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    for (Active& active : active_) abandon_locked(active, "the server is stopping", dropped);
    wake_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

void Snapshotter::expect(SnapshotPlan plan) {
  TRIB_ASSERT(plan.chunks.size() == plan.info.chunks);
  TRIB_ASSERT(std::is_sorted(plan.chunks.begin(), plan.chunks.end()));
  std::vector<ChunkSnapshot> dropped;  // destroyed after the lock
  std::lock_guard lock(mutex_);
  for (Active& active : active_) {
    if (active.plan.info.job == plan.info.job && active.captured < active.plan.chunks.size()) {
      abandon_locked(active, "the snapshot of round " + std::to_string(plan.info.round.value) + " replaced it",
                     dropped);
    }
  }
  Active& active = active_.emplace_back();
  active.plan = std::move(plan);
  active.slots.resize(active.plan.chunks.size());
  active.present.resize(active.plan.chunks.size());
  if (stopping_) abandon_locked(active, "the server is stopping", dropped);
  wake_.notify_all();
}

void Snapshotter::hurry(JobId job, Round round) {
  const std::lock_guard lock(mutex_);
  for (Active& active : active_) {
    if (active.plan.info.job == job && active.plan.info.round == round) active.plan.paced = false;
  }
  wake_.notify_all();
}

void Snapshotter::captured(ChunkSnapshot chunk) {
  std::lock_guard lock(mutex_);
  for (Active& active : active_) {
    const SnapshotPlan& plan = active.plan;
    if (plan.info.job != chunk.job || plan.info.round != chunk.round || plan.view != chunk.view) continue;
    if (!active.abandoned.empty()) continue;
    const auto found = std::lower_bound(plan.chunks.begin(), plan.chunks.end(), chunk.chunk);
    if (found == plan.chunks.end() || *found != chunk.chunk) continue;
    const auto position = static_cast<std::size_t>(found - plan.chunks.begin());
    if (active.present[position]) continue;
    active.present[position] = 1;
    active.slots[position] = std::move(chunk);
    ++active.captured;
    if (position == active.next) wake_.notify_all();
    return;
  }
}

void Snapshotter::abandon(JobId job, Round round, const std::string& reason) {
  std::vector<ChunkSnapshot> dropped;
  const std::lock_guard lock(mutex_);
  for (Active& active : active_) {
    if (active.plan.info.job == job && active.plan.info.round == round) abandon_locked(active, reason, dropped);
  }
  wake_.notify_all();
}

bool Snapshotter::writes_into(const std::string& directory) const {
  const std::lock_guard lock(mutex_);
  return std::ranges::any_of(active_, [&](const Active& active) {
    return active.abandoned.empty() && active.plan.checkpoint && active.plan.checkpoint->directory == directory;
  });
}

std::size_t Snapshotter::waiting_chunks() const {
  std::lock_guard lock(mutex_);
  std::size_t count = 0;
  for (const Active& active : active_) {
    if (active.abandoned.empty()) count += active.captured - active.next;
  }
  return count;
}

// The buffers go to `dropped` so that the caller frees them after the lock; the writer thread reports and removes the
// rest.
void Snapshotter::abandon_locked(Active& active, const std::string& reason, std::vector<ChunkSnapshot>& dropped) {
  if (!active.abandoned.empty()) return;
  active.abandoned = reason.empty() ? "it was abandoned" : reason;
  std::move(active.slots.begin(), active.slots.end(), std::back_inserter(dropped));
  active.slots.clear();
}

// Snapshots that are given up go first: a caller may wait for their end, and it costs nothing. Snapshots without a
// budget follow: a job's end waits for them, and not for the pace of another job's.
Snapshotter::Active* Snapshotter::runnable() {
  Active* first = nullptr;
  for (Active& active : active_) {
    if (!active.abandoned.empty()) return &active;
    const bool ready = active.next == active.plan.chunks.size() || active.present[active.next];
    if (ready && (!first || (first->plan.paced && !active.plan.paced))) first = &active;
  }
  return first;
}

void Snapshotter::run() {
  if (!become_background("snapshotter")) log_("cannot lower the snapshot thread's priority");
  TokenBucket bucket = TokenBucket::of_disk(options_.io_bytes_per_s);

  std::unique_lock lock(mutex_);
  while (true) {
    Active* active = runnable();
    if (active == nullptr) {
      if (stopping_) return;
      wake_.wait(lock);
      continue;
    }
    if (!active->abandoned.empty()) {
      end(*active, fail(ErrorCode::kStopped, active->abandoned), lock);
      continue;
    }
    if (active->plan.paced) {
      const std::uint64_t now = steady_ns();
      if (pause_until_ns_ > now) {
        wake_.wait_for(lock, std::chrono::nanoseconds(pause_until_ns_ - now));
        continue;  // whatever is to be done now
      }
    }
    const std::uint64_t written = write_next(*active, lock);
    const std::uint64_t now = steady_ns();
    pause_until_ns_ = now + bucket.take(written, now);
  }
}

std::uint64_t Snapshotter::write_next(Active& active, std::unique_lock<std::mutex>& lock) {
  const bool last = active.next == active.plan.chunks.size();
  ChunkSnapshot chunk;
  if (!last) chunk = std::move(active.slots[active.next++]);
  at_disk_.store(true, std::memory_order_relaxed);
  lock.unlock();
  // `active` stays: only this thread removes entries. Its plan is constant but for `paced`; its writer is ours.
  std::uint64_t written = 0;
  Status status;
  if (!active.writer) {
    active.begun_ns = steady_ns();
    auto writer = begin(active.plan);
    if (writer) {
      active.writer = std::move(*writer);
    } else {
      status = tl::unexpected<Error>(writer.error());
    }
  }
  if (status && !last) {
    const std::uint64_t before = active.writer->bytes();
    status = active.writer->add(chunk);
    written = active.writer->bytes() - before;
  } else if (status) {
    status = active.writer->finish();
  }
  at_disk_.store(false, std::memory_order_relaxed);
  written_.fetch_add(written, std::memory_order_relaxed);
  if (active.plan.checkpoint) moved_.fetch_add(written, std::memory_order_relaxed);
  chunk = {};  // frees the copy that the lanes no longer share
  lock.lock();
  if (!status || last) end(active, std::move(status), lock);
  return written;
}

Result<std::unique_ptr<SnapshotWriter>> Snapshotter::begin(const SnapshotPlan& plan) const {
  if (!plan.checkpoint) return store_.begin(plan.info);
  Result<Folder> folder = ShardFileWriter::open(options_.roots, plan.checkpoint->directory, options_.shard);
  if (!folder) return tl::unexpected(folder.error());
  return ShardFileWriter::create(std::move(*folder), options_.shard, plan.info);
}

void Snapshotter::end(Active& active, Status status, std::unique_lock<std::mutex>& lock) {
  std::list<Active> ended;
  const auto position = std::find_if(active_.begin(), active_.end(), [&](const Active& a) { return &a == &active; });
  ended.splice(ended.begin(), active_, position);
  lock.unlock();
  Active& it = ended.front();  // no other thread uses it
  SnapshotDone report{it.plan.info.job, it.plan.view, it.plan.info.round, status.has_value(), 0, {}};
  std::string checksum;
  if (status) {
    report.bytes = it.writer->bytes();
    checksum = it.writer->checksum();
    // Many jobs write several in a second.
    const std::uint64_t now = steady_ns();
    if (!it.plan.paced || now >= next_told_ns_) {
      next_told_ns_ = now + kTellIntervalNs;
      log_("wrote the " + describe(it.plan.info) +
           printed(": %u chunks, %.1f MB in %.2f s", it.plan.info.chunks, static_cast<double>(report.bytes) * 1e-6,
                   static_cast<double>(steady_ns() - it.begun_ns) * 1e-9));
    }
  } else {
    report.message = status.error().message;
    report.code = status.error().code;
    if (!it.abandoned.empty()) log_("the " + describe(it.plan.info) + " was given up: " + report.message);
  }
  const std::optional<WriteCheckpoint> checkpoint = std::move(it.plan.checkpoint);
  ended.clear();  // before the report: a failed snapshot's files must be gone by then
  if (checkpoint) {
    part_done_(*checkpoint, {checkpoint->operation, report.ok, report.code, report.message, report.bytes, checksum});
  } else {
    done_(report);
  }
  lock.lock();
}

}  // namespace tributary
