// SnapshotLoads: reads this server's parts of snapshots into the lanes, for views that begin with them: from the store,
// or, where that lacks the part or has a damaged one, from another server's copy, by way of the store (docs/copies.md).
// Pure. A part of ControlJobs.
//
// Thread rule: one thread. The store's thread gives chunks to the lanes.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "common/config/job_plan.h"
#include "common/daemon/log.h"
#include "common/wire/messages.h"
#include "server/copies/snapshot_fetches.h"
#include "server/lane/lane_commands.h"
#include "server/store/store_thread.h"
#include "server/stored_rounds.h"

namespace tributary {

// A snapshot that the store's thread reads into the lanes. Read and written by both threads: the atomics alone.
struct SnapshotLoad {
  SnapshotLoad(std::shared_ptr<const ViewPlan> asked, std::uint64_t now_ms)
      : view(std::move(asked)), at(view->view), began_ms(now_ms) {}
  // Returns whether a load for this other view would give the lanes the same.
  bool serves(const ViewPlan& other) const;

  const std::shared_ptr<const ViewPlan> view;  // that asked for it
  ViewId at;                                   // under which the lanes have it
  const std::uint64_t began_ms;
  bool there = false;                   // all of it
  bool began = false;                   // a view has begun with it
  std::atomic<std::uint64_t> bytes{0};  // of it
  std::atomic<bool> wanted{true};
  std::vector<bool> given;  // by chunk: a lane has it. The store's thread's, while that reads
};

class SnapshotLoads {
 public:
  using Load = std::shared_ptr<SnapshotLoad>;
  // The lanes have all of it, or it cannot be had.
  using Ended = std::function<void(const Load&, const Status&)>;

  SnapshotLoads(const StoredRounds& stored, SnapshotFetches& fetches, ShardIndex own, Logger logger, Ended ended);
  void start(std::vector<LaneCommands*> lanes, StoreOrders* orders);  // orders: null without a store

  // Every load ends in exactly one call of Ended, later than this one. copy: where a copy of this server's part can be
  // read, if anywhere. REQUIRES: a store, `snapshot` is the one that load->view begins with, and a lane has a part of it.
  void begin(const Load& load, const SnapshotInfo& snapshot, const ServerEntry& copy);

 private:
  void fill(const Load& load, const SnapshotInfo& snapshot, const ServerEntry& copy);
  EachChunk into_lanes(const Load& load) const;

  const StoredRounds& stored_;
  SnapshotFetches& fetches_;
  const ShardIndex own_;
  Logger logger_;
  const Ended ended_;
  std::vector<LaneCommands*> lanes_;
  StoreOrders* orders_ = nullptr;
};

}  // namespace tributary
