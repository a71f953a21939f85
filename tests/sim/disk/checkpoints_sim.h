// server/store/checkpoint_service.h without its thread: the same orders, the same outcomes, a chunk at a time on the
// virtual clock, and files in a directory that all servers of the cluster share.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/wire/messages.h"
#include "tests/sim/disk/disk_sim.h"
#include "tests/sim/wires.h"

namespace tributary::sim {

// Outlives processes. Written bytes stay, however their writer ends.
struct CheckpointFiles {
  struct File {
    std::map<std::uint32_t, Disk::Piece> chunks;
    std::uint64_t bytes() const;
    std::string checksum() const;
  };
  struct Directory {
    std::map<std::string, File> files;
    std::string manifest;
    std::map<LargePart, std::vector<std::byte>> large_parts;
    bool complete = false;
    std::uint64_t rotates = 0;  // the later, the higher; 0: it does not
  };
  const Directory* whole(const std::string& path) const;  // null: there is no complete checkpoint
  File* file(const std::string& directory, const std::string& name);
  // Removes those that rotate in the folder of `path`, but for the newest.
  void rotate(const std::string& path, std::uint32_t keep);
  std::map<std::string, Directory> directories;
  std::uint64_t rotating = 0;                           // sealed so far
  std::function<void(const std::string& path)> sealed;  // called for a new one that rotates
};

class CheckpointsSim {
 public:
  using Done = std::function<void(const CheckpointDone&)>;
  CheckpointsSim(Process& owner, StoreSim& store, CheckpointFiles& files, ShardIndex shard, std::uint64_t step_ns,
                 Done done)
      : owner_(owner), store_(store), files_(files), shard_(shard), step_ns_(step_ns), done_(std::move(done)) {}

  void order(const WriteCheckpoint& order);
  void order(const SealCheckpoint& order);
  void order(const LoadCheckpoint& order);
  void drop(const DropCheckpoint& order);

 private:
  // Does a part of it. None: there is more to be done.
  using Step = std::function<std::optional<Status>(CheckpointDone&)>;
  struct Order {
    CheckpointDone done;  // operation 0: it is not reported
    Step step;
  };
  class Loading;
  void queue(std::uint64_t operation, Step step);
  void work();
  std::optional<Status> write_on(const WriteCheckpoint& order, const PinnedSnapshot& snapshot,
                                 CheckpointFiles::File& written, CheckpointDone& done);
  Status seal(const SealCheckpoint& order, CheckpointDone& done);
  // Parts of the job in the store.
  Result<std::vector<std::byte>> large_part(JobId job, const LargePart& large) const;

  Process& owner_;
  StoreSim& store_;
  CheckpointFiles& files_;
  const ShardIndex shard_;
  const std::uint64_t step_ns_;
  const Done done_;
  std::deque<Order> orders_;
};

}  // namespace tributary::sim
