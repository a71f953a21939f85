#include "server/coordinator/job/snapshot_copies.h"

#include <algorithm>
#include <optional>

namespace tributary {

std::optional<std::uint16_t> SnapshotCopies::holder_for(const SnapshotConfig& config, std::uint16_t shard) const {
  const Peers& peers = context_.peers;
  const auto owner = peers.servers().find(shard);
  if (config.copies == 1 || owner == peers.servers().end()) return std::nullopt;
  std::optional<std::uint16_t> beside;  // on the same machine
  for (std::uint16_t ahead = 1; ahead < context_.options.servers; ++ahead) {
    const auto index = static_cast<std::uint16_t>((shard + ahead) % context_.options.servers);
    const Peers::Server* server = peers.alive(index);
    if (!server || server->hello.copy_endpoint.empty()) continue;
    if (server->hello.host != owner->second.hello.host) return index;
    if (!beside) beside = index;
  }
  return config.copies == 0 ? std::nullopt : beside;
}

bool SnapshotCopies::there(const Snapshot& snapshot, std::uint16_t shard) const {
  return context_.peers.holder_of_copy(shard, snapshot.job, snapshot.round) != kNoShard;
}

bool SnapshotCopies::readable(const Snapshot& snapshot, std::uint16_t shard) const {
  const Peers::Server* owner = context_.peers.alive(shard);
  return owner && !owner->hello.copy_endpoint.empty() &&
         context_.peers.snapshots(shard, snapshot.job).contains(snapshot.round);
}

const SnapshotCopies::Asked* SnapshotCopies::asked(const Snapshot& snapshot, std::uint16_t shard,
                                                   std::uint16_t holder) const {
  const auto found = asked_.find({snapshot.round, shard});
  return found == asked_.end() || found->second.holder != holder ? nullptr : &found->second;
}

void SnapshotCopies::order(const SnapshotConfig& config, const Snapshot& snapshot, bool paced, std::uint64_t now_ms) {
  for (const std::uint16_t shard : snapshot.shards) {
    const auto holder = holder_for(config, shard);
    if (!holder || !readable(snapshot, shard) || there(snapshot, shard)) continue;
    const Asked* before = asked(snapshot, shard, *holder);
    const bool hurries = before && before->paced && !paced && !before->failed;
    if (before && now_ms < before->due_ms && !hurries) continue;
    asked_[{snapshot.round, shard}] = {*holder, paced, now_ms + kRepeatMs, false};
    context_.output.send(context_.peers.alive(*holder)->peer,
                         CopySnapshot{snapshot.job, snapshot.round, ShardIndex(shard), context_.peers.entry(shard),
                                      snapshot.view, paced});
  }
}

bool SnapshotCopies::settled(const SnapshotConfig& config, const Snapshot& snapshot) const {
  return std::ranges::all_of(snapshot.shards, [&](std::uint16_t shard) {
    const auto holder = holder_for(config, shard);
    if (!holder || !readable(snapshot, shard) || there(snapshot, shard)) return true;
    return asked(snapshot, shard, *holder) && failing_.contains(*holder);
  });
}

void SnapshotCopies::committed(Round round) {
  asked_.erase(asked_.begin(), asked_.lower_bound({round, 0}));
}

void SnapshotCopies::on(std::uint16_t holder, const SnapshotCopied& m, std::uint64_t now_ms) {
  const auto found = asked_.find({m.round, m.shard.value});
  if (found == asked_.end() || found->second.holder != holder) return;
  if (m.ok) {
    asked_.erase(found);
    failing_.erase(holder);
    return;
  }
  found->second.failed = true;
  found->second.due_ms = now_ms + kRetryMs;
  failing_[holder] = "server " + std::to_string(holder) + " cannot keep a copy of server " +
                     std::to_string(m.shard.value) + "'s part of round " + std::to_string(m.round.value) + ": " +
                     m.message;
}

std::uint32_t SnapshotCopies::count(const Snapshot& snapshot) const {
  std::uint32_t least = ~0u;
  for (const std::uint16_t shard : snapshot.shards) {
    std::uint32_t on = readable(snapshot, shard) ? 1 : 0;
    for (const auto& [index, server] : context_.peers.servers()) {
      on += context_.peers.has_copy(index, ShardIndex(shard), snapshot.job, snapshot.round) ? 1 : 0;
    }
    least = std::min(least, on);
  }
  return snapshot.shards.empty() ? 0 : least;
}

std::string SnapshotCopies::missing(const SnapshotConfig& config, const Snapshot& snapshot) const {
  std::string why;
  for (const std::uint16_t shard : snapshot.shards) {
    const auto holder = holder_for(config, shard);
    const bool wanted = holder || config.copies == 2;
    if (!wanted || there(snapshot, shard)) continue;
    const auto failing = holder ? failing_.find(*holder) : failing_.end();
    if (!why.empty()) why += "; ";
    if (failing != failing_.end()) {
      why += failing->second;
    } else {
      why += "server " + std::to_string(shard) + "'s part of round " + std::to_string(snapshot.round.value) +
             " is on its disk alone" +
             (holder ? ", until server " + std::to_string(*holder) + " has a copy" : ": no other server has a store");
    }
  }
  return why;
}

}  // namespace tributary
