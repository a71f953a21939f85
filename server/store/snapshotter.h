// Snapshotter: the background thread that writes captured chunks to the store, so that no lane ever waits for a disk.
//
//   lanes --captured()--> slots of the snapshot under way --writer thread, in chunk order, within the budget--> Store
//
// Chunks may be captured in any order. They are written in ascending order as soon as the next one in order is there,
// and the references are dropped right after, so that the memory of copy-on-write shrinks while the snapshot is still
// being written.
//
// A snapshot goes into the store, or, where that is broken, straight into a checkpoint's file.
//
// Every expect() ends in exactly one call of the Done or PartDone callback: durable, or (ok = false) failed or abandoned with the
// reason. No buffer is held by then. A failure costs this snapshot, never the training: its written part is
// dropped and the older snapshots stay.
//
// Thread rule: expect(), captured() and abandon() from any thread; captured() takes a mutex for the time of a few
// moves, and only while a snapshot is under way. Callbacks run on the writer thread and must not call stop().
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/security/path_roots.h"
#include "common/wire/messages.h"
#include "server/shard/shard_core.h"
#include "server/store/store.h"

namespace tributary {

// A snapshot that lanes are about to capture.
struct SnapshotPlan {
  SnapshotInfo info;
  ViewId view;
  std::vector<ChunkIndex> chunks;  // all that this server owns, ascending; info.chunks of them
  bool paced = true;               // false: training is over (the last snapshot of a job), so the budget does not count
  std::optional<WriteCheckpoint> checkpoint;  // where it goes, if not into the store
};

// The orders to a Snapshotter, as its caller (ControlJobs) sees them.
class SnapshotOrders {
 public:
  virtual ~SnapshotOrders() = default;
  // Begins a snapshot; call it before the lanes capture. An earlier snapshot of the job that is not captured completely
  // can never become complete and is abandoned; one that is only being written still ends first.
  virtual void expect(SnapshotPlan plan) = 0;
  // Lifts the budget from a snapshot that is under way, because training is over.
  virtual void hurry(JobId job, Round round) = 0;
  // Abandons a snapshot that will not become complete, if it is under way. Waits for no disk: when it returns, of that
  // snapshot's buffers only that of the chunk that is being written is still held.
  virtual void abandon(JobId job, Round round, const std::string& reason) = 0;
};

class Snapshotter final : public SnapshotOrders {
 public:
  struct Options {
    std::uint64_t io_bytes_per_s = 200'000'000;  // budget of all snapshots together; 0: none
    ShardIndex shard;
    PathRoots roots{{}, false};  // below which checkpoints are written
  };
  using Done = std::function<void(const SnapshotDone&)>;
  using PartDone = std::function<void(const WriteCheckpoint&, const CheckpointDone&)>;  // of a part of a checkpoint
  using Log = std::function<void(const std::string&)>;

  // At most one snapshot in this time is logged while training continues.
  static constexpr std::uint64_t kTellIntervalNs = 10'000'000'000;

  // REQUIRES: store outlives this object.
  Snapshotter(Store& store, Options options, Done done, PartDone part_done, Log log);
  ~Snapshotter() override;  // stop()
  Snapshotter(const Snapshotter&) = delete;
  Snapshotter& operator=(const Snapshotter&) = delete;

  void expect(SnapshotPlan plan) override;
  void hurry(JobId job, Round round) override;
  // Takes a chunk of an expected snapshot. Drops a second copy, or a chunk that is not expected (any more).
  void captured(ChunkSnapshot chunk);
  void abandon(JobId job, Round round, const std::string& reason) override;
  // Abandons the snapshots that are under way and joins the thread. Idempotent.
  void stop();

  // Is a part of a checkpoint being written into this folder?
  bool writes_into(const std::string& directory) const;
  // Chunks captured and not yet written: what copy-on-write may hold in memory now.
  std::size_t waiting_chunks() const;
  // Any thread. Returns the bytes written so far. The number stands still during one long call of the disk (a sync of
  // all that a system holds in memory).
  std::uint64_t written() const { return written_.load(std::memory_order_relaxed); }
  std::uint64_t moved() const { return moved_.load(std::memory_order_relaxed); }  // of these, into checkpoints
  bool at_disk() const { return at_disk_.load(std::memory_order_relaxed); }

 private:
  struct Active {
    SnapshotPlan plan;
    std::vector<ChunkSnapshot> slots;  // by position in plan.chunks
    std::vector<char> present;         // captured, written or not
    std::size_t captured = 0;
    std::size_t next = 0;   // position to be written next
    std::string abandoned;  // reason; empty: goes on
    // The writer thread's own:
    std::unique_ptr<SnapshotWriter> writer;
    std::uint64_t begun_ns = 0;
  };

  void run();
  // First snapshot with something to do, or null. REQUIRES: mutex_ held.
  Active* runnable();
  // Writes the next chunk, or finishes; returns the bytes that went to the disk.
  std::uint64_t write_next(Active& active, std::unique_lock<std::mutex>& lock);
  Result<std::unique_ptr<SnapshotWriter>> begin(const SnapshotPlan& plan) const;
  // Removes and reports it.
  void end(Active& active, Status status, std::unique_lock<std::mutex>& lock);
  static void abandon_locked(Active& active, const std::string& reason, std::vector<ChunkSnapshot>& dropped);

  Store& store_;
  const Options options_;
  const Done done_;
  const PartDone part_done_;
  const Log log_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;  // the writer thread: there may be something to do
  std::list<Active> active_;      // in the order of expect(); addresses are stable while the thread works on one
  bool stopping_ = false;
  std::atomic<std::uint64_t> written_{0}, moved_{0};
  std::atomic<bool> at_disk_{false};
  std::uint64_t pause_until_ns_ = 0;  // the budget is spent until then; the writer thread's own
  std::uint64_t next_told_ns_ = 0;    // its thread's
  std::thread thread_;
};

}  // namespace tributary
