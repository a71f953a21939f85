// What ClusterJudge asks of redo logs on the servers' disks: how far they reach, and that servers say so.
#include <algorithm>

#include "tests/sim/cluster_judge.h"
#include "tests/sim/disk_sim.h"

namespace tributary::sim {

// What can be had of a log by a server that begins at this snapshot.
std::uint64_t ClusterJudge::reach(const LoggedRounds& log, Round snapshot) const {
  return log.first <= snapshot.next() ? std::max(log.last, snapshot).value : snapshot.value;
}

// The same of what is on a disk: up to the first record that is not whole, the newest of each version, and none of
// those that had been written of later ones. Of what is left every chunk's newest run counts (server/redo_index.h).
std::uint64_t ClusterJudge::reach_on_disk(std::uint16_t shard, JobId job, Round snapshot) const {
  const auto log = disks_[shard].logs.find(job);
  if (log == disks_[shard].logs.end()) return snapshot.value;
  std::map<ChunkIndex, std::set<std::uint64_t>> versions;
  for (const Disk::LogRecord& record : log->second.records) {
    if (record.lost || record.torn) break;
    for (auto& [chunk, of] : versions) {
      if (record.cut) of.erase(of.upper_bound(record.cut->value), of.end());
    }
    if (record.cut) continue;
    std::set<std::uint64_t>& of = versions[record.step.chunk];
    of.erase(of.lower_bound(record.step.version.value), of.end());
    of.insert(record.step.version.value);
  }
  if (versions.empty() || versions.size() != log->second.chunks) return snapshot.value;
  LoggedRounds all{Round(0), Round(~0ull)};
  for (const auto& [chunk, of] : versions) {
    if (of.empty()) return snapshot.value;
    std::uint64_t first = *of.rbegin();
    while (of.contains(first - 1)) --first;
    all.first = std::max(all.first, Round(first));
    all.last = std::min(all.last, Round(*of.rbegin()));
  }
  return reach(all, snapshot);
}

// The round that every shard can be had at: those that have lived through the loss in memory, the others at the end of
// what their logs have on the disk. Who is more than a round ahead of that needs its log as well.
std::uint64_t ClusterJudge::logged_floor(const OpenJob& open) const {
  std::map<std::uint16_t, std::pair<std::uint64_t, std::uint64_t>> shards;  // versions in memory
  for (std::uint32_t c = 0; c < open.owners.size(); ++c) {
    auto& [least, most] = shards.try_emplace(open.owners[c].shard.value, ~0ull, 0).first->second;
    least = std::min(least, reached_[c]);
    most = std::max(most, reached_[c]);
  }
  std::set<std::uint16_t> lives = in_memory_;
  const Round snapshot = std::max(committed_, open.resume_round);
  while (true) {
    std::uint64_t start = ~0ull;
    for (const auto& [shard, versions] : shards) {
      const bool lost = !lives.contains(shard);
      if (lost && !any_commit_) return 0;
      // It may have been told before the last of it was written.
      const auto heard = logs_heard_.find(shard);
      const std::uint64_t told = heard == logs_heard_.end() ? snapshot.value : reach(heard->second, snapshot);
      start = std::min(start, lost ? std::min(told, reach_on_disk(shard, open.job, snapshot)) : versions.first);
    }
    const std::size_t ahead = std::erase_if(lives, [&](std::uint16_t shard) {
      const auto versions = shards.find(shard);
      return versions != shards.end() && versions->second.second > start + 1;
    });
    if (ahead == 0) return start;
  }
}

// A job that waits for its logs has no steps in memory that are neither on the disk nor on their way there, and on
// their way are at most as many as there are blocks for: of a lane's chunks all, or four.
void ClusterJudge::check_lost_log(std::uint16_t shard) const {
  constexpr std::uint64_t kOnTheirWay = 4;
  if (scenario_.when_full != "wait" || !newest_ || !newest_->welcomed || !in_memory_.contains(shard)) return;
  std::uint64_t least = ~0ull;
  for (std::uint32_t c = 0; c < newest_->open.owners.size(); ++c) {
    if (newest_->open.owners[c].shard.value == shard) least = std::min(least, reached_[c]);
  }
  if (least == ~0ull) return;
  const Round snapshot = std::max(committed_, newest_->open.resume_round);
  const std::uint64_t there = reach_on_disk(shard, newest_->open.job, snapshot);
  if (there + kOnTheirWay >= least) return;
  broken_(in_words("server", shard) + " had " + in_words("round", least) + " in memory and no more than " +
          in_words("round", there) + " in its log, although its job waits for that");
}

void ClusterJudge::replayed(const ShardCore& core, const LoggedStep& step) {
  View* of = view(core.job().job, core.job().view);
  if (!of || !of->sync) return broken_("a view takes logged steps again that has none");
  if (!same_bits(core.params(step.chunk), of->sync->master(step.chunk, step.version.value))) {
    broken_(in_words("chunk", step.chunk.value) + " at " + in_words("version", step.version.value) +
            " has other bits when it is taken out of the log again");
  }
}

void ClusterJudge::tells_log(std::uint16_t shard, JobId job, const LoggedRounds& log, bool idle) const {
  // One that every server has, even if that was never said to be committed, is what a view began at.
  const Round snapshot = newest_ ? std::max(committed_, newest_->open.resume_round) : committed_;
  const std::uint64_t there = reach_on_disk(shard, job, snapshot);
  if (!idle || reach(log, snapshot) == there) return;
  broken_(in_words("server", shard) + " says that its log has rounds " + std::to_string(log.first.value) + " to " +
          std::to_string(log.last.value) + ", but after the snapshot of " + in_words("round", snapshot.value) +
          " it has them up to " + std::to_string(there));
}

void ClusterJudge::tells_kept(std::uint16_t shard, const ShardKept& kept, bool written) const {
  const View* of = newest_ && newest_->open.job == kept.job ? newest_ : nullptr;
  if (!of || !kept.any || !written || !scenario_.logs()) return;
  if (reach(kept.log, of->open.resume_round) < kept.min_version.value) {
    broken_(in_words("server", shard) + " has " + in_words("round", kept.min_version.value) +
            " in memory and says that its log has rounds " + std::to_string(kept.log.first.value) + " to " +
            std::to_string(kept.log.last.value));
  }
}

}  // namespace tributary::sim
