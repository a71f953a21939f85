// JobPaces: progress and rate of the makers of a job's rounds: its shards or, for an all-reduce job, its nodes. Pure:
// heartbeats in, estimates out. Lives in the coordinator with its job.
//
// Progress is of one view. Rates outlive it: else a job that loses a peer every second would never have a snapshot.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "common/wire/messages.h"

namespace tributary {

class JobPaces {
 public:
  // Signs of life that a heartbeat gives of an awaited snapshot.
  enum class Sign { kHasJob, kWrites };

  // Begins another view: forgets progress, and keeps rates of those that have a part in it.
  void begin_view(const std::function<bool(std::uint32_t maker)>& stays);
  // start: where the view began.
  void note(std::uint32_t maker, Round start, const JobProgress& progress, std::uint64_t now_ms);

  bool empty() const { return paces_.empty(); }
  std::uint64_t fastest() const;  // version
  std::pair<Version, Version> range() const;
  Version min_version(std::uint32_t maker) const;
  std::map<std::uint32_t, std::pair<Version, Version>> versions() const;  // by maker
  // Are all beyond this round?
  bool all_beyond(Round round) const;
  // Has one of these shards given no such sign for `patience_ms`? Shards that have `done` their part need not.
  bool silent(const std::set<std::uint16_t>& shards, const std::set<std::uint16_t>& done, Sign sign,
              std::uint64_t patience_ms, std::uint64_t now_ms) const;
  // Returns a version that no maker passes within `ahead_ms` and the heartbeats' age, `factor` times over. None: some
  // pace is not known, or no round has been made.
  std::optional<double> reach(double ahead_ms, double factor, std::uint64_t now_ms) const;

 private:
  struct Pace {
    Version min_version, max_version;
    std::uint64_t at_ms = 0;
    std::uint64_t said_ms = 0;   // the last heartbeat that named the job, whatever it said
    std::uint64_t wrote_ms = 0;  // the last one that said that a snapshot is being written
    double rounds_per_ms = 0.0;
    bool measured = false;  // two heartbeats of a view have been compared, of this one or of one before
  };
  std::map<std::uint32_t, Pace> paces_;
};

}  // namespace tributary
