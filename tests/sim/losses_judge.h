// What disks have lost, and what follows from it: a job that cannot go on without it is refused, naming a server and a
// round, and never begins anew in silence.
#pragma once

#include <cstdint>
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
  // Of a snapshot that was not committed a record need not be there: the job goes on from an older one.
  void record_lost(std::uint16_t shard, Round round, bool committed) {
    if (committed) hurts_.push_back({shard, round});
  }
  // What the coordinator hears of stores, and says.
  void hears_stored(std::uint16_t shard, const std::vector<StoredJob>& stored) { heard_[shard] = stored; }
  void committed(Round round) { committed_ = round; }

  bool any() const { return !hurts_.empty() || !lost_.empty(); }
  // A server that has said that it has snapshots of another job than this one. There is one job, whatever its id.
  std::optional<std::uint16_t> has_another(JobId job) const;
  // May trainers be told this? Then something is lost that the job cannot go on without, and the message says where.
  bool may_refuse(const Error& error) const;

 private:
  struct Hurt {
    std::uint16_t shard = 0;
    Round round;
  };
  std::vector<Hurt> hurts_;          // of a snapshot
  std::vector<std::uint16_t> lost_;  // stores
  std::map<std::uint16_t, std::vector<StoredJob>> heard_;
  Round committed_;
};

}  // namespace tributary::sim
