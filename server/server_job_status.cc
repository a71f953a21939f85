#include "server/server_job_status.h"

#include <algorithm>

namespace tributary {

Version ServerJobStatus::min_version() const {
  Version result{~0ull};
  for (const auto& lane : gauges) result = std::min(result, Version(lane->min_version.load(std::memory_order_relaxed)));
  return gauges.empty() ? Version(0) : result;
}

Version ServerJobStatus::max_version() const {
  Version result{0};
  for (const auto& lane : gauges) result = std::max(result, Version(lane->max_version.load(std::memory_order_relaxed)));
  return result;
}

std::uint64_t ServerJobStatus::pool_bytes() const {
  std::uint64_t result = 0;
  for (const auto& lane : gauges) result += lane->pool_bytes.load(std::memory_order_relaxed);
  return result;
}

bool ServerJobStatus::prepared() const {
  return std::ranges::all_of(gauges, [](const auto& lane) { return lane->prepared.load(std::memory_order_relaxed); });
}

std::uint64_t ServerJobStatus::withheld() const {
  std::uint64_t result = 0;
  for (const auto& lane : gauges) result += lane->withheld.load(std::memory_order_relaxed);
  return result;
}

std::vector<std::pair<Round, Round>> ServerJobStatus::clocks() const {
  std::vector<std::pair<Round, Round>> result;
  for (const auto& lane : gauges) {
    if (result.empty()) result.resize(lane->clocks.size(), {Round(~0ull), Round(0)});
    for (std::size_t node = 0; node < result.size(); ++node) {
      auto& [last, furthest] = result[node];
      last = std::min(last, Round(lane->clocks[node].last.load(std::memory_order_relaxed)));
      furthest = std::max(furthest, Round(lane->clocks[node].furthest.load(std::memory_order_relaxed)));
    }
  }
  return result;
}

MemoryTerms ServerJobStatus::memory_terms() const {
  ShardMemory shard = memory;
  if (!resumed) shard.arrays.residuals = 0;
  for (const auto& lane : gauges) {
    shard.max_held_bytes += lane->max_held_bytes.load(std::memory_order_relaxed);
  }
  const MemoryTerms steady = memory_formula(shard);
  if (!snapshot_pending && !snapshot_durable) return steady;
  // Blocks beyond the steady state are those that copy-on-write keeps for a snapshot, or has ready for the next one.
  const std::uint64_t pool = pool_bytes();
  shard.snapshot_bytes = pool > steady.blocks() ? pool - steady.blocks() : 0;
  return memory_formula(shard);
}

}  // namespace tributary
