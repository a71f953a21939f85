#include "server/control_jobs.h"

#include <algorithm>
#include <utility>

#include "server/coordinator/round/snapshots_asked.h"

namespace tributary {

ControlJobs::ControlJobs(ServerConfig config, Store* store, Logger logger, ControlJobsOutput& output)
    : config_(std::move(config)),
      store_(store),
      logger_(logger),
      output_(output),
      copies_(store, logger_, [this](ControlMessage m) { output_.send(std::move(m)); }),
      part_copies_(
          store ? &store->large_parts() : nullptr, logger_, [this](ControlMessage m) { output_.send(std::move(m)); },
          [this] { return output_.now_ms(); }),
      fetches_(
          store, ShardIndex(config_.index), logger_, [this](ControlMessage m) { output_.send(std::move(m)); },
          [this](JobId job, std::optional<Round> unwanted) {
            if (unwanted && !jobs_.contains(job)) drop_rounds(job, *unwanted, *unwanted);  // the job was removed
            cleared(job);
          }) {}

std::string ControlJobs::no_store() const {
  return "server " + std::to_string(config_.index) + " has no store configured; set [store] path in its configuration";
}

void ControlJobs::start(std::vector<LaneCommands*> lanes, const Threads& threads) {
  lanes_ = std::move(lanes);
  snapshotter_ = threads.snapshots;
  orders_ = threads.store;
  copies_.start(threads.records);
  part_copies_.start(threads.records);
  fetches_.start(threads.fetches);
}

void ControlJobs::coordinator_is_here(bool here) {
  copies_.registry_is_here(here);
  part_copies_.registry_is_here(here);
}

void ControlJobs::forget(JobId job) {
  copies_.forget(job);
  part_copies_.forget(job);
  fetches_.give_up(job, Round(0));
}

void ControlJobs::park_all(const std::string& why) {
  while (!jobs_.empty()) park(jobs_.begin()->first, why);
}

void ControlJobs::describe(ServerHello& hello) {
  hello.store = store_ != nullptr;
  hello.stored = stored();
  hello.copies = copies_.held();
  hello.parts = part_copies_.held();
  for (auto& [id, parked] : parked_) {
    if (parked.never_began()) continue;
    const bool pending = parked.parking != 0;
    parked.asked = parked.asked || pending;  // it will wait for the result
    if (pending || parked.all) hello.kept.push_back({id, parked.min_version, parked.max_version, pending});
  }
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
    const bool writing =
        std::ranges::any_of(writing_, [&](const auto& snapshot) { return std::get<JobId>(snapshot) == id; });
    const bool loads = job.load && !job.load->began;
    const std::uint64_t loaded = loads ? job.load->bytes.load(std::memory_order_relaxed) + fetches_.bytes(id) : 0;
    progress.push_back(
        {id, job.view().view, job.status.min_version(), job.status.max_version(), prepared, writing, loaded});
  }
  return progress;
}

std::vector<ControlJobStatus> ControlJobs::statuses() const {
  std::vector<ControlJobStatus> all;
  for (const auto& [id, job] : jobs_) all.push_back(job.status);
  return all;
}

std::vector<NotSaved> ControlJobs::not_saved() const {
  std::vector<NotSaved> all;
  for (const auto& [id, lost] : not_saved_) all.push_back(lost);
  return all;
}

ControlJobs::Job* ControlJobs::find(JobId id, ViewId view) {
  const auto found = jobs_.find(id);
  return found != jobs_.end() && found->second.view().view == view ? &found->second : nullptr;
}

SnapshotInfo ControlJobs::info(const Job& job, Round round) const {
  return {
      job.view().job,    job.view().name(),        round, job.view().layout->hash(), job.plan().config.optimizer.name,
      job.status.chunks, ShardIndex(config_.index)};
}

void ControlJobs::on(const PrepareSnapshot& m) {
  const Job* job = find(m.job, m.view);
  if (!job || job->status.phase != "running" || !store_) return;
  for (const LaneIndex lane : job->lanes) lanes_[lane.value]->prepare_snapshot(m.job, m.view);
}

void ControlJobs::on(const SnapshotAt& m) {
  Job* job = find(m.job, m.view);
  if (!job || job->status.phase != "running" || job->status.chunks == 0)
    return;  // the coordinator has moved on, or will
  if (!store_) {
    if (std::exchange(job->refused_snapshot, true)) return;
    return reply_done(*job, m.round, fail(ErrorCode::kStore, no_store()));
  }
  if (job->status.snapshot_pending == m.round) return;
  capture(*job, m.round, {});
}

void ControlJobs::capture(Job& job, Round round, std::optional<WriteCheckpoint> checkpoint) {
  job.missed_snapshot = false;
  expect_snapshot(job, round, true, std::move(checkpoint));
  for (const LaneIndex lane : job.lanes) lanes_[lane.value]->snapshot_at(job.view().job, job.view().view, round);
}

void ControlJobs::on(const SnapshotCommit& m) {
  if (const auto last = parked_.find(m.job); last != parked_.end() && last->second.last == m.round) {
    const ViewId view = last->second.view().view;
    const bool awaited = last->second.parking != 0 && last->second.asked;
    unpark(m.job);
    if (awaited) output_.send(ShardKept{m.job, view, false, {}, {}});
  }
  // The copy of the record is to say so first.
  copies_.after(m.job, [this, m] { drop_before(m.job, m.round); });
  if (store_ && m.superseded > m.round) drop_rounds(m.job, m.superseded, m.superseded);
  if (const auto kept = parked_.find(m.job); kept != parked_.end()) kept->second.status.snapshot_committed = m.round;
  if (const auto found = jobs_.find(m.job); found != jobs_.end()) {
    found->second.status.snapshot_committed = m.round;
    for (const LaneIndex lane : found->second.lanes) lanes_[lane.value]->snapshot_written(m.job);
  }
}

void ControlJobs::drop_before(JobId job, Round round) {
  if (store_ && round.value != 0) drop_rounds(job, Round(0), Round(round.value - 1));
}

void ControlJobs::drop_rounds(JobId job, Round first, Round last) {
  drop_stored(job, first, last, [this, last](const Status& dropped) {
    if (!dropped) logger_->warn("cannot drop snapshots up to round {}: {}", last.value, dropped.error().message);
  });
}

std::vector<StoredJob> ControlJobs::stored() const {
  if (!store_) return {};
  std::vector<StoredJob> jobs = store_->jobs();
  for (const auto& [id, first, last] : dropping_) {
    for (StoredJob& of : jobs) {
      if (of.job == id) std::erase_if(of.snapshots, [&](Round round) { return round >= first && round <= last; });
    }
  }
  std::erase_if(jobs, [](const StoredJob& of) { return of.snapshots.empty(); });
  return jobs;
}

// Drops snapshots: they do not count from here on. If they cannot be dropped, they count again.
void ControlJobs::drop_stored(JobId job, Round first, Round last, StoreOrders::Done done) {
  const auto entry = dropping_.insert(dropping_.end(), {job, first, last});
  const auto ended = [this, entry, done = std::move(done)](const Status& dropped) {
    dropping_.erase(entry);
    done(dropped);
  };
  orders_->run([store = store_, job, first, last] { return store->drop(job, first, last); }, ended);
}

// ---- Copies of the coordinator's records ----

void ControlJobs::on(const JobRecordCopy& m) {
  copies_.save(m);
}

void ControlJobs::on(const WantRecord& m) {
  copies_.answer(m);
}

bool ControlJobs::stored(JobId job, Round round) const {
  const auto goes = [&](const auto& dropping) {
    const auto& [id, first, last] = dropping;
    return id == job && round >= first && round <= last;
  };
  return store_ && store_->has(job, round, ShardIndex(config_.index)) && std::ranges::none_of(dropping_, goes);
}

void ControlJobs::lane_facts(LaneIndex lane, RoundFacts facts) {
  Job* job = find(facts.job, facts.view);
  if (!job) return;
  // Dropped if the coordinator cannot be reached now: then it is sent again, behind a heartbeat.
  output_.send_or_drop(facts);
  job->facts_ms = output_.now_ms();
  job->undecided[lane] = std::move(facts);
}

void ControlJobs::repeat_facts(std::uint64_t now) {
  for (auto& [id, job] : jobs_) {
    if (job.undecided.empty() || now < job.facts_ms + kRepeatFactsMs) continue;
    job.facts_ms = now;
    for (const auto& [lane, facts] : job.undecided) output_.send_or_drop(facts);
  }
}

void ControlJobs::on(const RoundDecision& m) {
  Job* job = find(m.job, m.view);
  if (!job || !job->plan().has_gate()) return;
  std::erase_if(job->undecided, [&](const auto& entry) { return entry.second.round <= m.round; });
  ControlJobStatus& status = job->status;
  if (m.round > status.gate_round) {
    status.gate_round = m.round;
    status.decision = m.decision;
    status.rounds_clipped += m.decision.verdict == GateVerdict::kClipped ? 1 : 0;
    status.rounds_skipped += m.decision.verdict == GateVerdict::kSkipped ? 1 : 0;
  }
  for (const LaneIndex lane : job->lanes) lanes_[lane.value]->decide(m);
}

void ControlJobs::on(const TraceRounds& m) {
  const bool known = trace_ && trace_->order().job == m.job && trace_->order().view == m.view;
  if (m.last == Round()) {
    if (known) end_trace();
    return;
  }
  if (known && trace_->order().first == m.first) return;  // repeated
  if (trace_) trace_->end(lanes_);
  const Job* job = find(m.job, m.view);
  const bool sound = m.first <= m.last && m.last.value - m.first.value < kMaxTraceRounds;
  if (!job || !sound) return trace_.reset();
  trace_.emplace(m, job->view(), ShardIndex(config_.index), job->lanes);
  trace_->begin(lanes_);
}

void ControlJobs::end_trace() {
  trace_->end(lanes_);
  trace_->tell([this](const TracePart& part) { output_.send(part); });
  trace_.reset();
}

void ControlJobs::on(const StopJob& m) {
  Job* job = find(m.job, m.view);
  if (m.kind == StopKind::kRestart) {
    if (job) return park(m.job, m.reason);
    return tell_parked(m.job, m.view);
  }
  if (!job && stored(m.job, m.round)) {  // repeated, because the answer was lost
    return output_.send(SnapshotDone{m.job, m.view, m.round, true, 0, {}});
  }
  if (const auto kept = parked_.find(m.job);
      !job && kept != parked_.end() && writing_.contains({m.job, m.view, m.round})) {
    kept->second.save = m;
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
  ControlJobStatus& status = job->status;
  status.phase = "stopping";
  if (!store_) {
    stop_lanes(*job, false, m.round);
    reply_done(*job, m.round, fail(ErrorCode::kStore, no_store()));
    return finish(m.job);
  }
  const bool began_here = status.resumed && status.view->start == m.round;
  if (status.chunks == 0 || began_here || status.snapshot_durable == m.round) {  // nothing to keep, or kept already
    stop_lanes(*job, false, m.round, park_last(*job, m.round));  // another server may fail to keep its part
    reply_done(*job, m.round, {}, status.snapshot_bytes);
    return finish(m.job);
  }
  job->ending = true;
  // One of this very round may be under way: then the lanes' captures are second copies, or fill in missing chunks.
  if (status.snapshot_pending == m.round && !job->checkpoint && !job->missed_snapshot) {
    snapshotter_->hurry(m.job, m.round);
  } else {
    expect_snapshot(*job, m.round, false, {});
  }
  stop_lanes(*job, true, m.round, park_last(*job, m.round));
}

// Makes a job again of the state that lanes keep, if that is of this view and round; nullptr: it is not.
ControlJobs::Job* ControlJobs::take_back(JobId id, ViewId view, Round round) {
  const auto found = parked_.find(id);
  if (found == parked_.end() || jobs_.contains(id)) return nullptr;
  Parked& state = found->second;
  const bool there = state.view().view == view && state.parking == 0 && state.all && !state.never_began();
  if (!there || state.min_version.value != round.value || state.max_version.value != round.value) return nullptr;
  Job job;
  job.status = std::move(state.status);
  job.lanes = std::move(state.lanes);
  job.load = std::move(state.load);
  job.kept = true;
  parked_.erase(found);
  return &jobs_.emplace(id, std::move(job)).first->second;
}

// Returns whether lanes are to keep the job's last state.
bool ControlJobs::park_last(const Job& job, Round round) {
  if (!job.plan().has_rounds() || job.lanes.empty()) return false;
  Parked& state = begin_parking(job);
  state.asked = false;
  state.last = round;
  return true;
}

ControlJobs::Parked& ControlJobs::begin_parking(const Job& job) {
  Parked state;
  state.status = job.status;
  state.status.snapshot_pending.reset();  // given up, or the view's own
  state.lanes = job.lanes;
  state.parking = job.lanes.size();
  state.until_ms = output_.now_ms() + kParkedMs;
  return parked_[job.view().job] = std::move(state);
}

// The snapshotter ends every snapshot with snapshot_finished() or checkpoint_written(), which counts for the newest
// alone.
void ControlJobs::expect_snapshot(Job& job, Round round, bool paced, std::optional<WriteCheckpoint> checkpoint) {
  if (job.status.snapshot_pending) {
    snapshotter_->abandon(job.view().job, *job.status.snapshot_pending, "a newer snapshot was asked for");
  }
  job.status.snapshot_pending = round;
  job.checkpoint = checkpoint;
  SnapshotPlan plan{info(job, round), job.view().view, {}, paced, std::move(checkpoint)};
  for (std::uint32_t c = 0; c < job.view().layout->chunks(); ++c) {
    if (job.view().layout->owner(ChunkIndex(c)).shard.value == config_.index) plan.chunks.push_back(ChunkIndex(c));
  }
  writing_.emplace(job.view().job, job.view().view, round);
  snapshotter_->expect(std::move(plan));
}

void ControlJobs::stop_lanes(const Job& job, bool keep, Round round, bool park) const {
  for (const LaneIndex lane : job.lanes) {
    lanes_[lane.value]->stop_job(job.view().job, job.view().view, keep, round, park);
  }
}

void ControlJobs::drop(JobId id, const std::string& why) {
  const Job& job = jobs_.at(id);
  logger_->warn("job '{}' view {} is dropped: {}", job.view().name(), job.view().view.value, why);
  if (job.load && job.load->at == job.view().view) job.load->wanted = false;
  if (job.ending && job.status.snapshot_pending)
    not_saved_[id] = {job.view().name(), *job.status.snapshot_pending, why};
  // The write of a final state continues: it is a good snapshot, whatever became of the coordinator.
  if (job.status.snapshot_pending && !job.ending) snapshotter_->abandon(id, *job.status.snapshot_pending, why);
  stop_lanes(job, false, Round(0));
  jobs_.erase(id);
}

// The view is over without an order: the lanes' states stay in memory for the next one, if the job can use them.
void ControlJobs::park(JobId id, const std::string& why) {
  const Job& job = jobs_.at(id);
  const ViewId view = job.view().view;
  if (job.ending && parked_.contains(id)) {  // the write of a last state continues, as in drop()
    jobs_.erase(id);
    return tell_parked(id, view);
  }
  if (keep_load(id, why)) return output_.send(ShardKept{id, view, false, {}, {}});
  const bool whole = job.status.phase == "running" || job.kept;  // else it has yet to be initialised
  if (!job.plan().has_rounds() || job.ending || job.lanes.empty() || !whole) {
    drop(id, why);
    return output_.send(ShardKept{id, view, false, {}, {}});
  }
  logger_->warn("job '{}' view {} is over: {}; its state stays in memory", job.view().name(), view.value, why);
  if (job.status.snapshot_pending) snapshotter_->abandon(id, *job.status.snapshot_pending, why);
  Parked& state = begin_parking(job);
  state.load = job.load;
  jobs_.erase(id);
  for (const LaneIndex lane : state.lanes) lanes_[lane.value]->park(id, view);
}

// The coordinator asks for the kept state: it gets the reply when all lanes have reported.
void ControlJobs::tell_parked(JobId id, ViewId view) {
  const auto kept = parked_.find(id);
  if (kept != parked_.end()) kept->second.until_ms = output_.now_ms() + kParkedMs;
  if (kept == parked_.end() || kept->second.never_began()) return output_.send(ShardKept{id, view, false, {}, {}});
  kept->second.asked = true;
  if (kept->second.parking == 0) parked(id, kept->second);
}

// All lanes have reported their kept states.
void ControlJobs::parked(JobId id, const Parked& state) {
  output_.send(ShardKept{id, state.view().view, state.all, state.min_version, state.max_version});
}

void ControlJobs::unpark(JobId id) {
  const auto found = parked_.find(id);
  if (found == parked_.end()) return;
  const Parked state = std::move(found->second);
  parked_.erase(found);
  const bool reading = state.load && !state.load->there;
  if (state.load) state.load->wanted = false;
  for (const LaneIndex index : state.lanes) {
    LaneCommands& lane = *lanes_[index.value];
    reading ? lane.stop_job(id, state.load->at, false, Round(0), false) : lane.drop_parked(id);
  }
}

bool ControlJobs::keeps() const {
  return std::ranges::any_of(parked_, [](const auto& entry) { return !entry.second.never_began(); });
}

void ControlJobs::give_up_parked() {
  for (const auto& [id, state] : parked_) {
    const Round saved = state.status.snapshot_committed;
    const bool told = state.parking == 0;
    const std::uint64_t least = (told ? state.min_version : state.status.min_version()).value;
    const std::uint64_t most = (told ? state.max_version : state.status.max_version()).value;
    // A chunk of round r + 1 was made after round r, on a server that is being brought up to there, too.
    const Round round(std::max(least, std::max<std::uint64_t>(most, 1) - 1));
    if (!state.all || state.never_began() || round <= saved || !misses(state.view())) continue;
    const std::string newest =
        saved == Round() ? "it has no snapshot" : "its newest snapshot is of round " + std::to_string(saved.value);
    not_saved_[id] = {state.view().name(), round,
                      "its view " + std::to_string(state.view().view.value) +
                          " was over, and this server kept the state in memory for the next one until it was told to "
                          "stop; " +
                          newest};
    logger_->error("job '{}': the state of round {} is not saved: {}", state.view().name(), round.value,
                   not_saved_[id].reason);
  }
}

void ControlJobs::tick() {
  const std::uint64_t now = output_.now_ms();
  part_copies_.tick();
  repeat_facts(now);
  if (trace_) {
    const Job* traced = find(trace_->order().job, trace_->order().view);
    const bool none = !traced || traced->lanes.empty();
    if (none || traced->status.min_version().value > trace_->order().last.value) end_trace();
  }
  const auto old = std::ranges::find_if(
      parked_, [&](auto& entry) { return now > entry.second.until_ms && !that_waits_for(entry.second); });
  if (old == parked_.end()) return;
  const JobId id = old->first;
  const ViewId view = old->second.view().view;
  logger_->warn("job '{}': nobody came back for the state of view {}; it is dropped", old->second.view().name(),
                view.value);
  unpark(id);
  output_.send(ShardKept{id, view, false, {}, {}});
}

void ControlJobs::reply_done(const Job& job, Round round, const Status& saved, std::uint64_t bytes) {
  ControlJobStatus& status = jobs_.at(job.view().job).status;
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
  Job* job = find(id, view);
  // A job that ends captures every chunk again.
  if (!job || job->status.snapshot_pending != round || job->ending) return;
  job->missed_snapshot = true;
  snapshotter_->abandon(id, round,
                        "lane " + std::to_string(lane.value) + " is past round " + std::to_string(round.value) +
                            " already, or still captures an earlier one");
}

void ControlJobs::lane_parked(JobId id, ViewId view, bool any, Version min, Version max) {
  const auto found = parked_.find(id);
  if (found == parked_.end() || found->second.view().view != view || found->second.parking == 0) return;
  Parked& state = found->second;
  state.all = state.all && any;
  state.min_version = std::min(state.min_version, min);
  state.max_version = std::max(state.max_version, max);
  if (--state.parking != 0) return;
  if (state.never_began()) return take_up(id);
  if (state.asked) parked(id, state);
}

void ControlJobs::lane_stopped(JobId id, ViewId view, Round round, bool kept) {
  if (kept) return;
  const Job* job = find(id, view);
  if (!job || !job->ending) return;
  snapshotter_->abandon(id, round,
                        "not every chunk was at round " + std::to_string(round.value) + " when the job stopped");
}

// Returns whether another one of the same round is under way, which was ordered meanwhile.
bool ControlJobs::write_ended(JobId id, ViewId view, Round round) {
  const auto ended = writing_.find({id, view, round});
  if (ended == writing_.end()) return false;
  writing_.erase(ended);
  cleared(id);
  const auto kept = parked_.find(id);
  const auto save = kept == parked_.end() ? std::nullopt : std::exchange(kept->second.save, std::nullopt);
  if (save) on(*save);
  return writing_.contains({id, view, round});
}

void ControlJobs::snapshot_finished(const SnapshotDone& done) {
  if (write_ended(done.job, done.view, done.round) && !done.ok) return;  // that one will report
  const Job* job = find(done.job, done.view);
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
