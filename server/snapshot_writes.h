// SnapshotWrites: the snapshots that the snapshotter was ordered to write and has not ended, also those of views that are
// over. Two of one round can be under way: one that was given up, and one that was ordered since. Pure. A part of
// ControlJobs.
//
// Thread rule: one thread.
#pragma once

#include <set>
#include <string>
#include <tuple>

#include "common/wire/messages.h"
#include "server/store/snapshotter.h"

namespace tributary {

class SnapshotWrites {
 public:
  void start(SnapshotOrders* snapshotter) { snapshotter_ = snapshotter; }  // null without a store

  // The snapshotter ends every one with one report; that is to be passed on to ended().
  void expect(SnapshotPlan plan);
  void hurry(JobId job, Round round) { snapshotter_->hurry(job, round); }
  void abandon(JobId job, Round round, const std::string& why) { snapshotter_->abandon(job, round, why); }
  bool abandon_all(JobId job, const std::string& why);  // Returns whether there were any.
  bool ended(JobId job, ViewId view, Round round);      // False: none such was under way.

  bool any(JobId job) const;
  bool contains(JobId job, ViewId view, Round round) const { return under_way_.contains({job, view, round}); }

 private:
  using Key = std::tuple<JobId, ViewId, Round>;

  SnapshotOrders* snapshotter_ = nullptr;
  std::multiset<Key> under_way_;
};

}  // namespace tributary
