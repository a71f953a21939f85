#include "server/coordinator/job/snapshot_copies.h"

#include <algorithm>
#include <optional>
#include <vector>

namespace tributary {

// The servers of one machine have their holders on different servers of the others.
std::optional<std::uint16_t> SnapshotCopies::holder_for(const SnapshotConfig& config, std::uint16_t shard) const {
  const Peers& peers = context_.peers;
  const auto owner = peers.servers().find(shard);
  if (config.copies == 1 || owner == peers.servers().end()) return std::nullopt;
  const auto same_machine = [&](const Peers::Server& server) { return server.hello.host == owner->second.hello.host; };
  const bool some_stay = std::ranges::any_of(peers.those_that_stay(), [&](std::uint16_t s) { return s != shard; });
  std::vector<std::uint16_t> elsewhere, beside;  // from the owner on
  std::size_t before = 0;                        // on the owner's machine
  for (std::uint16_t ahead = 1; ahead < context_.options.servers; ++ahead) {
    const auto index = static_cast<std::uint16_t>((shard + ahead) % context_.options.servers);
    const Peers::Server* server = peers.alive(index);
    if (!server || server->hello.copy_endpoint.empty() || (some_stay && server->leaves)) continue;
    (same_machine(*server) ? beside : elsewhere).push_back(index);
    if (same_machine(*server) && index < shard) ++before;
  }
  if (!elsewhere.empty()) return elsewhere[before % elsewhere.size()];
  return config.copies == 0 || beside.empty() ? std::nullopt : std::optional(beside.front());
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

void SnapshotCopies::ask(const Snapshot& snapshot, std::uint16_t shard, std::uint16_t holder, std::uint16_t from,
                         bool paced, std::uint64_t now_ms) {
  const Asked* before = asked(snapshot, shard, holder);
  const bool hurries = before && before->paced && !paced && !before->failed;
  if (before && now_ms < before->due_ms && !hurries) return;
  asked_[{snapshot.round, shard}] = {holder, paced, now_ms + kRepeatMs, false};
  context_.output.send(
      context_.peers.alive(holder)->peer,
      CopySnapshot{snapshot.job, snapshot.round, ShardIndex(shard), context_.peers.entry(from), snapshot.view, paced});
}

void SnapshotCopies::order(const SnapshotConfig& config, const Snapshot& snapshot, bool paced, std::uint64_t now_ms) {
  for (const std::uint16_t shard : snapshot.shards) {
    const auto holder = holder_for(config, shard);
    if (!holder || !readable(snapshot, shard) || there(snapshot, shard)) continue;
    ask(snapshot, shard, *holder, shard, paced, now_ms);
  }
}

void SnapshotCopies::restore(const Snapshot& snapshot, std::uint64_t now_ms) {
  for (const std::uint16_t shard : snapshot.shards) {
    const Peers::Server* owner = context_.peers.alive(shard);
    const ShardIndex copy = context_.peers.holder_of_copy(shard, snapshot.job, snapshot.round);
    const bool can = owner && !owner->hello.copy_endpoint.empty() && copy != kNoShard;
    if (can && !readable(snapshot, shard)) ask(snapshot, shard, shard, copy.value, true, now_ms);
  }
}

bool SnapshotCopies::settled(const SnapshotConfig& config, const Snapshot& snapshot) const {
  return std::ranges::all_of(snapshot.shards, [&](std::uint16_t shard) {
    const auto holder = holder_for(config, shard);
    if (!holder || !readable(snapshot, shard) || there(snapshot, shard)) return true;
    return asked(snapshot, shard, *holder) && failing_.contains({*holder, shard});
  });
}

bool SnapshotCopies::safe(const SnapshotConfig& config, const Snapshot& snapshot) const {
  return std::ranges::all_of(snapshot.shards, [&](std::uint16_t shard) {
    const bool has =
        context_.peers.alive(shard) && context_.peers.snapshots(shard, snapshot.job).contains(snapshot.round);
    const auto holder = holder_for(config, shard);
    return has && (there(snapshot, shard) || !holder || failing_.contains({*holder, shard}));
  });
}

void SnapshotCopies::committed(Round round) {
  asked_.erase(asked_.begin(), asked_.lower_bound({round, 0}));
}

bool SnapshotCopies::on(std::uint16_t holder, const SnapshotCopied& m, std::uint64_t now_ms) {
  const std::uint16_t shard = m.shard.value;
  if (m.ok) failing_.erase({holder, shard});
  const auto found = asked_.find({m.round, shard});
  if (found == asked_.end() || found->second.holder != holder) return false;
  if (m.ok || m.code == ErrorCode::kStopped) {  // it gave way to an order for a newer round: nothing is wrong
    asked_.erase(found);
    return false;
  }
  found->second.failed = true;
  found->second.due_ms = now_ms + kRetryMs;
  if (m.unreadable) return false;  // no fault of the holder's
  return failing_
      .insert_or_assign({holder, shard}, "server " + std::to_string(holder) + " cannot keep a copy of server " +
                                             std::to_string(shard) + "'s part of round " +
                                             std::to_string(m.round.value) + ": " + m.message)
      .second;
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
  const auto say = [&](const std::string& what) { why += (why.empty() ? "" : "; ") + what; };
  for (const std::uint16_t shard : snapshot.shards) {
    const auto holder = holder_for(config, shard);
    const bool wanted = holder || config.copies == 2, copy = there(snapshot, shard);
    if (!wanted || (copy && readable(snapshot, shard))) continue;
    const auto failing = holder ? failing_.find({*holder, shard}) : failing_.end();
    const std::string part =
        "server " + std::to_string(shard) + "'s part of round " + std::to_string(snapshot.round.value);
    if (failing != failing_.end()) {
      say(failing->second);
    } else if (copy) {
      say(part + " is on the disk of its copy alone");
    } else if (holder) {
      say(part + " is on its disk alone, until server " + std::to_string(*holder) + " has a copy");
    } else {
      say(part + " is on its disk alone: no other server has a store");
    }
  }
  return why;
}

}  // namespace tributary
