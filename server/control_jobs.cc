#include "server/control_jobs.h"

#include <algorithm>

#include "common/job_json.h"
#include "common/job_optimizer.h"
#include "common/redo_plan.h"
#include "common/schedule.h"

namespace tributary {
namespace {

std::string no_store(const ServerConfig& config) {
  return "server " + std::to_string(config.index) + " has no store configured; set [store] path in its configuration";
}

std::optional<ClockRules> clock_rules(const JobConfig& config) {
  if (!has_clocks(config)) return std::nullopt;
  ClockRules rules;
  if (has_backups(config)) rules.backups = config.sync.backup_workers;
  if (config.mode == "ssp") rules.staleness = config.ssp.staleness;
  rules.lr_by_staleness = config.ssp.lr_by_staleness;
  rules.delay_compensation = config.ssp.delay_compensation;
  return rules;
}

}  // namespace

ControlJobs::ControlJobs(ServerConfig config, Store* store, Logger logger, ControlJobsOutput& output)
    : config_(std::move(config)), store_(store), logger_(std::move(logger)), output_(output) {}

void ControlJobs::start(std::vector<LaneCommands*> lanes, SnapshotOrders* snapshots, RedoLogs* logs) {
  lanes_ = std::move(lanes);
  snapshotter_ = snapshots;
  logs_ = logs;
}

void ControlJobs::park_all(const std::string& why) {
  while (!jobs_.empty()) park(jobs_.begin()->first, why);
}

void ControlJobs::describe(ServerHello& hello) const {
  hello.store = store_ != nullptr;
  if (store_) hello.stored = store_->jobs();
  for (StoredJob& stored : hello.stored) {
    if (logs_) stored.log = logs_->range(stored.job);
  }
  for (const auto& [id, parked] : parked_) {
    const bool pending = parked.parking != 0;
    if (pending || parked.all) hello.kept.push_back({id, parked.min_version, parked.max_version, pending});
  }
  // To a coordinator that is new, these are over.
  for (const auto& [id, job] : jobs_) {
    if (job.recovers && job.status.chunks != 0 && !job.ending) hello.kept.push_back({id, {}, {}, true});
  }
}

std::vector<JobProgress> ControlJobs::progress() const {
  std::vector<JobProgress> progress;
  for (const auto& [id, job] : jobs_) {
    if (job.status.chunks == 0) continue;  // owns nothing, so it is never behind
    progress.push_back({id, job.status.view, job.status.min_version(), job.status.max_version()});
  }
  return progress;
}

std::vector<ControlJobStatus> ControlJobs::statuses() const {
  std::vector<ControlJobStatus> all;
  for (const auto& [id, job] : jobs_) {
    all.push_back(job.status);
    if (job.log && logs_) all.back().log = logs_->status(id);
  }
  return all;
}

ControlJobs::Job* ControlJobs::find(JobId id, ViewId view) {
  const auto found = jobs_.find(id);
  return found != jobs_.end() && found->second.status.view == view ? &found->second : nullptr;
}

SnapshotInfo ControlJobs::info(const Job& job, Round round) const {
  return {job.status.job, job.status.name, round, job.layout->hash(), job.status.optimizer, job.status.chunks};
}

void ControlJobs::on(const OpenJob& m) {
  if (const Job* job = find(m.job, m.view)) {  // said again, because the answer was lost, or has yet to come
    if (job->status.phase == "running") output_.send(ShardReady{m.job, m.view, true, {}, {}});
    return;
  }
  if (jobs_.contains(m.job)) drop(m.job, "the job opens again");
  if (m.kept && (!parked_.contains(m.job) || parked_.at(m.job).parking != 0 || !parked_.at(m.job).all)) {
    return opened(
        m.job, m.view,
        fail(ErrorCode::kUnavailable, "server " + std::to_string(config_.index) + " does not have the state of job " +
                                          std::to_string(m.job.value) + " in memory any more; attach again"));
  }
  if (!m.kept) unpark(m.job);
  Job job;
  job.kept = m.kept;
  std::vector<ShardJob> parts;
  if (const Status status = prepare(m, job, parts); !status) return opened(m.job, m.view, status);
  parked_.erase(m.job);  // now the lanes' again
  for (ShardJob& part : parts) {
    auto gauges = std::make_shared<LaneJobGauges>(part.clocks ? part.nodes : 0);
    job.lanes.push_back(part.lane);
    job.status.gauges.push_back(gauges);
    LaneCommands& lane = *lanes_[part.lane.value];
    if (m.kept) {
      lane.reopen(std::move(part), std::move(gauges));
    } else {
      lane.open(std::move(part), std::move(gauges));
    }
  }
  job.opening = job.lanes.size();
  const auto entry = jobs_.emplace(m.job, std::move(job)).first;
  output_.changed();
  forget_snapshots(m);
  begin_log(m, entry->second);
  if (m.resume && !m.kept) {
    if (Status loaded = load(entry->second); !loaded) entry->second.opened = std::move(loaded);
  }
  const Job& placed = entry->second;
  for (const LaneIndex lane : placed.lanes)
    lanes_[lane.value]->opened(m.job, m.view, m.resume && !m.kept && placed.opened);
  if (placed.lanes.empty()) opened(m.job, m.view, placed.opened);
}

// The log goes on where the view begins. One of a fresh job, or of a job that wants none any more, goes.
void ControlJobs::begin_log(const OpenJob& m, const Job& job) {
  if (!logs_) return;
  if (!job.log || (!m.resume && !m.kept)) logs_->drop(m.job);
  if (!job.log || job.status.chunks == 0) return;
  const Round start = std::max(m.resume ? m.resume_round : Round(0), m.replay_to);
  logs_->begin(*job.log, m.kept ? std::nullopt : std::optional(start));
}

// What this store has beyond the round that the view begins at was never completed by every server: it belongs to a run
// that is over, perhaps with another configuration or topology, and must not be taken for a part of this view's
// snapshots. A fresh job begins before any round.
void ControlJobs::forget_snapshots(const OpenJob& m) {
  const auto beyond = [&](const StoredJob& stored) {
    return stored.job == m.job &&
           std::ranges::any_of(stored.snapshots, [&](Round round) { return !m.resume || round > m.resume_round; });
  };
  if (!store_ || std::ranges::none_of(store_->jobs(), beyond)) return;
  const Status dropped =
      m.resume ? store_->drop_after(m.job, m.resume_round) : store_->drop_before(m.job, Round(~0ull));
  if (!dropped) logger_->warn("cannot drop snapshots of an earlier run: {}", dropped.error().message);
  output_.hello();  // tells the coordinator what is still there
}

// Checks the message and makes every lane's part of the job. Lanes without chunks get none.
Status ControlJobs::prepare(const OpenJob& m, Job& job, std::vector<ShardJob>& parts) const {
  Result<JobConfig> config = job_from_json(m.job_json);
  if (!config) return tl::unexpected(config.error());
  Result<Layout> layout = Layout::with_owners(m.tensors, m.chunk_elements, m.owners);
  if (!layout) return tl::unexpected(layout.error());
  std::shared_ptr<const kernels::Optimizer> optimizer = make_optimizer(config->optimizer);
  if (!optimizer) {
    return fail(ErrorCode::kConfig, "optimizer.name = \"" + config->optimizer.name +
                                        "\" is unknown to this server; use sgd, adam, adamw, adagrad, lion or lamb");
  }
  if (m.resume && !store_) return fail(ErrorCode::kStore, no_store(config_) + " to resume job '" + config->name + "'");
  if (m.nodes == 0) return fail(ErrorCode::kTopology, "job '" + config->name + "' has no nodes");
  job.layout = std::make_shared<const Layout>(std::move(*layout));

  const ShardIndex shard(config_.index);
  std::vector<std::uint32_t> chunks(lanes_.size(), 0);
  for (std::uint32_t c = 0; c < job.layout->chunks(); ++c) {
    const ChunkOwner owner = job.layout->owner(ChunkIndex(c));
    if (owner.shard != shard) continue;
    if (owner.lane.value >= lanes_.size()) {
      return fail(ErrorCode::kTopology, "chunk " + std::to_string(c) + " of job '" + config->name +
                                            "' belongs to lane " + std::to_string(owner.lane.value) + ", but server " +
                                            std::to_string(shard.value) + " has " + std::to_string(lanes_.size()) +
                                            " lanes");
    }
    ++chunks[owner.lane.value];
    ++job.status.chunks;
    job.status.elements += job.layout->chunk(ChunkIndex(c)).elements;
  }
  const bool logs = logs_ && log_rounds(*config, m.owners, m.chunk_elements) != 0;
  if (logs) {
    const RedoLog::Limits limits{redo_file_bytes(*config), std::uint64_t{config->recovery.log_mb} << 20};
    job.log = {m.job, config->name, job.status.chunks, limits, config->recovery.when_full == "wait"};
  }
  job.replay_to = m.replay_to;
  for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
    if (chunks[lane] == 0) continue;
    ShardJob part;
    part.job = m.job;
    part.view = m.view;
    part.nodes = m.nodes;
    part.layout = job.layout;
    part.shard = shard;
    part.lane = LaneIndex(static_cast<std::uint16_t>(lane));
    part.optimizer = optimizer;
    part.lr = config->optimizer.lr;
    part.schedule = server_schedule(*config);
    part.push = config->push;
    part.pull = config->pull;
    part.clocks = clock_rules(*config);
    part.start = m.resume ? m.resume_round : Round(0);
    part.recovers = recovers(*config);
    part.logs = logs;
    if (has_gate(*config)) part.gate = config->gate;
    parts.push_back(std::move(part));
  }

  job.recovers = recovers(*config);
  ControlJobStatus& status = job.status;
  status.job = m.job;
  status.view = m.view;
  status.name = config->name;
  status.phase = "opening";
  status.nodes = m.nodes;
  status.optimizer = config->optimizer.name;
  status.resumed = m.resume;
  status.resume_round = m.resume_round;
  if (m.resume) status.snapshot_durable = m.resume_round;
  status.memory.elements = status.elements;
  status.memory.chunks = status.chunks;
  status.memory.slots = optimizer->slots();
  status.memory.nodes = m.nodes;
  status.memory.lanes = static_cast<std::uint16_t>(parts.size());
  status.memory.push = config->push;
  status.memory.pull = config->pull;
  status.memory.clocks = has_clocks(*config);
  status.memory.recovers = job.recovers;
  status.memory.gate = status.gate = has_gate(*config);
  return {};
}

Status ControlJobs::load(const Job& job) {
  if (job.status.chunks == 0) return {};
  std::vector<bool> seen(job.layout->chunks(), false);
  const std::uint64_t started = output_.now_ms();
  const Status loaded = store_->load(info(job, job.status.resume_round),
                                     [&](const LoadedChunk& chunk) { return load_chunk(job, chunk, seen); });
  output_.loaded();
  if (loaded) {
    logger_->info(
        "job '{}' loaded round {}: {} chunks, {} MB in {} ms", job.status.name, job.status.resume_round.value,
        job.status.chunks,
        job.status.elements * sizeof(float) * (1 + static_cast<std::uint64_t>(job.status.memory.slots)) / 1'000'000,
        output_.now_ms() - started);
  }
  return loaded && job.replay_to > job.status.resume_round ? replay(job) : loaded;
}

Status ControlJobs::replay(const Job& job) {
  if (!logs_) return fail(ErrorCode::kStore, no_store(config_) + " to take logged steps again from");
  const std::uint64_t started = output_.now_ms();
  std::uint64_t steps = 0;
  const Status replayed = logs_->replay(
      job.status.job, job.status.resume_round, job.replay_to,
      [&](const LoggedStep& step, std::span<const float> sum) -> Status {
        if (!output_.between_chunks()) return fail(ErrorCode::kStopped, "the server is being stopped");
        if (step.chunk.value >= job.layout->chunks() || job.layout->owner(step.chunk).shard.value != config_.index) {
          return fail(ErrorCode::kStore, "the redo log of job '" + job.status.name + "' has chunk " +
                                             std::to_string(step.chunk.value) +
                                             ", which does not belong to this server; start it with the store it had");
        }
        ++steps;
        lanes_[job.layout->owner(step.chunk).lane.value]->replay(job.status.job, step,
                                                                 std::vector<float>(sum.begin(), sum.end()));
        return {};
      });
  output_.loaded();
  if (replayed) {
    logger_->info("job '{}' took {} logged steps again, up to round {}, in {} ms", job.status.name, steps,
                  job.replay_to.value, output_.now_ms() - started);
  }
  return replayed;
}

Status ControlJobs::load_chunk(const Job& job, const LoadedChunk& loaded, std::vector<bool>& seen) {
  if (!output_.between_chunks()) return fail(ErrorCode::kStopped, "the server is being stopped");
  const std::uint32_t index = loaded.chunk.value;
  const bool ours = index < seen.size() && job.layout->owner(loaded.chunk).shard.value == config_.index;
  // With clocks the version counts pushes; the lane checks the clocks.
  const bool other_round = !job.status.memory.clocks && loaded.version.value != job.status.resume_round.value;
  if (!ours || seen[index] || other_round) {
    return fail(ErrorCode::kStore, "the snapshot of round " + std::to_string(job.status.resume_round.value) +
                                       " of job '" + job.status.name + "' has chunk " + std::to_string(index) +
                                       " at version " + std::to_string(loaded.version.value) +
                                       (!ours         ? ", which does not belong to this server"
                                        : seen[index] ? " twice"
                                                      : ", which is another round") +
                                       "; start the server with the store it had");
  }
  seen[index] = true;
  RestoredChunk chunk;
  chunk.chunk = loaded.chunk;
  chunk.version = loaded.version;
  chunk.step = loaded.step;
  chunk.params.assign(loaded.params.begin(), loaded.params.end());
  for (const std::span<const float> slot : loaded.slots) chunk.slots.emplace_back(slot.begin(), slot.end());
  chunk.estimate.assign(loaded.estimate.begin(), loaded.estimate.end());
  chunk.nodes = loaded.nodes;
  chunk.clocks = loaded.clocks;
  chunk.gate = loaded.gate;
  for (const NodeResidual& residual : loaded.residuals) {
    chunk.residuals.emplace_back(residual.node, std::vector<float>(residual.values.begin(), residual.values.end()));
  }
  lanes_[job.layout->owner(loaded.chunk).lane.value]->restore(job.status.job, std::move(chunk));
  return {};
}

void ControlJobs::opened(JobId id, ViewId view, const Status& status) {
  ShardReady ready;
  ready.job = id;
  ready.view = view;
  ready.ok = status.has_value();
  if (status) {
    Job& job = jobs_.at(id);
    job.status.phase = "running";
    logger_->info("job '{}' view {} is open: {} chunks on {} lanes, {}", job.status.name, view.value, job.status.chunks,
                  job.lanes.size(), job.status.resumed ? "resumed" : "fresh");
  } else {
    ready.code = status.error().code;
    ready.message = status.error().message;
    logger_->error("job {} view {} cannot open: {}", id.value, view.value, ready.message);
    if (find(id, view)) drop(id, "it could not open");
  }
  output_.send(std::move(ready));
}

void ControlJobs::on(const SnapshotAt& m) {
  Job* job = find(m.job, m.view);
  if (!job || job->status.phase != "running" || job->status.chunks == 0)
    return;  // the coordinator has moved on, or will
  if (!store_) {
    if (std::exchange(job->refused_snapshot, true)) return;
    logger_->warn("job '{}' is not kept: {}", job->status.name, no_store(config_));
    return reply_done(*job, m.round, false, 0, no_store(config_));
  }
  if (job->status.snapshot_pending == m.round) return;
  expect_snapshot(*job, m.round, true);
  for (const LaneIndex lane : job->lanes) lanes_[lane.value]->snapshot_at(m.job, m.view, m.round);
}

void ControlJobs::on(const SnapshotCommit& m) {
  if (const auto last = parked_.find(m.job); last != parked_.end() && last->second.last == m.round) unpark(m.job);
  if (logs_) logs_->trim(m.job, m.round);
  if (store_) {
    if (const Status dropped = store_->drop_before(m.job, m.round); !dropped) {
      logger_->warn("cannot drop snapshots before round {}: {}", m.round.value, dropped.error().message);
    }
  }
  if (const auto found = jobs_.find(m.job); found != jobs_.end()) {
    for (const LaneIndex lane : found->second.lanes) lanes_[lane.value]->committed(m.job, m.round);
  }
}

bool ControlJobs::stored(JobId job, Round round) const {
  if (!store_) return false;
  const std::vector<StoredJob> jobs = store_->jobs();
  const auto found = std::ranges::find(jobs, job, &StoredJob::job);
  return found != jobs.end() && std::ranges::find(found->snapshots, round) != found->snapshots.end();
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
  if (!job || !job->status.gate) return;
  std::erase_if(job->undecided, [&](const auto& entry) {
    const RoundFacts& facts = entry.second;
    return facts.round < m.round || (facts.round == m.round && facts.phase <= m.phase);
  });
  ControlJobStatus& status = job->status;
  if (m.round > status.gate_round) {
    status.gate_round = m.round;
    status.decision = m.decision;
    status.rounds_clipped += m.decision.verdict == GateVerdict::kClipped ? 1 : 0;
    status.rounds_skipped += m.decision.verdict == GateVerdict::kSkipped ? 1 : 0;
  }
  for (const LaneIndex lane : job->lanes) lanes_[lane.value]->decide(m);
}

void ControlJobs::on(const StopJob& m) {
  Job* job = find(m.job, m.view);
  if (m.kind == StopKind::kRestart) {
    if (job) return park(m.job, m.reason);
    return tell_parked(m.job, m.view);
  }
  if (!job && stored(m.job, m.round)) {  // said again, because the answer was lost
    return output_.send(SnapshotDone{m.job, m.view, m.round, true, 0, {}});
  }
  if (!job) {
    output_.send(SnapshotDone{m.job, m.view, m.round, false, 0,
                              "job " + std::to_string(m.job.value) + " is not open in view " +
                                  std::to_string(m.view.value) + " on server " + std::to_string(config_.index)});
    return;
  }
  if (job->ending) return;
  logger_->info("job '{}' stops at round {}: {}", job->status.name, m.round.value, m.reason);
  ControlJobStatus& status = job->status;
  status.phase = "stopping";
  if (!store_) {
    stop_lanes(*job, false, m.round);
    reply_done(*job, m.round, false, 0, no_store(config_));
    return finish(m.job);
  }
  if (status.chunks == 0 || status.snapshot_durable == m.round) {  // nothing to keep, or kept already
    stop_lanes(*job, false, m.round, park_last(*job, m.round));    // another server may fail to keep its part
    reply_done(*job, m.round, true, status.snapshot_bytes, {});
    return finish(m.job);
  }
  job->ending = true;
  // One of this very round may be under way: then the lanes' captures are second copies, or fill in what is missing.
  if (status.snapshot_pending != m.round) expect_snapshot(*job, m.round, false);
  stop_lanes(*job, true, m.round, park_last(*job, m.round));
}

// Whether lanes are to keep what the job ends with.
bool ControlJobs::park_last(const Job& job, Round round) {
  if (!job.recovers || job.lanes.empty()) return false;
  Parked state;
  state.view = job.status.view;
  state.lanes = job.lanes;
  state.parking = job.lanes.size();
  state.asked = false;
  state.last = round;
  state.until_ms = output_.now_ms() + kParkedMs;
  parked_[job.status.job] = std::move(state);
  return true;
}

// The snapshotter ends every snapshot with snapshot_finished(); what that says of any but the newest is ignored.
void ControlJobs::expect_snapshot(Job& job, Round round, bool paced) {
  if (job.status.snapshot_pending) {
    snapshotter_->abandon(job.status.job, *job.status.snapshot_pending, "a newer snapshot was asked for");
  }
  job.status.snapshot_pending = round;
  SnapshotPlan plan{info(job, round), job.status.view, {}, paced};
  for (std::uint32_t c = 0; c < job.layout->chunks(); ++c) {
    if (job.layout->owner(ChunkIndex(c)).shard.value == config_.index) plan.chunks.push_back(ChunkIndex(c));
  }
  snapshotter_->expect(std::move(plan));
}

void ControlJobs::stop_lanes(const Job& job, bool keep, Round round, bool park) const {
  for (const LaneIndex lane : job.lanes) {
    lanes_[lane.value]->stop_job(job.status.job, job.status.view, keep, round, park);
  }
}

void ControlJobs::drop(JobId id, const std::string& why) {
  const Job& job = jobs_.at(id);
  logger_->info("job '{}' view {} is dropped: {}", job.status.name, job.status.view.value, why);
  // A final state that is being written goes on: it stays a good snapshot whatever the coordinator became.
  if (job.status.snapshot_pending && !job.ending) snapshotter_->abandon(id, *job.status.snapshot_pending, why);
  stop_lanes(job, false, Round(0));
  jobs_.erase(id);
}

// The view is over without order: what the lanes have stays in memory for the next one, if the job can go on from it.
void ControlJobs::park(JobId id, const std::string& why) {
  const Job& job = jobs_.at(id);
  const ViewId view = job.status.view;
  if (job.ending && parked_.contains(id)) {  // a last state that is being written goes on, as in drop()
    jobs_.erase(id);
    return tell_parked(id, view);
  }
  const bool whole = job.status.phase == "running" || job.kept;  // else it is still being loaded
  if (!job.recovers || job.ending || job.lanes.empty() || !whole) {
    drop(id, why);
    return tell_kept(id, view, false, {}, {});
  }
  logger_->info("job '{}' view {} is over: {}; its state stays in memory", job.status.name, view.value, why);
  if (job.status.snapshot_pending) snapshotter_->abandon(id, *job.status.snapshot_pending, why);
  Parked state;
  state.view = view;
  state.lanes = job.lanes;
  state.parking = job.lanes.size();
  state.until_ms = output_.now_ms() + kParkedMs;
  parked_[id] = state;
  jobs_.erase(id);
  for (const LaneIndex lane : state.lanes) lanes_[lane.value]->park(id, view);
}

// The coordinator asks what is kept: it hears of it when all lanes have said.
void ControlJobs::tell_parked(JobId id, ViewId view) {
  const auto kept = parked_.find(id);
  if (kept == parked_.end()) return tell_kept(id, view, false, {}, {});
  kept->second.asked = true;
  if (kept->second.parking == 0) parked(id, kept->second);
}

// All lanes have said what they keep.
void ControlJobs::parked(JobId id, const Parked& state) {
  tell_kept(id, state.view, state.all, state.min_version, state.max_version);
}

// With what the log has, when all that is on its way to it is there.
void ControlJobs::tell_kept(JobId id, ViewId view, bool any, Version min, Version max) {
  if (!logs_) return output_.send(ShardKept{id, view, any, min, max});
  logs_->flush(id, [this, id, view, any, min, max] {
    output_.post([this, id, view, any, min, max] {
      if (any && !parked_.contains(id)) return;  // opened again, or dropped, in the meantime
      output_.send(ShardKept{id, view, any, min, max, logs_->range(id)});
    });
  });
}

void ControlJobs::unpark(JobId id) {
  const auto found = parked_.find(id);
  if (found == parked_.end()) return;
  for (const LaneIndex lane : found->second.lanes) lanes_[lane.value]->drop_parked(id);
  parked_.erase(found);
}

void ControlJobs::tick() {
  const std::uint64_t now = output_.now_ms();
  repeat_facts(now);
  const auto old = std::ranges::find_if(parked_, [&](const auto& entry) { return now > entry.second.until_ms; });
  if (old == parked_.end()) return;
  const JobId id = old->first;
  const ViewId view = old->second.view;
  logger_->info("job {}: nobody came back for the state of view {}; it is dropped", id.value, view.value);
  unpark(id);
  tell_kept(id, view, false, {}, {});
}

void ControlJobs::reply_done(const Job& job, Round round, bool ok, std::uint64_t bytes, const std::string& message) {
  ControlJobStatus& status = jobs_.at(job.status.job).status;
  if (status.snapshot_pending == round) status.snapshot_pending.reset();
  if (ok) {
    status.snapshot_durable = round;
    status.snapshot_bytes = bytes;
    status.snapshot_error.clear();
  } else {
    status.snapshot_error = message;  // the snapshotter has logged what it could not keep
  }
  output_.send(SnapshotDone{status.job, status.view, round, ok, bytes, message});
}

void ControlJobs::finish(JobId id) {
  logger_->info("job '{}' view {} is closed", jobs_.at(id).status.name, jobs_.at(id).status.view.value);
  jobs_.erase(id);
}

// ---- What the lanes and the snapshotter say ----

void ControlJobs::lane_opened(JobId id, ViewId view, const Status& status) {
  Job* job = find(id, view);
  if (!job || job->opening == 0) return;
  if (job->opened && !status) job->opened = status;
  if (--job->opening == 0) opened(id, view, job->opened);
}

void ControlJobs::lane_snapshot(LaneIndex lane, JobId id, ViewId view, Round round, bool started) {
  if (started) return;
  Job* job = find(id, view);
  // A job that ends captures every chunk again.
  if (!job || job->status.snapshot_pending != round || job->ending) return;
  snapshotter_->abandon(id, round,
                        "lane " + std::to_string(lane.value) + " is past round " + std::to_string(round.value) +
                            " already, or still captures an earlier one");
}

void ControlJobs::lane_parked(JobId id, ViewId view, bool any, Version min, Version max) {
  const auto found = parked_.find(id);
  if (found == parked_.end() || found->second.view != view || found->second.parking == 0) return;
  Parked& state = found->second;
  state.all = state.all && any;
  state.min_version = std::min(state.min_version, min);
  state.max_version = std::max(state.max_version, max);
  if (--state.parking == 0 && state.asked) parked(id, state);
}

void ControlJobs::lane_stopped(JobId id, ViewId view, Round round, bool kept) {
  if (kept) return;
  const Job* job = find(id, view);
  if (!job || !job->ending) return;
  snapshotter_->abandon(id, round,
                        "not every chunk was at round " + std::to_string(round.value) + " when the job stopped");
}

void ControlJobs::snapshot_finished(const SnapshotDone& done) {
  const Job* job = find(done.job, done.view);
  if (!job) {  // dropped in the meantime; what is durable can still be resumed from, so the coordinator should know
    if (done.ok) output_.send(done);
    return;
  }
  if (job->status.snapshot_pending != done.round) return;
  reply_done(*job, done.round, done.ok, done.bytes, done.message);
  if (job->ending) finish(done.job);
}

}  // namespace tributary
