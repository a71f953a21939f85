// ServerJob: a view of a job on this server, from its OpenJob until it is over. Pure. A part of ControlJobs.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/config/job_plan.h"
#include "common/wire/messages.h"
#include "server/server_job_status.h"
#include "server/shard/shard_job.h"
#include "server/snapshot_loads.h"
#include "server/store/store.h"
#include "server/unanswered_facts.h"

namespace tributary {

struct ServerJob {
  ServerJobStatus status;
  std::vector<LaneIndex> lanes;  // that own chunks of it
  // Lanes that have not opened yet, snapshots of earlier views (and copies of such) that have not ended, drops from the
  // store, and a copy of the record that is being saved.
  std::size_t opening = 0;
  std::shared_ptr<SnapshotLoad> load;         // the state that it begins with, if that comes from the store
  std::vector<ShardJob> parts;                // lanes', until they have of an earlier view's load what these go on with
  bool clearing = false;                      // snapshots of earlier views have not ended
  Status opened;                              // the first error of a lane
  bool refused_snapshot = false;              // "no store" was sent
  bool missed_snapshot = false;               // the one that is pending was named too late
  std::optional<WriteCheckpoint> checkpoint;  // where the same goes, if not into the store
  bool ending = false;                        // goes when its final snapshot is done
  bool kept = false;                          // it goes on with what was in memory
  UnansweredFacts facts;                      // in jobs with a gate

  const ViewPlan& view() const { return *status.view; }
  const JobPlan& plan() const { return *status.view->plan; }
  // The first round whose snapshots are beyond where the view begins. A fresh job begins before any round.
  Round first_beyond() const { return status.resumed ? view().start.next() : Round(0); }
  // Returns the identity of this server's part of a snapshot.
  SnapshotInfo snapshot(Round round, ShardIndex server) const;
  void decided(const RoundDecision& m);
};

// Checks the message, and makes a job of it with a part for every lane that owns chunks of it. lanes: the server's.
// store: it has one.
Result<ServerJob> lay_out(const OpenJob& m, ShardIndex server, std::size_t lanes, bool store);

std::string no_store(ShardIndex server);  // in words: it has none

}  // namespace tributary
