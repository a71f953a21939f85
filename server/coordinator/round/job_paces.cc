#include "server/coordinator/round/job_paces.h"

#include <algorithm>

namespace tributary {
namespace {

constexpr std::uint64_t kMinPaceMs = 200;  // between the two heartbeats that a pace is taken from

}  // namespace

void JobPaces::begin_view(const std::function<bool(std::uint32_t maker)>& stays) {
  std::erase_if(paces_, [&](const auto& entry) { return !stays(entry.first); });
  for (auto& [maker, pace] : paces_) pace = {.rounds_per_ms = pace.rounds_per_ms, .measured = pace.measured};
}

// Rounds that nodes push again are as fast as the network, and give no rate for rounds after `start`.
void JobPaces::note(std::uint32_t maker, Round start, const JobProgress& progress, std::uint64_t now_ms) {
  Pace& pace = paces_[maker];
  pace.said_ms = now_ms;
  if (progress.writing) pace.wrote_ms = now_ms;
  if (progress.max_version < pace.max_version) return;  // overtaken by a newer one on a newer connection
  if (pace.at_ms != 0) {
    // A heartbeat that only introduces another message may follow the last one at once: too close for a rate.
    if (now_ms < pace.at_ms + kMinPaceMs) return;
    const std::uint64_t made =
        std::max(progress.max_version.value, start.value) - std::max(pace.max_version.value, start.value);
    pace.rounds_per_ms = static_cast<double>(made) / static_cast<double>(now_ms - pace.at_ms);
    pace.measured = true;
  }
  pace.min_version = progress.min_version;
  pace.max_version = progress.max_version;
  pace.at_ms = now_ms;
}

std::uint64_t JobPaces::fastest() const {
  return range().second.value;
}

std::pair<Version, Version> JobPaces::range() const {
  if (paces_.empty()) return {};
  Version min(~0ull), max;
  for (const auto& [maker, pace] : paces_) {
    min = std::min(min, pace.min_version);
    max = std::max(max, pace.max_version);
  }
  return {min, max};
}

Version JobPaces::min_version(std::uint32_t maker) const {
  const auto pace = paces_.find(maker);
  return pace == paces_.end() ? Version() : pace->second.min_version;
}

std::map<std::uint32_t, std::pair<Version, Version>> JobPaces::versions() const {
  std::map<std::uint32_t, std::pair<Version, Version>> all;
  for (const auto& [maker, pace] : paces_) all[maker] = {pace.min_version, pace.max_version};
  return all;
}

bool JobPaces::all_beyond(Round round) const {
  return std::ranges::all_of(paces_, [&](const auto& entry) { return entry.second.min_version.value > round.value; });
}

bool JobPaces::silent(const std::set<std::uint16_t>& shards, const std::set<std::uint16_t>& done, Sign sign,
                      std::uint64_t patience_ms, std::uint64_t now_ms) const {
  return std::ranges::any_of(shards, [&](std::uint16_t shard) {
    if (done.contains(shard)) return false;
    const auto pace = paces_.find(shard);
    if (pace == paces_.end()) return now_ms > patience_ms;
    return now_ms > (sign == Sign::kHasJob ? pace->second.said_ms : pace->second.wrote_ms) + patience_ms;
  });
}

std::optional<double> JobPaces::reach(double ahead_ms, double factor, std::uint64_t now_ms) const {
  double reach = 0.0;
  for (const auto& [maker, pace] : paces_) {
    if (!pace.measured || pace.at_ms == 0) return std::nullopt;  // a guess would be passed before it arrives
    const double lead = (static_cast<double>(now_ms - pace.at_ms) + ahead_ms) * factor;
    reach = std::max(reach, static_cast<double>(pace.max_version.value) + pace.rounds_per_ms * lead);
  }
  return reach == 0.0 ? std::nullopt : std::optional(reach);
}

}  // namespace tributary
