// CopyFetcher: reads parts of snapshots from other servers (chunk_reader.h) into this server's store. Two threads: one of
// low priority for copies beside training, within CopyPace and the store's budget, and one for what somebody waits for.
//
//   WantChunk ---> the other server's CopyPort ---> CopiedChunk, values ---checked---> SnapshotWriter
//
// Thread rule: fetch() and stop() from any thread. Done is handed to Post.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <zmq.hpp>

#include "common/daemon/order_thread.h"
#include "common/security/keys.h"
#include "server/copies/copy_pace.h"
#include "server/copies/snapshot_fetches.h"
#include "server/store/token_bucket.h"

namespace tributary {

class CopyFetcher final : public FetchOrders {
 public:
  static constexpr std::size_t kMaxOrders = 4096;  // that wait, of a thread; more end with kLimit
  static constexpr std::uint32_t kWindow = 2;      // chunks that are asked for at a time

  struct Options {
    std::shared_ptr<const KeyPair> own;          // null: there are no keys
    std::uint64_t io_bytes_per_s = 200'000'000;  // of copies beside training; 0: no limit
    std::function<std::uint64_t()> trained;      // bytes of training's messages so far; any thread
  };
  using Post = std::function<void(std::function<void()>)>;
  using Log = std::function<void(const std::string&)>;

  // REQUIRES: store outlives this object.
  CopyFetcher(Store& store, Options options, Post post, Log log);
  CopyFetcher(const CopyFetcher&) = delete;
  CopyFetcher& operator=(const CopyFetcher&) = delete;

  void fetch(std::shared_ptr<Fetch> fetch, Done done) override;
  void hurry(const std::shared_ptr<Fetch>& fetch) override;
  // Gives up what is under way and joins the threads. REQUIRES: the control thread has ended. Idempotent.
  void stop();
  void withdraw(const std::shared_ptr<Fetch>& fetch) override;
  std::uint64_t moved() const { return moved_.load(std::memory_order_relaxed); }  // bytes so far, of all
  std::uint64_t dealt() const override { return dealt_.load(std::memory_order_relaxed); }

 private:
  void order(OrderThread& thread, const std::shared_ptr<Fetch>& fetch);
  void end(const std::shared_ptr<Fetch>& fetch, const Status& status);
  Status read(Fetch& fetch, OrderThread& thread);
  using Take = std::function<Status(const CopiedChunk& head, StoredChunk chunk)>;
  Status take_here(const DealChunks& deal, ShardIndex shard, std::uint32_t place,
                   std::map<ShardIndex, PinnedSnapshot>& here, const Take& take);
  Status deal(Fetch& fetch, OrderThread& thread);
  Status take_along(Fetch& fetch, OrderThread& thread);
  Status wait_for_turn(const Fetch& fetch, OrderThread& thread);
  void took(const Fetch& fetch, std::uint64_t bytes);

  Store& store_;
  const Options options_;
  const Post post_;
  const Log log_;
  zmq::context_t context_;
  std::atomic<std::uint64_t> moved_{0}, dealt_{0};
  std::mutex mutex_;
  std::map<std::shared_ptr<Fetch>, Done> waits_;  // all that have not ended
  // The thread's of copies beside training.
  CopyPace pace_;
  TokenBucket disk_;
  std::uint64_t disk_free_ns_ = 0;
  OrderThread beside_, awaited_;
};

}  // namespace tributary
