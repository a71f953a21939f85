// server/copies/copy_fetcher.h and copy_port.h without threads and sockets: parts of snapshots go from one simulated
// server's store to another's, a chunk at a time on the virtual clock.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "server/copies/snapshot_fetches.h"
#include "tests/sim/disk/disk_sim.h"
#include "tests/sim/wires.h"

namespace tributary::sim {

class FetchesSim final : public FetchOrders {
 public:
  // A server's store as others read it; null: it cannot be reached now.
  using Source = std::function<StoreSim*(ShardIndex server)>;
  using Post = std::function<void(std::function<void()>)>;  // what the control thread is to do
  FetchesSim(Process& owner, StoreSim& store, std::uint64_t chunk_ns, bool syncs, Source source, Post post)
      : owner_(owner),
        store_(store),
        chunk_ns_(chunk_ns),
        syncs_(syncs),
        source_(std::move(source)),
        post_(std::move(post)) {}

  void fetch(std::shared_ptr<Fetch> fetch, Done done) override;
  void hurry(const std::shared_ptr<Fetch>&) override {}
  void withdraw(const std::shared_ptr<Fetch>& fetch) override;
  std::uint64_t dealt() const override { return moved_; }  // chunks

 private:
  struct Order {
    std::shared_ptr<Fetch> fetch;
    Done done;
    std::map<ShardIndex, PinnedSnapshot> from = {};  // by whose part
    std::optional<StoreSim::Handle> into = {};
    ViewId view = {};
    std::size_t copied = 0;
    std::vector<std::pair<ShardIndex, std::size_t>> chunks = {};  // of which part, at which place
  };
  // Opens the snapshots that it is made of.
  Status begin(Order& order);
  void work_soon();
  void work();
  // The next chunk; true: it is over, with `status`.
  bool step(Order& order, Status& status);

  Process& owner_;
  StoreSim& store_;
  const std::uint64_t chunk_ns_;
  const bool syncs_;
  const Source source_;
  const Post post_;
  std::deque<Order> orders_;
  std::uint64_t moved_ = 0;
};

}  // namespace tributary::sim
