#include "server/control_jobs.h"

#include <algorithm>
#include <utility>

#include "server/coordinator/round/snapshots_asked.h"

namespace tributary {

ControlJobs::ControlJobs(ServerConfig config, Store* store, Logger logger, ControlJobsOutput& output)
    : config_(std::move(config)),
      own_(config_.index),
      store_(store != nullptr),
      logger_(logger),
      output_(output),
      stored_(store, own_, logger_),
      fetches_(
          store, own_, logger_, [this](ControlMessage m) { output_.send(std::move(m)); },
          [this](JobId job, std::optional<Round> unwanted) {
            if (unwanted && !jobs_.contains(job)) stored_.drop(job, *unwanted, *unwanted);  // the job was removed
            cleared(job);
          }),
      loads_(stored_, fetches_, own_, logger_,
             [this](const auto& load, const Status& status) { loaded(load, status); }),
      copies_(store, logger_, [this](ControlMessage m) { output_.send(std::move(m)); }),
      part_copies_(
          store ? &store->large_parts() : nullptr, logger_, [this](ControlMessage m) { output_.send(std::move(m)); },
          [this] { return output_.now_ms(); }),
      trace_(own_, [this](ControlMessage m) { output_.send(std::move(m)); }) {}

void ControlJobs::start(std::vector<LaneCommands*> lanes, const Threads& threads) {
  lanes_ = std::move(lanes);
  kept_.start(lanes_);
  stored_.start(threads.store);
  writes_.start(threads.snapshots);
  fetches_.start(threads.fetches);
  loads_.start(lanes_, threads.store);
  copies_.start(threads.records);
  part_copies_.start(threads.records);
  trace_.start(lanes_);
}

void ControlJobs::coordinator_is_here(bool here) {
  copies_.registry_is_here(here);
  part_copies_.registry_is_here(here);
}

void ControlJobs::on(const DropCheckpoint& m) {
  give_up(m);
  // The end of its view was lost with a connection.
  if (jobs_.contains(m.job)) drop(m.job, "the coordinator has it elsewhere");
  unpark(m.job);
  copies_.forget(m.job);
  part_copies_.forget(m.job);
  fetches_.give_up(m.job, Round(0));
}

void ControlJobs::park_all(const std::string& why) {
  fetches_.give_up_deals();
  while (!jobs_.empty()) park(jobs_.begin()->first, why);
}

void ControlJobs::describe(ServerHello& hello) {
  hello.store = store_;
  hello.stored = stored_.all();
  hello.copies = copies_.held();
  hello.parts = part_copies_.held();
  kept_.describe(hello);
  // To a coordinator that is new, these are over.
  for (const auto& [id, job] : jobs_) {
    if (job.plan().has_rounds() && job.status.chunks != 0 && !job.ending) hello.kept.push_back({id, {}, {}, true});
  }
}

std::vector<JobProgress> ControlJobs::progress() const {
  std::vector<JobProgress> progress;
  for (const auto& [id, job] : jobs_) {
    if (job.status.chunks == 0) continue;                    // owns nothing, so it is never behind
    const bool prepared = !store_ || job.status.prepared();  // without one there is nothing to prepare for
    const bool loads = job.load && !job.load->began;
    const std::uint64_t loaded = loads ? job.load->bytes.load(std::memory_order_relaxed) + fetches_.bytes(id) : 0;
    progress.push_back(
        {id, job.view().view, job.status.min_version(), job.status.max_version(), prepared, writes_.any(id), loaded});
  }
  return progress;
}

std::vector<ServerJobStatus> ControlJobs::statuses() const {
  std::vector<ServerJobStatus> all;
  for (const auto& [id, job] : jobs_) all.push_back(job.status);
  return all;
}

std::vector<NotSaved> ControlJobs::not_saved() const {
  std::vector<NotSaved> all;
  for (const auto& [id, lost] : not_saved_) all.push_back(lost);
  return all;
}

ServerJob* ControlJobs::find(JobId id, ViewId view) {
  const auto found = jobs_.find(id);
  return found != jobs_.end() && found->second.view().view == view ? &found->second : nullptr;
}

void ControlJobs::on(const PrepareSnapshot& m) {
  const ServerJob* job = find(m.job, m.view);
  if (!job || job->status.phase != "running" || !store_) return;
  for (const LaneIndex lane : job->lanes) lanes_[lane.value]->prepare_snapshot(m.job, m.view);
}

void ControlJobs::on(const SnapshotAt& m) {
  ServerJob* job = find(m.job, m.view);
  if (!job || job->status.phase != "running" || job->status.chunks == 0)
    return;  // the coordinator has moved on, or will
  if (!store_) {
    if (std::exchange(job->refused_snapshot, true)) return;
    return reply_done(*job, m.round, fail(ErrorCode::kStore, no_store(own_)));
  }
  if (job->status.snapshot_pending == m.round) return;
  capture(*job, m.round, {});
}

void ControlJobs::capture(ServerJob& job, Round round, std::optional<WriteCheckpoint> checkpoint) {
  job.missed_snapshot = false;
  expect_snapshot(job, round, true, std::move(checkpoint));
  for (const LaneIndex lane : job.lanes) lanes_[lane.value]->snapshot_at(job.view().job, job.view().view, round);
}

void ControlJobs::on(const SnapshotCommit& m) {
  if (const auto owed = kept_.committed(m.job, m.round)) output_.send(*owed);
  // The copy of the record is to say so first.
  copies_.after(m.job, [this, m] { stored_.drop_before(m.job, m.round); });
  if (m.superseded > m.round) stored_.drop(m.job, m.superseded, m.superseded);
  if (const auto found = jobs_.find(m.job); found != jobs_.end()) {
    found->second.status.snapshot_committed = m.round;
    for (const LaneIndex lane : found->second.lanes) lanes_[lane.value]->snapshot_written(m.job);
  }
}

void ControlJobs::lane_facts(LaneIndex lane, RoundFacts facts) {
  ServerJob* job = find(facts.job, facts.view);
  if (!job) return;
  // Dropped if the coordinator cannot be reached now: then it is sent again, behind a heartbeat.
  output_.send_or_drop(facts);
  job->facts.sent(lane, std::move(facts), output_.now_ms());
}

void ControlJobs::on(const RoundDecision& m) {
  ServerJob* job = find(m.job, m.view);
  if (!job || !job->plan().has_gate()) return;
  job->decided(m);
  for (const LaneIndex lane : job->lanes) lanes_[lane.value]->decide(m);
}

void ControlJobs::on(const StopJob& m) {
  ServerJob* job = find(m.job, m.view);
  if (m.kind == StopKind::kRestart) {
    if (job) return park(m.job, m.reason);
    if (const auto kept = kept_.ask(m.job, m.view, output_.now_ms())) output_.send(*kept);
    return;
  }
  if (!job && stored_.has(m.job, m.round)) {  // repeated, because the answer was lost
    return output_.send(SnapshotDone{m.job, m.view, m.round, true, 0, {}});
  }
  if (KeptView* kept = kept_.find(m.job); !job && kept && writes_.contains(m.job, m.view, m.round)) {
    kept->save = m;
    return;
  }
  if (!job && !(job = take_back(m.job, m.view, m.round))) {
    output_.send(SnapshotDone{m.job, m.view, m.round, false, 0,
                              "job " + std::to_string(m.job.value) + " is not open in view " +
                                  std::to_string(m.view.value) + " on server " + std::to_string(config_.index),
                              ErrorCode::kStopped});
    return;
  }
  if (job->ending) {  // repeated: nodes make progress elsewhere
    for (const LaneIndex lane : job->lanes) lanes_[lane.value]->await_longer(m.job, m.view);
    return;
  }
  logger_->info("job '{}' stops at round {}: {}", job->view().name(), m.round.value, m.reason);
  ServerJobStatus& status = job->status;
  status.phase = "stopping";
  if (!store_) {
    stop_lanes(*job, false, m.round);
    reply_done(*job, m.round, fail(ErrorCode::kStore, no_store(own_)));
    return finish(m.job);
  }
  const bool began_here = status.resumed && status.view->start == m.round;
  if (status.chunks == 0 || began_here || status.snapshot_durable == m.round) {  // nothing to keep, or kept already
    // Another server may fail to keep its part.
    stop_lanes(*job, false, m.round, kept_.keep_last(*job, m.round, output_.now_ms()));
    reply_done(*job, m.round, {}, status.snapshot_bytes);
    return finish(m.job);
  }
  job->ending = true;
  // One of this very round may be under way: then the lanes' captures are second copies, or fill in missing chunks.
  if (status.snapshot_pending == m.round && !job->checkpoint && !job->missed_snapshot) {
    writes_.hurry(m.job, m.round);
  } else {
    expect_snapshot(*job, m.round, false, {});
  }
  stop_lanes(*job, true, m.round, kept_.keep_last(*job, m.round, output_.now_ms()));
}

// Makes a job again of the state that lanes keep, if that is of this view and round; nullptr: it is not.
ServerJob* ControlJobs::take_back(JobId id, ViewId view, Round round) {
  if (jobs_.contains(id)) return nullptr;
  std::optional<ServerJob> job = kept_.take_back(id, view, round);
  return job ? &jobs_.emplace(id, std::move(*job)).first->second : nullptr;
}

// The snapshotter ends every snapshot with snapshot_finished() or checkpoint_written(), which counts for the newest
// alone.
void ControlJobs::expect_snapshot(ServerJob& job, Round round, bool paced, std::optional<WriteCheckpoint> checkpoint) {
  if (job.status.snapshot_pending) {
    writes_.abandon(job.view().job, *job.status.snapshot_pending, "a newer snapshot was asked for");
  }
  job.status.snapshot_pending = round;
  job.checkpoint = checkpoint;
  SnapshotPlan plan{job.snapshot(round, own_), job.view().view, {}, paced, std::move(checkpoint)};
  for (std::uint32_t c = 0; c < job.view().layout->chunks(); ++c) {
    if (job.view().layout->owner(ChunkIndex(c)).shard == own_) plan.chunks.push_back(ChunkIndex(c));
  }
  writes_.expect(std::move(plan));
}

void ControlJobs::stop_lanes(const ServerJob& job, bool keep, Round round, bool park) const {
  for (const LaneIndex lane : job.lanes) {
    lanes_[lane.value]->stop_job(job.view().job, job.view().view, keep, round, park);
  }
}

void ControlJobs::drop(JobId id, const std::string& why) {
  const ServerJob& job = jobs_.at(id);
  logger_->warn("job '{}' view {} is dropped: {}", job.view().name(), job.view().view.value, why);
  if (job.load && job.load->at == job.view().view) job.load->wanted = false;
  if (job.ending && job.status.snapshot_pending)
    not_saved_[id] = {job.view().name(), *job.status.snapshot_pending, why};
  // The write of a final state continues: it is a good snapshot, whatever became of the coordinator.
  if (job.status.snapshot_pending && !job.ending) writes_.abandon(id, *job.status.snapshot_pending, why);
  stop_lanes(job, false, Round(0));
  jobs_.erase(id);
}

// The view is over without an order: the lanes' states stay in memory for the next one, if the job can use them.
void ControlJobs::park(JobId id, const std::string& why) {
  const ServerJob& job = jobs_.at(id);
  const ViewId view = job.view().view;
  if (job.ending && kept_.contains(id)) {  // the write of a last state continues, as in drop()
    jobs_.erase(id);
    if (const auto kept = kept_.ask(id, view, output_.now_ms())) output_.send(*kept);
    return;
  }
  if (keep_load(id, why)) return output_.send(ShardKept{id, view, false, {}, {}});
  const bool whole = job.status.phase == "running" || job.kept;  // else it has yet to be initialised
  if (!job.plan().has_rounds() || job.ending || job.lanes.empty() || !whole) {
    drop(id, why);
    return output_.send(ShardKept{id, view, false, {}, {}});
  }
  logger_->warn("job '{}' view {} is over: {}; its state stays in memory", job.view().name(), view.value, why);
  if (job.status.snapshot_pending) writes_.abandon(id, *job.status.snapshot_pending, why);
  kept_.keep(job, output_.now_ms());
  jobs_.erase(id);
}

void ControlJobs::give_up_parked() {
  for (const auto& [id, state] : kept_.all()) {
    const std::optional<Round> round = state.unsaved();
    if (!round || !misses(state.view())) continue;
    const Round saved = state.status.snapshot_committed;
    const std::string newest =
        saved == Round() ? "it has no snapshot" : "its newest snapshot is of round " + std::to_string(saved.value);
    not_saved_[id] = {state.view().name(), *round,
                      "its view " + std::to_string(state.view().view.value) +
                          " was over, and this server kept the state in memory for the next one until it was told to "
                          "stop; " +
                          newest};
    logger_->error("job '{}': the state of round {} is not saved: {}", state.view().name(), round->value,
                   not_saved_[id].reason);
  }
}

void ControlJobs::tick() {
  const std::uint64_t now = output_.now_ms();
  part_copies_.tick();
  for (auto& [id, job] : jobs_) {
    for (const RoundFacts& facts : job.facts.due(now)) output_.send_or_drop(facts);
  }
  if (const auto& order = trace_.order()) trace_.tick(find(order->job, order->view));
  const auto old = std::ranges::find_if(
      kept_.all(), [&](const auto& entry) { return now > entry.second.until_ms && !that_waits_for(entry.second); });
  if (old == kept_.all().end()) return;
  const JobId id = old->first;
  const ViewId view = old->second.view().view;
  logger_->warn("job '{}': nobody came back for the state of view {}; it is dropped", old->second.view().name(),
                view.value);
  unpark(id);
  output_.send(ShardKept{id, view, false, {}, {}});
}

void ControlJobs::reply_done(const ServerJob& job, Round round, const Status& saved, std::uint64_t bytes) {
  ServerJobStatus& status = jobs_.at(job.view().job).status;
  if (status.snapshot_pending == round) status.snapshot_pending.reset();
  SnapshotDone done{status.view->job, status.view->view, round, saved.has_value(), bytes, {}};
  if (saved) {
    status.snapshot_durable = round;
    status.snapshot_bytes = bytes;
    status.snapshot_error.clear();
    not_saved_.erase(status.view->job);
  } else {
    const std::string& message = status.snapshot_error = done.message = saved.error().message;
    done.code = saved.error().code;
    // One that was named too late is tried again, and nothing is wrong.
    const bool lost = misses(job.view()) && (!store_ || job.ending || !job.missed_snapshot);
    logger_->log(lost ? spdlog::level::err : spdlog::level::warn, "job '{}': the snapshot of round {} is not saved: {}",
                 status.view->name(), round.value, message);
    if (lost) not_saved_[status.view->job] = {status.view->name(), round, message};
  }
  output_.send(std::move(done));
}

// Returns whether a missing snapshot is a fault. Without a store it is the user's choice, unless the job asks for
// snapshots.
bool ControlJobs::misses(const ViewPlan& view) const {
  return store_ || asks_for_snapshots(view.plan->config.snapshot);
}

void ControlJobs::finish(JobId id) {
  logger_->info("job '{}' view {} is closed", jobs_.at(id).view().name(), jobs_.at(id).view().view.value);
  if (const auto& load = jobs_.at(id).load) load->wanted = false;
  jobs_.erase(id);
}

// ---- Reports of the lanes and the snapshotter ----

void ControlJobs::lane_snapshot(LaneIndex lane, JobId id, ViewId view, Round round, bool started) {
  if (started) return;
  ServerJob* job = find(id, view);
  // A job that ends captures every chunk again.
  if (!job || job->status.snapshot_pending != round || job->ending) return;
  job->missed_snapshot = true;
  writes_.abandon(id, round,
                  "lane " + std::to_string(lane.value) + " is past round " + std::to_string(round.value) +
                      " already, or still captures an earlier one");
}

void ControlJobs::lane_parked(JobId id, ViewId view, bool any, Version min, Version max) {
  const KeptView* kept = kept_.lane_parked(id, view, any, min, max);
  if (!kept) return;
  if (kept->never_began()) return take_up(id);
  if (kept->asked) output_.send(kept->report());
}

void ControlJobs::lane_stopped(JobId id, ViewId view, Round round, bool kept) {
  if (kept) return;
  const ServerJob* job = find(id, view);
  if (!job || !job->ending) return;
  writes_.abandon(id, round, "not every chunk was at round " + std::to_string(round.value) + " when the job stopped");
}

// Returns whether another one of the same round is under way, which was ordered meanwhile.
bool ControlJobs::write_ended(JobId id, ViewId view, Round round) {
  if (!writes_.ended(id, view, round)) return false;
  cleared(id);
  KeptView* kept = kept_.find(id);
  const auto save = kept ? std::exchange(kept->save, std::nullopt) : std::nullopt;
  if (save) on(*save);
  return writes_.contains(id, view, round);
}

void ControlJobs::snapshot_finished(const SnapshotDone& done) {
  if (write_ended(done.job, done.view, done.round) && !done.ok) return;  // that one will report
  const ServerJob* job = find(done.job, done.view);
  if (!job) {  // dropped in the meantime; a durable snapshot can still be resumed from, so the coordinator must know
    if (!done.ok) return;
    not_saved_.erase(done.job);
    output_.send(done);
    output_.hello();  // a coordinator that does not know the job learns its name
    return;
  }
  if (job->status.snapshot_pending != done.round || job->checkpoint) return;
  reply_done(*job, done.round, done.ok ? Status() : fail(done.code, done.message), done.bytes);
  if (job->ending) finish(done.job);
}

}  // namespace tributary
