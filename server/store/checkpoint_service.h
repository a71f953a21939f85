// CheckpointService: what a server does with the files of checkpoints, on a thread of its own with low priority, so
// that neither a lane nor the control thread ever waits for that disk.
//
//   write: a committed snapshot becomes the shard's file, within the store's budget. Training and snapshots go on.
//   seal:  (server 0) when all shards' files are there: large parts, manifest, COMPLETE, the final name.
//   load:  the chunks of a checkpoint that this server is to own become a complete snapshot of a job in this store; on
//          server 0 also large parts. Each file is read whole by one of the servers that load.
//   drop:  what nobody needs any more.
//
// Orders are carried out one after the other. Every one ends in exactly one call of Done, on this thread or the caller's;
// that of drop() has no number, and is unchanged if it dropped no job's state.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

#include "common/base/result.h"
#include "common/daemon/order_thread.h"
#include "common/files/checkpoint_manifest.h"
#include "common/security/path_roots.h"
#include "common/wire/messages.h"
#include "server/store/store.h"
#include "server/store/token_bucket.h"

namespace tributary {

class CheckpointService {
 public:
  static constexpr std::size_t kMaxOrders = 32;  // that wait; more are refused

  struct Options {
    ShardIndex shard;
    std::uint64_t io_bytes_per_s = 200'000'000;  // of write(); 0: no limit
    PathRoots roots{{}, false};                  // below which all of it happens
    // Is a part of a checkpoint being written into this folder elsewhere? Then drop() leaves it. Any thread.
    std::function<bool(const std::string& directory)> in_use = [](const std::string&) { return false; };
  };
  using Done = std::function<void(const CheckpointDone&)>;
  using Log = std::function<void(const std::string&)>;

  // REQUIRES: store outlives this object.
  CheckpointService(Store& store, Options options, Done done, Log log);
  CheckpointService(const CheckpointService&) = delete;
  CheckpointService& operator=(const CheckpointService&) = delete;

  // Any thread. The snapshot is held from here on, whatever is committed or dropped before its turn comes.
  void write(const WriteCheckpoint& order);
  void seal(const SealCheckpoint& order);
  void load(const LoadCheckpoint& order);
  void drop(const DropCheckpoint& order);
  // Bytes that were read or written for orders so far. Any thread.
  std::uint64_t moved() const { return moved_.load(std::memory_order_relaxed); }
  // Gives up what is under way (ok = false) and joins the thread. Idempotent.
  void stop() { orders_.stop(); }

 private:
  // Fills in the answer, or says why not.
  using Order = std::function<Status(CheckpointDone&)>;
  void queue(std::uint64_t operation, Order order);
  Status write_shard(const WriteCheckpoint& order, const PinnedSnapshot& snapshot, CheckpointDone& done);
  bool link_unchanged(const WriteCheckpoint& order, const PinnedSnapshot& snapshot, const std::string& file,
                      CheckpointDone& done);
  Status seal_parts(const SealCheckpoint& order, CheckpointDone& done);
  Status write_part(const SealCheckpoint& order, const std::string& folder, const std::string& sealed,
                    const LargePart& large);
  void drop_file(const std::string& directory);
  Status load_shard(const LoadCheckpoint& order, CheckpointDone& done);
  Status load_from(const std::string& folder, const LoadCheckpoint& order, const std::string& me, CheckpointDone& done);
  Status load_parts(const std::string& folder, const LoadCheckpoint& order, const Manifest& manifest,
                    CheckpointDone& done);
  Status pace(std::uint64_t bytes);

  Store& store_;
  const Options options_;
  const Done done_;
  const Log log_;
  TokenBucket bucket_;  // the thread's own
  std::atomic<std::uint64_t> moved_{0};
  OrderThread orders_;
};

}  // namespace tributary
