// The snapshots of a running job. A job has one slot: one snapshot is under way at a time, and all requests share it.
// Pure. Lives in the coordinator, for as long as the view runs.
//
// A round is named when it is near, so that the slot is free for more urgent requests. A snapshot that turns out to be
// far (the job has become slower since) gives way. Shards with much state are asked to get memory first.
#pragma once

#include <cstdint>
#include <optional>
#include <set>

#include "common/base/ids.h"
#include "common/config/config.h"
#include "server/coordinator/round/job_paces.h"

namespace tributary {

struct SnapshotNeeds {
  std::uint64_t fastest = 0;  // version of the fastest shard, when last heard
  // The first round whose name can reach all shards in time. None: not known yet, or nothing has been trained.
  std::optional<std::uint64_t> next;
  bool due = false;                // by the job's own schedule,
  std::uint64_t every_rounds = 0;  // at a multiple of this; 0: at any round
  bool awaited = false;            // a save, or a node that joins, waits for the next one
  bool redo = false;               // nodes that keep what they pushed since the last one have room for few more rounds
};

struct NamedSnapshot {
  std::uint64_t round = 0;
  const char* why = "";  // in words, after "for"
};

// Returns the nearest round that is needed; none: none is, or it is too early to name one.
std::optional<NamedSnapshot> snapshot_to_name(const SnapshotNeeds& needs);

// Returns whether a snapshot of `under_way` is more than twice as far as `named`. Then no shard is near it, as no shard
// can reach `named` before its name arrives.
bool gives_way(std::uint64_t under_way, std::uint64_t named, std::uint64_t fastest);

class SnapshotSchedule {
 public:
  // prepare_bytes: of memory that the largest shard needs for a snapshot and is asked to get first; 0: it need not.
  SnapshotSchedule(const SnapshotConfig& config, std::uint64_t prepare_bytes, std::uint64_t now_ms);

  // Requests besides the job's own schedule.
  struct Wishes {
    bool awaited = false;                    // a save, or a node that joins
    std::optional<std::uint64_t> redo_from;  // nodes that keep what they pushed, from this round on
  };
  struct Step {
    bool prepare = false;           // the shards are to be asked to get memory
    const char* named = nullptr;    // why under_way() was named now, and
    std::optional<Round> gave_way;  // which one that was under way gave way to it
  };
  // At every tick. start: where the view began; shards: that have a part of the job.
  Step step(const JobPaces& paces, Round start, const std::set<std::uint16_t>& shards, const Wishes& wishes,
            std::uint64_t now_ms);

  // A shard's word.
  void has_memory(std::uint16_t shard);
  // Its part of the snapshot under way is written.
  void wrote(std::uint16_t shard, std::uint64_t bytes);

  // There is one under way, and all have written it.
  bool written(const std::set<std::uint16_t>& shards) const;

  // The snapshot under way is committed; most that a shard wrote for it.
  std::uint64_t committed(std::uint64_t now_ms);
  // It cannot be had.
  void missed(std::uint64_t now_ms);
  // No sign that it is being written?
  bool overdue(const JobPaces& paces, const std::set<std::uint16_t>& shards, std::uint64_t now_ms) const;

  std::optional<Round> under_way() const;
  bool awaits_part_of(std::uint16_t shard) const;
  bool awaits_memory_of(std::uint16_t shard) const;

 private:
  struct UnderWay {
    Round round;
    std::uint64_t named_ms = 0;
    std::set<std::uint16_t> done;
    std::uint64_t bytes = 0;  // most that a shard wrote
  };
  struct Preparing {
    std::uint64_t since_ms = 0;
    std::set<std::uint16_t> done;
  };
  std::optional<std::uint64_t> next_due(std::uint64_t now_ms) const;
  std::optional<std::uint64_t> next_to_name(const JobPaces& paces, Round start, std::uint64_t now_ms) const;
  bool prepared(const std::set<std::uint16_t>& shards, std::uint64_t now_ms) const;

  SnapshotConfig config_;
  std::uint64_t prepare_bytes_;
  std::optional<std::uint64_t> due_ms_;  // by the job's own schedule; none: it has none
  std::uint64_t retry_ms_ = 0;           // none is named before, whatever is due
  std::uint64_t missed_ = 0;             // in a row; the next one is named further ahead
  std::optional<Preparing> preparing_;
  std::optional<UnderWay> under_way_;
  Round committed_;  // last: later than what heartbeats may say
};

// How long servers may be silent about a snapshot that they have to write.
inline constexpr std::uint64_t kWritingPatienceMs = 60'000;
inline constexpr const char* kNotInTime = "servers did not write it in time";

}  // namespace tributary
