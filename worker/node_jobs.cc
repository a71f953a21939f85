// Trainers coming and going; what happens to a view of a job is in node_jobs_view.cc.
#include "worker/node_jobs.h"

#include <algorithm>

#include "common/base/utf8.h"
#include "common/config/job_json.h"
#include "session/session.h"

namespace tributary {

std::vector<JobProgress> progress_of(const std::vector<NodeJobSummary>& summaries) {
  std::vector<JobProgress> progress;
  for (const NodeJobSummary& summary : summaries) {
    if (!summary.job) continue;
    const NodeJob& job = *summary.job;
    progress.push_back({job.view().job, job.view().view, job.min_version(), job.max_version()});
  }
  return progress;
}

NodeJobs::NodeJobs(NodeJobsOptions options, TrainerPort& trainers, CoordinatorPort& coordinator, LanePort& lanes,
                   Logger logger)
    : options_(options),
      trainers_(trainers),
      coordinator_(coordinator),
      lanes_(lanes),
      logger_(std::move(logger)),
      budget_(std::make_shared<MemoryBudget>(options.max_memory)),
      redo_(budget_, options.max_redo_rounds, logger_) {}

NodeJobs::~NodeJobs() {
  for (Entry& entry : entries_) close_lanes(entry, false);
}

std::string NodeJobs::who(const Entry& entry, std::uint32_t local_rank) const {
  const Place& place = entry.places.at(local_rank);
  return "trainer rank " + std::to_string(place.rank) + " (pid " + std::to_string(place.pid) + ") on node " +
         std::to_string(entry.node.value);
}

NodeJobs::Entry* NodeJobs::open_entry(const std::string& name) {
  const auto at = std::ranges::find_if(entries_, [&](const Entry& entry) {
    return entry.name() == name && (entry.phase == Phase::kGathering || entry.phase == Phase::kJoining ||
                                    entry.phase == Phase::kAgreeing || entry.phase == Phase::kRunning);
  });
  return at == entries_.end() ? nullptr : &*at;
}

std::pair<NodeJobs::Entry*, NodeJobs::Place*> NodeJobs::find(TrainerId trainer) {
  for (Entry& entry : entries_) {
    for (auto& [local_rank, place] : entry.places) {
      if (place.connected && place.trainer == trainer) return {&entry, &place};
    }
  }
  return {nullptr, nullptr};
}

bool NodeJobs::known(TrainerId trainer) const {
  return const_cast<NodeJobs*>(this)->find(trainer).first != nullptr;
}

void NodeJobs::refuse(TrainerId trainer, const Error& error) {
  logger_->warn("refused a trainer: {}", error.message);
  trainers_.send(trainer, AttachError{error.code, error.message});
}

// May this trainer become part of `entry` (null: the first of its job)?
Status NodeJobs::admit(Entry* entry, const AttachRequest& request, const JobConfig& config) const {
  const Topology topology{request.rank, request.world_size, request.local_rank, request.local_world_size,
                          request.node_rank};
  if (Status status = topology.validate(); !status) return status;
  if (request.local_world_size > kMaxLocalRanks) {
    return fail(ErrorCode::kLimit, "local_world_size " + std::to_string(request.local_world_size) +
                                       " is over the limit of " + std::to_string(kMaxLocalRanks) + " ranks per node");
  }
  if (options_.devices) {
    if (Status status = options_.devices->admit(request.device); !status) return status;
  }
  if (!is_utf8(request.computes_with)) {
    return fail(ErrorCode::kInvalidArgument, "what rank " + std::to_string(request.rank) +
                                                 " says it computes with is no UTF-8; say it in ASCII, or nothing");
  }
  if (request.tensors.empty())
    return fail(ErrorCode::kInvalidArgument, "no tensor was declared; a job has at least one");
  if (!entry) {
    const auto layout = Layout::unowned(request.tensors);
    if (!layout) return tl::unexpected(layout.error());
    const std::uint64_t bytes = NodeJob::bytes_needed(*layout, request.local_world_size, config.push);
    // On devices it takes less; NodeJob::create() has the last word.
    const bool on_devices = options_.devices && options_.devices->api() && !request.device.empty();
    if (bytes > budget_->limit() && !on_devices) {
      return fail(ErrorCode::kLimit,
                  job_in_words(config.name) + " with " + std::to_string(request.local_world_size) +
                      " local ranks needs " + std::to_string(bytes) +
                      " bytes of memory on this node, the worker may use " + std::to_string(budget_->limit()) +
                      "; raise [limits] max_shared_memory in worker.toml, or use fewer ranks per node");
    }
    if (entries_.size() >= kMaxJobs) {
      return fail(ErrorCode::kLimit,
                  "this worker has " + std::to_string(kMaxJobs) + " jobs already; wait for one to end");
    }
    return {};
  }
  if (request.node_rank != entry->node.value) {
    return fail(ErrorCode::kTopology, "this worker serves node_rank " + std::to_string(entry->node.value) + " of " +
                                          job_in_words(entry->name()) + ", the trainer says node_rank " +
                                          std::to_string(request.node_rank) +
                                          "; every node needs a worker daemon with a socket of its own");
  }
  if (request.world_size != entry->world_size || request.local_world_size != entry->local_world_size) {
    return fail(ErrorCode::kTopology,
                "rank " + std::to_string(request.rank) + " says world_size " + std::to_string(request.world_size) +
                    " and local_world_size " + std::to_string(request.local_world_size) + ", the others of " +
                    job_in_words(entry->name()) + " on this node say " + std::to_string(entry->world_size) + " and " +
                    std::to_string(entry->local_world_size));
  }
  if (const auto place = entry->places.find(request.local_rank); place != entry->places.end()) {
    if (place->second.connected) {
      return fail(ErrorCode::kTopology, "local_rank " + std::to_string(request.local_rank) + " of " +
                                            job_in_words(entry->name()) + " is attached already, by pid " +
                                            std::to_string(place->second.pid) +
                                            "; give every trainer its own local_rank, or end that process first");
    }
    return fail(ErrorCode::kUnavailable,
                "local_rank " + std::to_string(request.local_rank) + " of " + job_in_words(entry->name()) +
                    " has left, but other ranks of this node have not; attach again when they have");
  }
  // Of an entry that nobody is attached to any more nothing binds a newcomer; entries are erased then, so somebody is.
  if (const std::string difference = describe_difference(entry->tensors, request.tensors); !difference.empty()) {
    return fail(ErrorCode::kLayoutMismatch, "rank " + std::to_string(request.rank) +
                                                " declares other tensors than the ranks of " +
                                                job_in_words(entry->name()) + " that are attached: " + difference +
                                                "; start the same model on every rank");
  }
  if (const std::string difference = describe_any_config_difference(entry->plan->config, config); !difference.empty()) {
    return fail(ErrorCode::kConfigMismatch, "rank " + std::to_string(request.rank) +
                                                " brings another configuration than the ranks of " +
                                                job_in_words(entry->name()) + " that are attached: " + difference +
                                                "; use the same job file on every rank");
  }
  return {};
}

void NodeJobs::attach(TrainerId trainer, const AttachRequest& request, int peer_pid, std::uint64_t now_ms,
                      FileDescriptor kept) {
  if (find(trainer).first) {
    return refuse(trainer,
                  {ErrorCode::kInvalidArgument, "this connection has attached already; a session attaches once"});
  }
  if (draining_) {
    return refuse(trainer,
                  {ErrorCode::kUnavailable, "the worker daemon is being stopped; attach again when it is back"});
  }
  Result<JobConfig> config = job_from_json(request.job_json);
  if (!config) return refuse(trainer, config.error());
  Entry* entry = open_entry(config->name);
  if (Status admitted = admit(entry, request, *config); !admitted) return refuse(trainer, admitted.error());
  if (!entry) {
    entry = &entries_.emplace_back();
    entry->plan = JobPlan::of(*config);
    entry->tensors = request.tensors;
    entry->node = NodeRank(request.node_rank);
    entry->world_size = request.world_size;
    entry->local_world_size = request.local_world_size;
  }
  Place place;
  place.trainer = trainer;
  place.rank = request.rank;
  place.pid = peer_pid > 0 ? peer_pid : request.pid;
  place.device = request.device;
  place.gradients_move = request.gradients_move;
  place.computes_with = request.computes_with;
  entry->places[request.local_rank] = place;
  if (kept) redo_.adopt(entry->plan->config, entry->node, entry->tensors, std::move(kept), now_ms);
  logger_->info("{}: {} attached ({} of {} local ranks)", job_in_words(entry->name()), who(*entry, request.local_rank),
                entry->places.size(), entry->local_world_size);
  if (entry->phase == Phase::kGathering && entry->places.size() == entry->local_world_size) join(*entry, now_ms);
}

void NodeJobs::join(Entry& entry, std::uint64_t now_ms) {
  entry.phase = Phase::kJoining;
  entry.next_ms = now_ms + kJoinRepeatMs;
  const JobConfig& config = entry.plan->config;
  JoinJob message;
  message.job_json = to_canonical_json(config);
  message.tensors = entry.tensors;
  message.node = entry.node;
  message.nodes = entry.world_size / entry.local_world_size;
  message.local_world_size = entry.local_world_size;
  message.world_size = entry.world_size;
  for (const auto& [local, place] : entry.places) add_kind(message.computes_with, place.computes_with);
  const bool on_host = !options_.devices || !options_.devices->api() ||
                       std::ranges::all_of(entry.places, [](const auto& p) { return p.second.device.empty(); });
  message.on_devices = !on_host;
  if (on_host) {
    if (redo_.busy(entry.name())) {
      entry.next_ms = now_ms + kRingRetryMs;
      return;
    }
    const std::string why_not = redo_.describe(config, message);
    if (!why_not.empty() && !entry.told_of_redo) {
      entry.told_of_redo = true;
      logger_->warn(
          "{}: what this node pushes is not kept for lost servers: {}; after the loss of a server the job "
          "goes back to its last snapshot",
          job_in_words(entry.name()), why_not);
    }
  }
  if (!on_servers(config)) {
    // It goes on from node 0's; one of another node says that node 0 was another machine, or has lost its own.
    const Result<Layout> layout = bucket_layout(entry.tensors, config.chunk_bytes);
    if (!layout) return fail_view(entry, layout.error());
    const Result<std::optional<Round>> checkpoint = lanes_.newest_checkpoint(config, *layout);
    if (!checkpoint) return fail_view(entry, checkpoint.error());
    if (!*checkpoint) {
      entry.next_ms = now_ms + kCheckpointRetryMs;
      return;
    }
    message.checkpoint_round = **checkpoint;
  }
  if (joined_.size() >= kMaxJoined) joined_.erase(joined_.begin());
  joined_[entry.name()] = entry.node;
  coordinator_.send(message);
}

void NodeJobs::initial_values(TrainerId trainer) {
  const auto [entry, place] = find(trainer);
  if (!entry || entry->phase != Phase::kRunning) return;
  if (place->rank != 0 || !entry->job->spec().init()) {
    return refuse(trainer, {ErrorCode::kInvalidArgument, "rank " + std::to_string(place->rank) +
                                                             " sent initial values; only rank 0 of a fresh job does"});
  }
  lanes_.initial_values(entry->job);
}

// To be kept with a snapshot; the coordinator knows which rounds it wants.
void NodeJobs::rank_state(TrainerId trainer, const RankState& state) {
  const auto [entry, place] = find(trainer);
  if (!entry || !entry->view || (entry->phase != Phase::kRunning && entry->phase != Phase::kOver)) return;
  const auto local_rank =
      std::ranges::find_if(entry->places, [&, at = place](const auto& p) { return &p.second == at; })->first;
  coordinator_.send(NodeRankState{entry->view->job, entry->view->view, entry->node, local_rank, state});
}

void NodeJobs::detach(TrainerId trainer, const Detach& detach, std::uint64_t now_ms) {
  const auto [entry, place] = find(trainer);
  trainers_.send(trainer, DetachReply{});
  if (!entry || place->left || entry->phase < Phase::kRunning) return;
  const auto local_rank =
      std::ranges::find_if(entry->places, [&, at = place](const auto& p) { return &p.second == at; })->first;
  if (entry->phase == Phase::kRunning && detach.kind == LeaveKind::kFailed) {
    lost(*entry, local_rank, "failed: " + (detach.message.empty() ? "no reason given" : detach.message), now_ms);
    return;
  }
  place->left = detach.kind;
  if (detach.kind == LeaveKind::kStopped && entry->stopped_by.empty()) entry->stopped_by = detach.message;
  if (entry->phase == Phase::kRunning) leave_if_all_detached(*entry, now_ms);
  tell_saved(*entry);
}

void NodeJobs::gone(TrainerId trainer, std::uint64_t now_ms) {
  const auto [entry, place] = find(trainer);
  if (!entry) return;
  const auto local_rank =
      std::ranges::find_if(entry->places, [&, at = place](const auto& p) { return &p.second == at; })->first;
  const bool detached = place->left.has_value();
  const std::string name = who(*entry, local_rank);
  place->connected = false;
  switch (entry->phase) {
    case Phase::kAgreeing:
      coordinator_.send(LeaveJob{entry->view->job, entry->view->view, entry->node, LeaveKind::kFailed,
                                 entry->agreement->welcome.resume_round, name + " left before the job began",
                                 entry->name()});
      entry->agreement.reset();
      entry->phase = Phase::kGathering;
      entry->places.erase(local_rank);
      break;
    case Phase::kJoining:
      coordinator_.send(LeaveJob{JobId(), ViewId(), entry->node, LeaveKind::kFailed, Round(),
                                 name + " left before the job began", entry->name()});
      entry->phase = Phase::kGathering;
      [[fallthrough]];
    case Phase::kGathering:
      logger_->info("{}: {} left before the job began", job_in_words(entry->name()), name);
      entry->places.erase(local_rank);
      break;
    case Phase::kRunning: {
      // After a stop at a round boundary a trainer may simply go.
      const auto state = static_cast<RegionState>(entry->job->header().state.load(std::memory_order_relaxed));
      if (detached) break;
      if (state == RegionState::kStopped) {
        place->left = LeaveKind::kStopped;
        leave_if_all_detached(*entry, now_ms);
      } else {
        lost(*entry, local_rank, "died", now_ms);
      }
      break;
    }
    case Phase::kLeft:
    case Phase::kOver:
      break;
  }
  erase_finished();
}

// A member is lost while the job runs: the view is over here, and the coordinator ends it everywhere.
void NodeJobs::lost(Entry& entry, std::uint32_t local_rank, const std::string& what, std::uint64_t) {
  const std::string reason = who(entry, local_rank) + " " + what;
  entry.places.at(local_rank).left = LeaveKind::kFailed;
  leave(entry, LeaveKind::kFailed, reason);
  end_view(entry, StopKind::kRestart, entry.leave->round, reason);
}

void NodeJobs::erase_finished() {
  std::erase_if(entries_, [](const Entry& entry) {
    const bool empty = std::ranges::none_of(entry.places, [](const auto& place) { return place.second.connected; });
    return empty && (entry.phase == Phase::kOver || entry.phase == Phase::kGathering);
  });
}

bool NodeJobs::drained() const {
  const auto awaited = [](const auto& entry) { return entry.second.connected && !entry.second.left; };
  // Trainers that have detached, or whose view was cut, may take their time to close.
  const bool busy = std::ranges::any_of(entries_, [&](const Entry& entry) {
    return entry.phase == Phase::kRunning ||
           (entry.phase == Phase::kOver && entry.in_order && std::ranges::any_of(entry.places, awaited)) ||
           (!drain_done_ && awaits_saved(entry)) ||
           (!drain_done_ &&
            (entry.phase == Phase::kJoining || entry.phase == Phase::kAgreeing || entry.phase == Phase::kLeft));
  });
  return draining_ && !busy && (drain_done_ || checkpointed_.empty());
}

void NodeJobs::drain() {
  if (draining_) return;
  draining_ = true;
  coordinator_.send(DrainRequest{options_.incarnation});
  for (Entry& entry : entries_) {
    if (entry.phase == Phase::kRunning) {
      entry.job->set_state(RegionState::kStopRequested);
    } else if (entry.phase < Phase::kRunning) {
      fail_view(entry, {ErrorCode::kUnavailable, "the worker daemon is being stopped; attach again when it is back"});
    }
  }
  erase_finished();
}

void NodeJobs::abandon(const std::string& reason, std::uint64_t) {
  for (Entry& entry : entries_) {
    if (entry.phase == Phase::kRunning) {
      leave(entry, LeaveKind::kFailed, reason);
      end_view(entry, StopKind::kRestart, entry.leave->round, reason);
    }
  }
  entries_.clear();
}

std::vector<NodeJobSummary> NodeJobs::summaries() const {
  static constexpr const char* kNames[] = {"gathering", "joining", "agreeing", "running", "left", "over"};
  std::vector<NodeJobSummary> result;
  for (const Entry& entry : entries_) {
    NodeJobSummary summary;
    summary.name = entry.name();
    summary.phase = kNames[static_cast<int>(entry.phase)];
    summary.node = entry.node.value;
    summary.local_world_size = entry.local_world_size;
    summary.world_size = entry.job ? entry.ranks_in_view : entry.world_size;
    summary.last_refusal = entry.last_refusal;
    summary.job = entry.job;
    for (const auto& [local_rank, place] : entry.places) {
      if (place.connected) summary.attached.push_back({place.rank, local_rank, place.pid});
    }
    result.push_back(std::move(summary));
  }
  return result;
}

}  // namespace tributary
