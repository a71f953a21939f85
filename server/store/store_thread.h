// StoreThread: what a server's control thread has done with the store, on a thread of its own: the control thread hears
// the coordinator while gigabytes are read, or a disk takes its time to drop something. A server has one for snapshots,
// and one for copies of records, which wait for no load.
//
//   control thread --load(), run()--> orders, one after the other --> Store
//                  <--Done, as an event--
//
// Thread rule: orders from the control thread. EachChunk runs on the store's thread. Done is handed to Post, which has
// it called on the control thread.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "common/base/result.h"
#include "common/daemon/order_thread.h"
#include "server/store/store.h"

namespace tributary {

// Every order ends in exactly one call of Done, later than the call that gives it. Nothing is called once the server is
// being stopped.
class StoreOrders {
 public:
  using Done = std::function<void(const Status&)>;
  virtual ~StoreOrders() = default;
  // An error of `each` ends the load with that error.
  virtual void load(SnapshotInfo info, EachChunk each, Done done) = 0;
  // Any other work on the store.
  virtual void run(std::function<Status()> work, Done done) = 0;
};

class StoreThread final : public StoreOrders {
 public:
  static constexpr std::size_t kMaxOrders = 4096;  // that wait; more end with kLimit

  using Post = std::function<void(std::function<void()>)>;
  using Log = std::function<void(const std::string&)>;
  // name: the thread's. REQUIRES: store outlives this object.
  StoreThread(std::string name, Store& store, Post post, Log log);
  StoreThread(const StoreThread&) = delete;
  StoreThread& operator=(const StoreThread&) = delete;

  void load(SnapshotInfo info, EachChunk each, Done done) override;
  void run(std::function<Status()> work, Done done) override;
  // Ends a load after its chunk, and joins the thread. REQUIRES: the control thread has ended. Idempotent.
  void stop() { orders_.stop(); }

 private:
  Store& store_;
  const Post post_;
  OrderThread orders_;
};

}  // namespace tributary
