#include "tests/sim/judge/parts_judge.h"

#include <algorithm>

namespace tributary::sim {

void PartsJudge::look(const JobRecord* record, std::span<const Disk> disks) {
  if (!record || record->job.value == 0) return;
  ids_.insert(record->job);
  const std::set<LargePart> named = large_parts_of(record->rank_states);
  std::erase_if(on_, [&](const auto& entry) { return !named.contains(entry.first); });
  for (const LargePart& part : named) {
    std::set<std::uint16_t> on;
    for (std::size_t server = 0; server < disks.size(); ++server) {
      const bool has = std::ranges::any_of(ids_, [&](JobId id) {
        const auto found = disks[server].large_parts.find({id, part});
        return found != disks[server].large_parts.end() && found->second.complete;
      });
      if (has) on.insert(static_cast<std::uint16_t>(server));
    }
    std::set<std::uint16_t>& before = on_[part];
    if (on.size() < std::min<std::size_t>(before.size(), 2)) {
      broken_("a large part of " + std::to_string(part.bytes) + " bytes that round " +
              std::to_string(record->committed.value) + "'s record names was on " + std::to_string(before.size()) +
              " disks, and is on " + std::to_string(on.size()));
    }
    before = std::move(on);
  }
}

void PartsJudge::store_lost(std::uint16_t server) {
  for (auto& [part, on] : on_) {
    if (on.erase(server) != 0 && on.size() == 1) ++survived_;
  }
}

}  // namespace tributary::sim
