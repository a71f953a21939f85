// JobLedger: the facts about a job that outlast its phases: its configuration, the keeper of its state, its record, its
// progress, how its last view ended; and the words and messages that follow from these alone. Pure. The job in the
// coordinator owns it, and the job's phases refer to it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "common/config/job_plan.h"
#include "server/coordinator/job/job_record_keeper.h"
#include "server/coordinator/job/job_servers.h"
#include "server/coordinator/job/job_values.h"
#include "server/coordinator/job/job_view.h"
#include "server/coordinator/job/snapshot_copies.h"
#include "server/coordinator/job/state_home.h"
#include "server/coordinator/orders/checkpoint_schedule.h"
#include "server/coordinator/orders/coordinator_context.h"
#include "server/coordinator/round/job_figures.h"
#include "server/coordinator/round/job_paces.h"
#include "server/coordinator/round/stall_watch.h"

namespace tributary {

// A server's error, after the server's name if the message does not begin with that name.
std::string said_by(std::uint16_t server, const std::string& message);

class JobLedger {
 public:
  JobLedger(CoordinatorContext& shared, const JobConfig& config, JobRecord record, std::set<JobId> older);
  JobLedger(const JobLedger&) = delete;
  JobLedger& operator=(const JobLedger&) = delete;

  const JobPlan& plan() const { return *plan_; }
  const JobConfig& config() const { return plan_->config; }
  void set_config(const JobConfig& config);
  const StateHome& home() const { return *home_; }
  const JobRecord& record() const { return keeper.record(); }
  std::string in_words() const { return "job '" + plan_->name() + "'"; }
  std::uint16_t servers() const { return home_->servers(); }  // that take part in its views: all or none
  std::set<std::uint16_t> shards() const { return home_->shards(record()); }
  // The servers without which no view can begin with its state; empty: it has no state.
  std::set<std::uint16_t> with_state() const { return record().initialised ? shards() : std::set<std::uint16_t>(); }
  SnapshotCopies::Snapshot snapshot(Round round) const { return {record().job, record().view, round, shards()}; }
  // The servers that are to have other chunks, by what is known now.
  std::optional<JobServers::Change> change(std::uint64_t now_ms) const {
    const bool may = servers() != 0 && placed.may_change(config().membership) && context.peers.all_have_stores();
    return may ? placed.change(config().membership, shards(), now_ms) : std::nullopt;
  }
  // Has each part of this snapshot a copy, or can have none now? Orders what is missing.
  bool copied(Round round, bool paced, std::uint64_t now_ms);
  // Copies of the large parts of what ranks keep are on the server that has the copies of the coordinator's server's
  // parts of snapshots.
  void copy_parts(std::uint64_t now_ms);
  std::optional<std::uint64_t> keeper_of_parts() const;  // that server's incarnation; none: there is none now

  void log(const std::string& line, LogLevel level = LogLevel::kInfo) const { context.output.log(line, level); }
  void send(const JobMembers& members, const ControlMessage& message) const;
  void send_servers(const ControlMessage& message) const;
  void refuse(const JobMembers& members, const Error& error) const;  // what they have joined does not begin

  // The view has ended in the middle of a round.
  StopJob cut_message() const;
  // The servers that receive it report what they keep: all that are there.
  BetweenViews ask_kept() const;

  // Records that the snapshot of this round is everywhere. tell_commit() follows when that record is saved.
  void commit(Round round, bool finished, std::uint64_t now_ms);
  void tell_commit(const JobMembers& members, std::uint64_t now_ms) const;
  // membership.on_state_lost = "rewind": a state without what ranks kept with it is none.
  bool rewinds() const { return config().membership.on_state_lost == OnStateLost::kRewind; }
  // Then: nobody's whole state of this round is there yet. Asks for what is to come.
  bool lacks_state(Round round, std::uint64_t now_ms);
  // A server could not write its part.
  void snapshot_failed(std::uint16_t server, const SnapshotDone& m);
  // Whether the state that the last view ended with is saved, and if not, why.
  SnapshotDone outcome(Round round, bool saved) const;
  // Sends the outcome to a node that repeats with which round a view ended.
  void tell_outcome(PeerId to, ViewId view, Round round) const;

  CoordinatorContext& context;
  JobRecordKeeper keeper;
  std::uint32_t nodes = 0;  // of the last view, or of the one that is gathered
  SnapshotCopies copies;
  JobServers placed;     // the servers that it is on
  AwaitedNodes awaited;  // elastic
  Round reached;         // where the last view began
  JobPaces paces;
  JobFigures figures;
  StallWatch stalls;
  JobValues values;
  CheckpointSchedule checkpoints;
  std::uint64_t redo_due_ms = 0;          // no snapshot is named for rings' sake before
  StopKind ended = StopKind::kRestart;    // how the last view did
  std::string last_stop;                  // why
  bool store_broken = false;              // a server could not write its part of the last snapshot to its disk
  std::string not_saved;                  // why the newest snapshot that was wanted is not there; empty: it is
  std::optional<JobPlacement> placement;  // of the last view opened since this process started

 private:
  std::shared_ptr<const JobPlan> plan_;
  std::unique_ptr<StateHome> home_;  // as plan_ says
};

}  // namespace tributary
