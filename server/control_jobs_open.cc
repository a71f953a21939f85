// Opens jobs: deals the layout's parts to the lanes, and drops old snapshots before a view begins. (Loading the state
// that the view begins with: control_jobs_load.cc.)
#include <algorithm>

#include "common/base/quantity.h"
#include "common/config/job_json.h"
#include "common/config/step_runs.h"
#include "common/wire/redo_plan.h"
#include "server/control_jobs.h"

namespace tributary {

// The first round whose snapshots are beyond where the job's view begins. A fresh job begins before any round.
Round ControlJobs::first_beyond(const Job& job) {
  return job.status.resumed ? job.view().start.next() : Round(0);
}

void ControlJobs::on(const OpenJob& m) {
  if (const Job* job = find(m.job, m.view)) {  // repeated, because the answer was lost, or has yet to come
    if (job->status.phase == "running") output_.send(ShardReady{m.job, m.view, true, {}, {}});
    return;
  }
  if (const auto before = jobs_.find(m.job); before != jobs_.end()) {
    if (before->second.ending && parked_.contains(m.job)) {
      jobs_.erase(before);  // what lanes keep was being written
    } else if (!keep_load(m.job, "the job opens again")) {
      drop(m.job, "the job opens again");
    }
  }
  const auto kept = parked_.find(m.job);
  const bool keeps =
      kept != parked_.end() && kept->second.parking == 0 && kept->second.all && !kept->second.never_began();
  if (m.kept && !keeps) {
    return opened(
        m.job, m.view,
        fail(ErrorCode::kUnavailable, "server " + std::to_string(config_.index) + " does not have the state of job " +
                                          std::to_string(m.job.value) + " in memory any more; attach again"));
  }
  Job job;
  job.kept = m.kept;
  std::vector<ShardJob> parts;
  const Status fits = prepare(m, job, parts);
  if (fits && m.resume && !m.kept) job.load = load_for(job.view());
  if (!m.kept && !job.load) unpark(m.job);
  if (!fits) return opened(m.job, m.view, fits);
  const auto on_kept = [&](const ShardJob& part) {
    return std::ranges::find(kept->second.lanes, part.lane) != kept->second.lanes.end();
  };
  if (m.kept && (parts.size() != kept->second.lanes.size() || !std::ranges::all_of(parts, on_kept))) {
    return opened(
        m.job, m.view,
        fail(ErrorCode::kTopology, "the state that server " + std::to_string(config_.index) + " kept of job '" +
                                       job.view().name() + "' lies on other lanes than the view puts its chunks on"));
  }
  if (m.kept) parked_.erase(m.job);  // now the lanes' again
  for (ShardJob& part : parts) {
    auto gauges = std::make_shared<LaneJobGauges>(part.plan().has_clocks() ? part.view->nodes : 0);
    job.lanes.push_back(part.lane);
    job.status.gauges.push_back(gauges);
    LaneCommands& lane = *lanes_[part.lane.value];
    if (job.load) {
      job.parts.push_back(std::move(part));
    } else if (m.kept) {
      lane.reopen(std::move(part), std::move(gauges));
    } else {
      lane.open(std::move(part), std::move(gauges));
    }
  }
  job.opening = job.lanes.size();
  // Forget unwritten snapshots of an earlier training with that name, which is gone.
  std::erase_if(not_saved_,
                [&](const auto& lost) { return lost.first != m.job && lost.second.job == job.view().name(); });
  Job& placed = jobs_.emplace(m.job, std::move(job)).first->second;
  output_.changed();
  if (copies_.saving(m.job)) {
    ++placed.opening;
    copies_.after(m.job, [this, id = m.job, view = m.view] { part_opened(id, view, {}); });
  }
  if (end_snapshots(placed)) {
    forget_snapshots(placed);
  } else {
    placed.clearing = true;
    ++placed.opening;
  }
  if (placed.load) {
    take_up(m.job);
  } else if (m.resume && !m.kept && !placed.lanes.empty()) {
    load(placed, m.copy);
  } else {
    for (const LaneIndex lane : placed.lanes) lanes_[lane.value]->opened(m.job, m.view, false);
  }
  if (placed.opening == 0) return opened(m.job, m.view, Status(placed.opened));  // no lane has a part of it
}

// Drops snapshots beyond the round that the view begins at: not every server completed them. They belong to a view that
// is over, perhaps with another configuration or topology, and must not be taken for parts of this view's snapshots. So
// no view opens here before all of them are gone, in the store and on their way to it. A fresh job begins before any
// round.
void ControlJobs::forget_snapshots(Job& job) {
  const JobId id = job.view().job;
  const Round first = first_beyond(job);
  const auto beyond = [&](const StoredJob& stored) {
    return stored.job == id && std::ranges::any_of(stored.snapshots, [&](Round round) { return round >= first; });
  };
  if (!store_ || std::ranges::none_of(store_->jobs(), beyond)) return;
  ++job.opening;
  drop_stored(id, first, Round(~0ull), [this, id, view = job.view().view](const Status& dropped) {
    output_.hello();  // reports the remaining snapshots to the coordinator
    const Job* opening = find(id, view);
    if (!opening) return;
    if (dropped) return part_opened(id, view, {});
    part_opened(id, view,
                fail(ErrorCode::kUnavailable,
                     "server " + std::to_string(config_.index) + " has snapshots of an earlier view of job '" +
                         opening->view().name() + "' that must go before the next one opens, and cannot drop them: " +
                         dropped.error().message + "; then attach again"));
  });
}

// False: some of an earlier view's are still being written, or copied from another server.
bool ControlJobs::end_snapshots(const Job& job) {
  const JobId id = job.view().job;
  const bool copying = fetches_.give_up(id, first_beyond(job));
  const auto first = writing_.lower_bound({id, ViewId(0), Round(0)});
  std::vector<Round> rounds;
  for (auto at = first; at != writing_.end() && std::get<JobId>(*at) == id; ++at) {
    rounds.push_back(std::get<Round>(*at));
  }
  for (const Round round : rounds) snapshotter_->abandon(id, round, "the job's next view opens");
  return rounds.empty() && !copying;
}

// Snapshots of earlier views have ended: then they can go.
void ControlJobs::cleared(JobId id) {
  const auto found = jobs_.find(id);
  if (found == jobs_.end() || !found->second.clearing) return;
  const auto left = writing_.lower_bound({id, ViewId(0), Round(0)});
  if ((left != writing_.end() && std::get<JobId>(*left) == id) || fetches_.ending(id)) return;
  Job& job = found->second;
  job.clearing = false;
  forget_snapshots(job);
  part_opened(id, job.view().view, {});
}

// Checks the message and makes every lane's part of the job. Lanes without chunks get none.
Status ControlJobs::prepare(const OpenJob& m, Job& job, std::vector<ShardJob>& parts) const {
  Result<JobConfig> config = job_from_json(m.job_json);
  if (!config) return tl::unexpected(config.error());
  Result<Layout> made = Layout::with_owners(m.tensors, m.chunk_elements, m.owners);
  if (!made) return tl::unexpected(made.error());
  if (Status known = check_groups(*config, m.tensors); !known) return known;
  if (m.resume && !store_) return fail(ErrorCode::kStore, no_store() + " to resume job '" + config->name + "'");
  if (m.nodes == 0) return fail(ErrorCode::kTopology, "job '" + config->name + "' has no nodes");
  Result<ModelRanks> model_ranks = ModelRanks::of(m.model_ranks, m.nodes, m.tensors);
  if (!model_ranks) {
    return fail(model_ranks.error().code, "job '" + config->name + "': " + model_ranks.error().message);
  }
  const auto plan = JobPlan::of(std::move(*config));
  const auto view =
      std::make_shared<const ViewPlan>(ViewPlan{.plan = plan,
                                                .job = m.job,
                                                .view = m.view,
                                                .nodes = m.nodes,
                                                .layout = std::make_shared<const Layout>(std::move(*made)),
                                                .start = m.resume ? m.resume_round : Round(0),
                                                .resumes = m.resume || m.kept,
                                                .model_ranks = std::move(*model_ranks),
                                                .worker_keys = m.worker_keys});
  const Layout& layout = *view->layout;
  ControlJobStatus& status = job.status;
  status.view = view;

  const ShardIndex shard(config_.index);
  std::vector<std::uint32_t> chunks(lanes_.size(), 0);
  for (std::uint32_t c = 0; c < layout.chunks(); ++c) {
    const ChunkOwner owner = layout.owner(ChunkIndex(c));
    if (owner.shard != shard) continue;
    if (owner.lane.value >= lanes_.size()) {
      return fail(ErrorCode::kTopology, "chunk " + std::to_string(c) + " of job '" + plan->name() +
                                            "' belongs to lane " + std::to_string(owner.lane.value) + ", but server " +
                                            std::to_string(shard.value) + " has " + std::to_string(lanes_.size()) +
                                            " lanes");
    }
    ++chunks[owner.lane.value];
    ++status.chunks;
    const std::uint64_t elements = layout.chunk(ChunkIndex(c)).elements;
    status.elements += elements;
    status.memory.largest_chunk = std::max(status.memory.largest_chunk, elements);
  }
  for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
    if (chunks[lane] != 0)
      parts.push_back({view, shard, LaneIndex(static_cast<std::uint16_t>(lane)), plan->has_rounds()});
  }

  status.phase = "opening";
  status.resumed = m.resume;
  if (m.resume) status.snapshot_durable = status.snapshot_committed = m.resume_round;
  status.memory.elements = status.elements;
  status.memory.chunks = status.chunks;
  if (!parts.empty()) status.memory.arrays = chunk_arrays(parts.front());
  status.memory.nodes = m.nodes;
  status.memory.lanes = static_cast<std::uint16_t>(parts.size());
  status.memory.push = plan->config.push;
  return check_memory(job);
}

// Bytes that a job may make this server take.
std::uint64_t ControlJobs::memory_of(const ControlJobStatus& status) const {
  return status.chunks == 0 ? 0 : memory_at_most(status.memory, store_ != nullptr);
}

// Refuses a job that does not fit next to the others, before it takes any memory, so that the others continue.
Status ControlJobs::check_memory(const Job& job) const {
  const std::uint64_t needed = memory_of(job.status);
  if (config_.max_memory == 0 || needed == 0) return {};
  std::map<JobId, std::pair<std::string, std::uint64_t>> others;  // jobs that are open, or kept for a next view
  for (const auto& [id, other] : jobs_) others[id] = {"job '" + other.view().name() + "'", memory_of(other.status)};
  for (const auto& [id, kept] : parked_)
    others[id] = {"job '" + kept.view().name() + "' between two views", memory_of(kept.status)};
  others.erase(job.view().job);
  std::uint64_t taken = 0;
  std::string names;
  for (const auto& [id, other] : others) {
    if (other.second == 0) continue;
    taken += other.second;
    names += (names.empty() ? " (" : ", ") + other.first + ": " + memory_in_words(other.second);
  }
  if (!names.empty()) names += ")";
  if (needed <= config_.max_memory && taken <= config_.max_memory - needed) return {};
  return fail(ErrorCode::kLimit, "job '" + job.view().name() + "' needs up to " + memory_in_words(needed) +
                                     " on server " + std::to_string(config_.index) + ", where jobs may take " +
                                     memory_in_words(config_.max_memory) + ", and others have " +
                                     memory_in_words(taken) + names +
                                     "; raise [limits] max_memory in server.toml, use more servers, or wait for "
                                     "another job to end");
}

void ControlJobs::opened(JobId id, ViewId view, const Status& status) {
  ShardReady ready;
  ready.job = id;
  ready.view = view;
  ready.ok = status.has_value();
  if (status) {
    Job& job = jobs_.at(id);
    job.status.phase = "running";
    if (job.load) job.load->began = true;
    logger_->info("job '{}' view {} is open: {} chunks on {} lanes, {}", job.view().name(), view.value,
                  job.status.chunks, job.lanes.size(), job.status.resumed ? "resumed" : "fresh");
  } else {
    ready.code = status.error().code;
    ready.message = status.error().message;
    const Job* job = find(id, view);  // else it was refused before it was anything
    logger_->error("job '{}' view {} cannot open: {}", job ? job->view().name() : std::to_string(id.value), view.value,
                   ready.message);
    // The next view can also use the state that lanes kept of the last one, or have loaded.
    const std::string why = "it could not open";
    if (job && !keep_load(id, why)) job->kept ? park(id, why) : drop(id, why);
  }
  output_.send(std::move(ready));
}

// One thing has ended that the opening waits for.
void ControlJobs::part_opened(JobId id, ViewId view, const Status& status) {
  Job* job = find(id, view);
  if (!job || job->opening == 0) return;
  if (job->opened && !status) job->opened = status;
  if (--job->opening == 0) opened(id, view, Status(job->opened));
}

}  // namespace tributary
