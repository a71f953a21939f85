// Judges the consequences of losses on disks: a job that cannot continue is refused, with a server and a round in the
// message, and never restarts from scratch silently.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/wire/messages.h"

namespace tributary::sim {

class LossesJudge {
 public:
  // A whole store; matters: it had something of the job.
  void store_lost(std::uint16_t shard, bool matters);
  void damaged(std::uint16_t shard, Round round) { hurts_.push_back({shard, round}); }
  // Only a committed snapshot needs its record: without a later one the job continues from an older snapshot.
  void record_lost(std::uint16_t shard, Round round, bool committed) {
    if (committed) hurts_.push_back({shard, round});
  }
  // The coordinator learns what a store has, and commits a round.
  void hears_stored(std::uint16_t shard, const std::vector<StoredJob>& stored) { heard_[shard] = stored; }
  void committed(Round round) { committed_ = round; }

  bool any() const { return !hurts_.empty() || !lost_.empty(); }
  // Returns a server that has reported snapshots of another job id. There is one job, whatever its id. None if two stores
  // were lost: with them the record may be lost that such a snapshot was committed, and its other parts.
  std::optional<std::uint16_t> has_another(JobId job) const;
  // Returns whether trainers may get this error: the job cannot continue after a loss, and the message names the place.
  // copied: a server has a copy of its record. has: a disk has all of that server's part of that round.
  using Has = std::function<bool(std::uint16_t shard, Round round)>;
  bool may_refuse(const Error& error, bool copied, const Has& has) const;

 private:
  struct Hurt {
    std::uint16_t shard = 0;
    Round round;
  };
  std::vector<Hurt> hurts_;          // of a snapshot
  std::vector<std::uint16_t> lost_;  // stores
  std::size_t stores_ = 0;           // that were lost, whatever they had
  std::map<std::uint16_t, std::vector<StoredJob>> heard_;
  Round committed_;
};

}  // namespace tributary::sim
