// Which round a running job's next snapshot is of. A job has one slot: one snapshot is under way at a time, and all who
// want one share it. Pure: coordinator_jobs.cc asks at every tick.
//
// A round is named when it is near, so that the slot is free for whoever needs another one first. One that turns out to
// be far (the job has become slower since) gives way.
#pragma once

#include <cstdint>
#include <optional>

namespace tributary {

struct SnapshotNeeds {
  std::uint64_t fastest = 0;  // version of the fastest shard, when last heard
  // The first round that shards hear of before they are there. None: not known yet, or nothing has been trained.
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

// The nearest round that somebody needs; none: nobody does, or it is too early to say which.
std::optional<NamedSnapshot> snapshot_to_name(const SnapshotNeeds& needs);

// Is a snapshot of `under_way` more than twice as far as `named`? Then no shard is near it: `named` is the first round
// that all of them can hear of in time, or later.
bool gives_way(std::uint64_t under_way, std::uint64_t named, std::uint64_t fastest);

}  // namespace tributary
