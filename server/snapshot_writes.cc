#include "server/snapshot_writes.h"

#include <utility>
#include <vector>

namespace tributary {

void SnapshotWrites::expect(SnapshotPlan plan) {
  under_way_.emplace(plan.info.job, plan.view, plan.info.round);
  snapshotter_->expect(std::move(plan));
}

bool SnapshotWrites::abandon_all(JobId job, const std::string& why) {
  std::vector<Round> rounds;
  for (auto at = under_way_.lower_bound({job, ViewId(0), Round(0)}); at != under_way_.end(); ++at) {
    if (std::get<JobId>(*at) != job) break;
    rounds.push_back(std::get<Round>(*at));
  }
  for (const Round round : rounds) abandon(job, round, why);
  return !rounds.empty();
}

bool SnapshotWrites::ended(JobId job, ViewId view, Round round) {
  const auto found = under_way_.find({job, view, round});
  if (found == under_way_.end()) return false;
  under_way_.erase(found);
  return true;
}

bool SnapshotWrites::any(JobId job) const {
  const auto first = under_way_.lower_bound({job, ViewId(0), Round(0)});
  return first != under_way_.end() && std::get<JobId>(*first) == job;
}

}  // namespace tributary
