// server/store/store_thread.h without its thread: the same orders, one after the other, a chunk or a piece of work at a time on
// the virtual clock.
#pragma once

#include <deque>
#include <functional>
#include <utility>

#include "server/store/store_thread.h"
#include "tests/sim/disk/disk_sim.h"
#include "tests/sim/wires.h"

namespace tributary::sim {

class StoreOrdersSim final : public StoreOrders {
 public:
  struct Options {
    std::uint64_t chunk_ns = 1'000'000, drop_ns = 1'000'000;
  };
  using Post = std::function<void(std::function<void()>)>;  // what the control thread is to do
  using Failed = std::function<void()>;
  using Loads = std::function<Failed(JobId)>;  // a load is ordered; returns what is to be done if it fails
  StoreOrdersSim(Process& owner, StoreSim& store, Options options, Loads loads, Post post)
      : owner_(owner), store_(store), options_(options), loads_(std::move(loads)), post_(std::move(post)) {}

  void load(SnapshotInfo info, EachChunk each, Done done) override;
  // Written work is there when its turn is over, or was lost with the process before.
  void run(std::function<Status()> work, Done done) override;

 private:
  struct Order {
    std::function<void(Order&)> begin;  // when its turn comes: fills in the rest
    std::uint64_t step_ns;
    Done done;
    EachChunk each = {};
    std::deque<std::pair<ChunkIndex, ChunkState>> chunks = {};
    Status status = {};  // what it ends with, after those
  };
  void work_soon();
  void work();

  Process& owner_;
  StoreSim& store_;
  const Options options_;
  const Loads loads_;
  const Post post_;
  std::deque<Order> orders_;
};

}  // namespace tributary::sim
