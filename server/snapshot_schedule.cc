#include "server/snapshot_schedule.h"

#include <algorithm>

namespace tributary {

std::optional<NamedSnapshot> snapshot_to_name(const SnapshotNeeds& needs) {
  std::optional<NamedSnapshot> nearest;
  const auto offer = [&](std::uint64_t round, const char* why) {
    if (!nearest || round < nearest->round) nearest = NamedSnapshot{round, why};
  };
  if (!needs.next) return nearest;
  const std::uint64_t next = *needs.next;
  if (needs.redo) offer(next, "nodes that keep what they pushed since the last one");
  if (needs.awaited) offer(next, "a save or a node that waits for it");
  if (!needs.due) return nearest;
  if (needs.every_rounds == 0) {
    offer(next, "the job's schedule");
  } else {
    const std::uint64_t past = next % needs.every_rounds;
    const std::uint64_t multiple = past == 0 ? next : next + (needs.every_rounds - past);
    if (!gives_way(multiple, next, needs.fastest)) offer(multiple, "the job's schedule");
  }
  return nearest;
}

bool gives_way(std::uint64_t under_way, std::uint64_t named, std::uint64_t fastest) {
  return under_way > named && under_way - named > named - std::min(named, fastest);
}

}  // namespace tributary
