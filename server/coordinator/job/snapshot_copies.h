// SnapshotCopies: which servers keep copies of the parts of a job's snapshots, and which copies are on their way
// (docs/copies.md). The next server on another machine keeps the copy of a server's part. Pure. A part of
// JobLedger.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "common/config/config.h"
#include "common/wire/messages.h"
#include "server/coordinator/orders/coordinator_context.h"

namespace tributary {

class SnapshotCopies {
 public:
  static constexpr std::uint64_t kRepeatMs = 10'000;  // an order that is not answered is sent again
  static constexpr std::uint64_t kRetryMs = 60'000;   // a copy that could not be had is ordered again

  // A job's snapshot: its round, and the servers that have a part.
  struct Snapshot {
    JobId job;
    ViewId view;
    Round round;
    std::set<std::uint16_t> shards;
  };

  // config: the job's, which may differ from view to view.
  explicit SnapshotCopies(CoordinatorContext& context) : context_(context) {}

  // Orders the copies that are missing of the parts that are there. paced: training goes on.
  void order(const SnapshotConfig& config, const Snapshot& snapshot, bool paced, std::uint64_t now_ms);
  // Orders the parts that servers have lost, where another one has a copy.
  void restore(const Snapshot& snapshot, std::uint64_t now_ms);
  // Has each part its copy, or can none be had?
  bool settled(const SnapshotConfig& config, const Snapshot& snapshot) const;
  // Is each part there, and its copy, if one is wanted and can be had?
  bool safe(const SnapshotConfig& config, const Snapshot& snapshot) const;
  // This round is committed: orders for older ones are void.
  void committed(Round round);
  // A part is on its server alone, where another one is to have a copy, too.
  bool lacks_copy(const SnapshotConfig& config, const Snapshot& snapshot, std::uint16_t shard) const {
    return holder_for(config, shard) && !there(snapshot, shard);
  }
  // The server that is to keep copies of this shard's parts; none: no copy is wanted, or nobody can.
  std::optional<std::uint16_t> holder_for(const SnapshotConfig& config, std::uint16_t shard) const;
  // A holder's answer. Returns whether it fails, and did not before.
  bool on(std::uint16_t holder, const SnapshotCopied& m, std::uint64_t now_ms);
  // On how many servers that are there each of its parts is, at least.
  std::uint32_t count(const Snapshot& snapshot) const;
  // Why parts have no copy; empty: they have, or none is wanted.
  std::string missing(const SnapshotConfig& config, const Snapshot& snapshot) const;

 private:
  struct Asked {
    std::uint16_t holder = 0;
    bool paced = true;
    std::uint64_t due_ms = 0;  // when it is sent again
    bool failed = false;       // it cannot be had
  };
  bool there(const Snapshot& snapshot, std::uint16_t shard) const;  // the copy
  // Is the part itself there, where others can read it?
  bool readable(const Snapshot& snapshot, std::uint16_t shard) const;
  void ask(const Snapshot& snapshot, std::uint16_t shard, std::uint16_t holder, std::uint16_t from, bool paced,
           std::uint64_t now_ms);
  const Asked* asked(const Snapshot& snapshot, std::uint16_t shard, std::uint16_t holder) const;

  CoordinatorContext& context_;
  std::map<std::pair<Round, std::uint16_t>, Asked> asked_;  // by shard
  // Holders that could not keep the newest copy of a shard's that they answered for, and why. They get orders, but nobody
  // waits.
  std::map<std::pair<std::uint16_t, std::uint16_t>, std::string> failing_;
};

}  // namespace tributary
