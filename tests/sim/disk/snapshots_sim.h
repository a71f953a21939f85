// server/store/snapshotter.h without its thread: the same orders, the same outcomes, a step at a time on the virtual
// clock.
#pragma once

#include <functional>
#include <list>
#include <optional>
#include <string>
#include <vector>

#include "server/store/snapshotter.h"
#include "tests/sim/disk/checkpoints_sim.h"
#include "tests/sim/disk/disk_sim.h"
#include "tests/sim/wires.h"

namespace tributary::sim {

class SnapshotsSim final : public SnapshotOrders {
 public:
  struct Options {
    ShardIndex shard;
    std::uint64_t step_ns = 1'000'000;  // for a chunk, a sync, a record
    bool syncs = true;                  // false plants a bug: files are not synced before the record
  };
  using Done = std::function<void(const SnapshotDone&)>;
  using Written = std::function<void(const WriteCheckpoint&, const CheckpointDone&)>;
  using Read = std::function<void(const ChunkSnapshot&)>;  // a chunk is about to be written
  SnapshotsSim(Process& owner, StoreSim& store, CheckpointFiles& files, Options options, Read read, Done done,
               Written written)
      : owner_(owner),
        store_(store),
        files_(files),
        options_(options),
        read_(std::move(read)),
        done_(std::move(done)),
        written_(std::move(written)) {}

  void expect(SnapshotPlan plan) override;
  void hurry(JobId, Round) override {}  // nothing keeps a pace here
  void abandon(JobId job, Round round, const std::string& reason) override;
  void captured(ChunkSnapshot chunk);

 private:
  struct Active {
    SnapshotPlan plan;
    std::vector<ChunkSnapshot> slots;
    std::vector<char> present;
    std::size_t captured = 0, next = 0;
    std::string abandoned;
    std::optional<StoreSim::Handle> handle;
    bool synced = false;
    CheckpointFiles::File file;  // of a checkpoint, if it goes there
  };
  static void drop(Active& active, const std::string& reason);
  void work_soon();
  void work();
  bool step(Active& active);  // true: it is over
  bool step_to_checkpoint(Active& active, const WriteCheckpoint& order);

  Process& owner_;
  StoreSim& store_;
  CheckpointFiles& files_;
  const Options options_;
  const Read read_;
  const Done done_;
  const Written written_;
  std::list<Active> active_;
  bool due_ = false;
};

}  // namespace tributary::sim
