// What happens to a view of a job: welcome, stops, losses, leaving.
#include <algorithm>
#include <type_traits>
#include <utility>

#include "worker/node_jobs.h"
#include "worker/reduce/host_reducer.h"

namespace tributary {
namespace {

// May a view of the job begin so? What the welcome says of redo is what lanes and reducers count on.
Status redo_fits(const JobConfig& config, const Layout& layout, const JobWelcome& m) {
  if (m.redo && !has_rounds(config)) {
    return fail(ErrorCode::kMalformed, "the coordinator wants the pushes of " + job_in_words(config.name) +
                                           " to be kept, whose configuration rules that out; coordinator and workers "
                                           "must be of the same release");
  }
  for (std::uint32_t c = 0; c < layout.chunks() && !m.redo_after.empty(); ++c) {
    const std::uint16_t shard = layout.owner(ChunkIndex(c)).shard.value;
    if (shard < m.redo_after.size()) continue;
    return fail(ErrorCode::kMalformed, "the coordinator gave chunks of " + job_in_words(config.name) + " to server " +
                                           std::to_string(shard) + " but said what is to be pushed again to " +
                                           std::to_string(m.redo_after.size()) + " servers only");
  }
  return {};
}

}  // namespace

NodeJobs::Entry* NodeJobs::in_view(JobId job, ViewId view) {
  const auto at = std::ranges::find_if(entries_, [&](const Entry& entry) {
    return (entry.phase == Phase::kAgreeing || entry.phase == Phase::kRunning || entry.phase == Phase::kLeft) &&
           entry.is(job, view);
  });
  return at == entries_.end() ? nullptr : &*at;
}

void NodeJobs::on_control(const ControlMessage& message, std::uint64_t now_ms) {
  std::visit(
      [&](const auto& m) {
        using M = std::decay_t<decltype(m)>;
        if constexpr (std::is_same_v<M, JobWelcome> || std::is_same_v<M, StopJob> || std::is_same_v<M, ControlError> ||
                      std::is_same_v<M, PeerAddress>) {
          on(m, now_ms);
        } else if constexpr (std::is_same_v<M, StopRequest> || std::is_same_v<M, SnapshotAt> ||
                             std::is_same_v<M, SnapshotCommit> || std::is_same_v<M, SnapshotDone>) {
          on(m);
        } else if constexpr (std::is_same_v<M, DrainDone>) {
          drain_done_ = true;
        } else {
          logger_->warn("the coordinator sent a message that workers do not expect");
        }
      },
      message);
  erase_finished();
}

// ---- Beginning ----

void NodeJobs::on(const JobWelcome& m, std::uint64_t now_ms) {
  // Said again, because nobody knew whether it had arrived, or what was said since.
  if (in_view(m.job, m.view)) return on(SnapshotCommit{m.job, m.committed});
  if (const auto begun = begun_.find(m.job); begun != begun_.end() && begun->second.view >= m.view) {
    // What was said at its end may not have arrived.
    coordinator_.send(LeaveJob{m.job, m.view, begun->second.node, LeaveKind::kFailed, m.resume_round,
                               "the view is over on this node", m.name});
    for (Entry& entry : entries_) {
      if (entry.name() == m.name && entry.phase == Phase::kJoining) join(entry, now_ms);  // for the next one
    }
    return;
  }
  const auto join = joined_.extract(m.name);
  const auto at = std::ranges::find_if(entries_, [&](const Entry& entry) {
    return entry.name() == m.name && (entry.phase == Phase::kJoining || entry.phase == Phase::kGathering);
  });
  if (at == entries_.end() || at->phase == Phase::kGathering || at->places.size() != at->local_world_size) {
    // A trainer left while the job was being opened.
    const NodeRank node = join ? join.mapped() : at == entries_.end() ? NodeRank() : at->node;
    coordinator_.send(LeaveJob{m.job, m.view, node, LeaveKind::kFailed, m.resume_round,
                               "a trainer of " + job_in_words(m.name) + " left before it began", m.name});
    return;
  }
  Entry& entry = *at;
  if (m.nodes == 0 || m.node.value >= m.nodes) {
    coordinator_.send(LeaveJob{
        m.job, m.view, entry.node, LeaveKind::kFailed, m.resume_round,
        "the welcome made it node " + std::to_string(m.node.value) + " of " + std::to_string(m.nodes), m.name});
    return fail_view(entry, {ErrorCode::kMalformed,
                             "the coordinator gave this node an impossible place in " + job_in_words(m.name) +
                                 ": node " + std::to_string(m.node.value) + " of " + std::to_string(m.nodes)});
  }
  if (begun_.size() >= kMaxJoined) begun_.erase(begun_.begin());
  begun_[m.job] = {m.view, entry.node};
  begun(entry, m, begin(entry, m, now_ms));
}

void NodeJobs::begun(Entry& entry, const JobWelcome& m, const Status& status) {
  if (status) return;
  coordinator_.send(
      LeaveJob{m.job, m.view, entry.node, LeaveKind::kFailed, m.resume_round, status.error().message, entry.name()});
  fail_view(entry, status.error());
}

Status NodeJobs::begin(Entry& entry, const JobWelcome& m, std::uint64_t now_ms) {
  Result<Layout> made = Layout::with_owners(entry.tensors, m.chunk_elements, m.owners);
  if (!made) return tl::unexpected(made.error());
  if (Status fits = redo_fits(entry.plan->config, *made, m); !fits) return fits;
  entry.view = std::make_shared<const ViewPlan>(ViewPlan{.plan = entry.plan,
                                                         .job = m.job,
                                                         .view = m.view,
                                                         .nodes = m.nodes,
                                                         .layout = std::make_shared<const Layout>(std::move(*made)),
                                                         .start = m.resume_round,
                                                         .resumes = m.resume});
  if (options_.devices && !entry.plan->on_servers()) return agree(entry, m, now_ms);
  return run(entry, m, nullptr, {}, now_ms);
}

// devices: of an all-reduce job that all nodes add up on devices.
Status NodeJobs::run(Entry& entry, const JobWelcome& m, std::shared_ptr<AllreduceDevices> devices,
                     const std::string& why_host, std::uint64_t now_ms) {
  const JobConfig& config = entry.plan->config;
  NodeJobSpec spec;
  spec.view = entry.view;
  spec.node = m.node;
  spec.ranks = entry.local_world_size;
  spec.endpoints = m.endpoints;
  spec.locals = m.locals;
  spec.redo_after = m.redo_after;
  auto redo = redo_.begin(config, entry.node, *entry.view->layout, m, now_ms);
  if (!redo) return tl::unexpected(redo.error());
  spec.redo = std::move(*redo);
  if (!on_servers(config)) {
    spec.why_host = why_host;
    entry.lent = spec.allreduce_devices = std::move(devices);
    spec.lane_memory = AllreduceLane::bytes_needed(spec);
  } else if (options_.devices) {
    auto opened = options_.devices->open(*entry.view, entry.devices());
    if (!opened) return tl::unexpected(opened.error());
    entry.lent = spec.devices = std::move(*opened);
  }
  // Keeping what a single rank sends as it is would be a copy else.
  spec.gradients_in_ring = spec.redo && !spec.devices && HostReducer::sends_gradients(spec.ranks, config.push) &&
                           entry.places.begin()->second.gradients_move;
  const std::vector<int> doorbells = lanes_.doorbells(!on_servers(config));
  Result<std::shared_ptr<NodeJob>> job =
      NodeJob::create(std::move(spec), static_cast<std::uint16_t>(doorbells.size()), budget_);
  if (!job) return tl::unexpected(job.error());
  entry.job = std::move(*job);
  entry.phase = Phase::kRunning;
  entry.last_refusal.clear();
  lanes_.open(entry.job);

  AttachReply reply;
  reply.job = m.job;
  reply.view = m.view;
  reply.world_size = m.nodes * entry.local_world_size;
  reply.node_rank = m.node.value;
  reply.resume = m.resume;
  reply.resume_round = m.resume_round;
  reply.chunk_elements = m.chunk_elements;
  reply.owners = m.owners;
  reply.lanes = static_cast<std::uint16_t>(doorbells.size());
  reply.node_region_bytes = entry.job->node_bytes();
  reply.gradient_region_bytes = entry.job->rank_bytes();
  const std::shared_ptr<RedoRing>& ring = entry.job->spec().redo;
  reply.redo = ring != nullptr;
  if (entry.job->spec().gradients_in_ring) reply.ring = {ring->slots_offset(), ring->slot_bytes(), ring->slots()};
  entry.ranks_in_view = reply.world_size;
  for (auto& [local_rank, place] : entry.places) {
    reply.state = local_rank < m.rank_states.size() ? m.rank_states[local_rank] : std::vector<std::byte>();
    reply.rank = place.rank = m.node.value * entry.local_world_size + local_rank;
    if (entry.lent) {
      const DeviceLoan& loan = entry.lent->loan(local_rank);
      reply.device = loan.uuid;
      reply.gradient_handle.assign(loan.gradients.bytes.begin(), loan.gradients.bytes.end());
      reply.parameter_handle.assign(loan.parameters.bytes.begin(), loan.parameters.bytes.end());
      reply.device_bytes = loan.bytes;
    }
    std::vector<int> fds{entry.job->node_fd(), entry.job->rank_fd(local_rank)};
    fds.insert(fds.end(), doorbells.begin(), doorbells.end());
    if (reply.redo) fds.push_back(ring->memory().fd());
    trainers_.send(place.trainer, reply, fds);
  }
  logger_->info("{}: view {} begins at round {} ({}), {} chunks, {} MB of memory, reduced on {}",
                job_in_words(entry.name()), m.view.value, m.resume_round.value, m.resume ? "resumed" : "fresh",
                entry.job->layout().chunks(), entry.job->budget_bytes() / 1'000'000,
                entry.lent ? std::to_string(entry.lent->width()) + " devices" : "the host");
  if (!entry.job->plan().on_servers()) {
    const auto& on_devices = entry.job->spec().allreduce_devices;
    logger_->info("{}: ranks are added up by {}", job_in_words(entry.name()),
                  !on_devices ? "Gloo" + (why_host.empty() ? std::string() : ", in host memory: " + why_host)
                  : on_devices->plan().collectives() ? "NCCL"
                                                     : "nobody: there is one, on a device");
  }
  return {};
}

void NodeJobs::on(const ControlError& m, std::uint64_t now_ms) {
  const bool concerns_us = std::ranges::any_of(entries_, [&](const Entry& entry) {
    return entry.phase == Phase::kJoining && (m.job.empty() || m.job == entry.name());
  });
  if (!concerns_us) logger_->warn("the coordinator refused: {}", m.message);
  for (Entry& entry : entries_) {
    if (entry.phase != Phase::kJoining || (!m.job.empty() && m.job != entry.name())) continue;
    if (m.code == ErrorCode::kUnavailable) {
      // Not now, but soon: the trainers keep waiting, their attach time-out bounds it.
      entry.next_ms = now_ms + kJoinRetryMs;
      if (entry.last_refusal != m.message) logger_->info("{}: waiting: {}", job_in_words(entry.name()), m.message);
      entry.last_refusal = m.message;
    } else {
      fail_view(entry, {m.code, m.message});
    }
  }
}

// What another node of an all-reduce job has for this one to connect to it. (This view's welcome came before it.)
void NodeJobs::on(const PeerAddress& m, std::uint64_t now_ms) {
  Entry* entry = in_view(m.job, m.view);
  if (entry && !entry->plan->on_servers()) offered(*entry, m, now_ms);
}

void NodeJobs::on(const SnapshotAt& m) {
  const Entry* entry = in_view(m.job, m.view);
  if (entry && entry->job) entry->job->header().snapshot_round.store(m.round.value, std::memory_order_relaxed);
}

// A snapshot has everything up to that round: pushes up to it are not needed any more.
void NodeJobs::on(const SnapshotCommit& m) {
  const auto keeps = [&](const Entry& entry) {
    return entry.job && entry.view->job == m.job && entry.job->spec().redo;
  };
  if (std::ranges::none_of(entries_, keeps)) redo_.covered(m.job, m.round);
}

// ---- Ending ----

// What came of the state that a view ended with.
void NodeJobs::on(const SnapshotDone& m) {
  forget_checkpointed(m.job, m.view);
  for (Entry& entry : entries_) {
    if (entry.is(m.job, m.view)) settle(entry, m.ok ? Status() : fail(ErrorCode::kStore, m.message));
  }
}

// Trainers have left in good order, and wait to hear whether what they trained is saved.
bool NodeJobs::awaits_saved(const Entry& entry) {
  return (entry.phase == Phase::kLeft || (entry.phase == Phase::kOver && entry.in_order)) && !entry.saved &&
         std::ranges::any_of(entry.places,
                             [](const auto& place) { return place.second.connected && place.second.left; });
}

void NodeJobs::settle(Entry& entry, const Status& saved) {
  // While it still waits for the answers of its last round it has been told of the stop.
  if ((entry.phase < Phase::kLeft && !entry.stop) || entry.saved) return;
  if (!saved) logger_->error("{}: not saved: {}", job_in_words(entry.name()), saved.error().message);
  entry.saved = saved;
  if (entry.phase == Phase::kLeft) {
    entry.phase = Phase::kOver;
    entry.in_order = true;
  }
  tell_saved(entry);
}

void NodeJobs::tell_saved(Entry& entry) {
  if (!entry.saved || entry.phase != Phase::kOver) return;
  for (auto& [local_rank, place] : entry.places) {
    // One that failed has been told why, and asks for nothing that was to be saved.
    if (!place.connected || !place.left || *place.left == LeaveKind::kFailed) continue;
    if (std::exchange(place.told_end, true)) continue;
    if (!*entry.saved) {
      trainers_.send(place.trainer, AttachError{entry.saved->error().code, entry.saved->error().message});
    }
    trainers_.send(place.trainer, AttachStopped{entry.ended.kind, entry.ended.round, entry.ended.reason});
  }
}

void NodeJobs::on(const StopRequest& m) {
  Entry* entry = in_view(m.job, m.view);
  if (entry && entry->agreement) entry->agreement->stop_requested = true;
  if (!entry || entry->phase != Phase::kRunning) return;
  logger_->info("{}: asked to stop after its round: {}", job_in_words(entry->name()), m.reason);
  entry->stopped_by = m.reason;
  entry->job->set_state(RegionState::kStopRequested);
}

void NodeJobs::checkpointed(const SnapshotDone& done, std::uint64_t now_ms) {
  coordinator_.send(done);
  if (checkpointed_.size() >= kMaxJobs) checkpointed_.erase(checkpointed_.begin());
  checkpointed_.push_back({done, now_ms + kLeaveRepeatMs});
}

void NodeJobs::forget_checkpointed(JobId job, ViewId view) {
  std::erase_if(checkpointed_, [&](const Checkpointed& c) { return c.done.job == job && c.done.view == view; });
}

void NodeJobs::on(const StopJob& m, std::uint64_t now_ms) {
  if (m.kind == StopKind::kRestart) forget_checkpointed(m.job, m.view);
  Entry* entry = in_view(m.job, m.view);
  if (!entry) {
    // The state that it ended with was not written everywhere when somebody was lost.
    for (Entry& over : entries_) {
      if (m.kind == StopKind::kRestart && over.is(m.job, m.view)) {
        settle(over, fail(ErrorCode::kUnavailable, m.reason));
      }
    }
    return;
  }
  // Of a stop in good order that is under way nothing is repeated but that the view is over.
  if (m.kind == StopKind::kRestart && entry->stop && entry->stop->kind != StopKind::kRestart) return;
  if (entry->phase == Phase::kAgreeing) {
    if (m.kind == StopKind::kRestart) return join_again(*entry, now_ms);
    return fail_view(*entry,
                     {ErrorCode::kStopped, job_in_words(entry->name()) + " was stopped before it began: " + m.reason});
  }
  if (entry->phase == Phase::kLeft) {
    if (m.kind == StopKind::kRestart) return settle(*entry, fail(ErrorCode::kUnavailable, m.reason));
    entry->phase = Phase::kOver;
    entry->in_order = true;
    entry->ended = m;
    return;
  }
  // A stop at a round boundary overtakes this node's last answers now and then: they are let in first.
  const bool behind = entry->job->min_version().value < m.round.value;
  if (m.kind != StopKind::kRestart && behind) {
    entry->stop = m;
    entry->answers.emplace(options_.stop_timeout_ms, now_ms);
    return;
  }
  end_view(*entry, m.kind, m.round, m.reason);
}

void NodeJobs::coordinator_restarted(std::uint64_t now_ms) {
  checkpointed_.clear();
  for (Entry& entry : entries_) {
    if (entry.phase == Phase::kRunning) {
      end_view(entry, StopKind::kRestart, Round(entry.job->min_version().value),
               "the coordinator was restarted or had lost sight of this node");
    } else if (entry.phase == Phase::kLeft || entry.phase == Phase::kOver) {
      settle(entry, fail(ErrorCode::kUnavailable,
                         "the coordinator was restarted, or had lost sight of this node, before it said so"));
    } else if (entry.phase == Phase::kAgreeing) {
      join_again(entry, now_ms + kJoinRetryMs);
    } else if (entry.phase == Phase::kJoining) {
      entry.next_ms = now_ms + kJoinRetryMs;  // it does not know that we joined
    }
  }
  erase_finished();
}

// keep: every chunk is at the round at which the view ended.
void NodeJobs::close_lanes(Entry& entry, bool keep) {
  if (!entry.job) return;
  lanes_.close(entry.job, keep);
  entry.job.reset();
}

// The reason goes before the state, so that a trainer that sees the state finds the reason.
void NodeJobs::end_view(Entry& entry, StopKind kind, Round round, const std::string& reason) {
  logger_->log(kind == StopKind::kRestart ? spdlog::level::warn : spdlog::level::info,
               "{}: view {} is over at round {}: {}", job_in_words(entry.name()), entry.view->view.value, round.value,
               reason);
  for (const auto& [local_rank, place] : entry.places) {
    if (place.connected && !place.left) trainers_.send(place.trainer, AttachStopped{kind, round, reason});
  }
  if (entry.job) entry.job->set_state(kind == StopKind::kRestart ? RegionState::kRestart : RegionState::kStopped);
  const bool whole = entry.job && entry.job->min_version().value == round.value;
  if (kind != StopKind::kRestart && !whole && entry.job && !entry.job->plan().on_servers() &&
      entry.job->spec().node.value == 0) {
    checkpointed({entry.view->job, entry.view->view, {}, false, 0, "node 0 has not got the last round in time"}, 0);
  }
  close_lanes(entry, kind != StopKind::kRestart && whole);
  entry.phase = Phase::kOver;
  entry.in_order = kind != StopKind::kRestart;
  entry.ended = StopJob{entry.view->job, entry.view->view, kind, round, reason};
  entry.next_ms = 0;
  // Ranks that had finished already are still there, and can go on with the others.
  if (kind == StopKind::kRestart) settle(entry, fail(ErrorCode::kUnavailable, reason));
  tell_saved(entry);
}

void NodeJobs::fail_view(Entry& entry, const Error& error) {
  for (const auto& [local_rank, place] : entry.places) {
    if (place.connected && !place.left) refuse(place.trainer, error);
  }
  entry.agreement.reset();
  if (entry.job) entry.job->set_state(RegionState::kFailed);
  close_lanes(entry, false);
  entry.phase = Phase::kOver;
  settle(entry, tl::unexpected(error));
}

void NodeJobs::leave(Entry& entry, LeaveKind kind, const std::string& message) {
  const Round round(entry.job->min_version().value);
  entry.leave = LeaveJob{entry.view->job, entry.view->view, entry.node, kind, round, message, entry.name()};
  coordinator_.send(*entry.leave);
}

// Called when a rank has detached in good order.
void NodeJobs::leave_if_all_detached(Entry& entry, std::uint64_t now_ms) {
  const auto left = [&](LeaveKind kind) {
    return std::ranges::any_of(entry.places, [&](const auto& place) { return place.second.left == kind; });
  };
  const bool all = std::ranges::all_of(entry.places, [](const auto& place) { return place.second.left.has_value(); });
  if (!all) {
    // Without the rank that stopped no further round can be complete here: the others end at this one.
    if (left(LeaveKind::kStopped)) stop_others(entry, Round(entry.job->min_version().value));
    return;
  }
  // One rank that stopped instead of finishing means that the job is to be resumed.
  const LeaveKind kind = left(LeaveKind::kStopped) ? LeaveKind::kStopped : LeaveKind::kFinished;
  leave(entry, kind, kind == LeaveKind::kStopped ? entry.stopped_by : std::string());
  logger_->info("{}: all ranks of this node left at round {}", job_in_words(entry.name()), entry.leave->round.value);
  close_lanes(entry, true);
  entry.phase = Phase::kLeft;
  entry.next_ms = now_ms + kLeaveRepeatMs;
  if (entry.stop && entry.stop->kind != StopKind::kRestart) {  // as the coordinator has said already
    entry.phase = Phase::kOver;
    entry.in_order = true;
    entry.ended = *entry.stop;
  }
}

void NodeJobs::stop_others(Entry& entry, Round round) {
  if (entry.job->header().state.load(std::memory_order_relaxed) >= static_cast<std::uint32_t>(RegionState::kStopped))
    return;
  for (const auto& [local_rank, place] : entry.places) {
    if (!place.connected || place.left) continue;
    trainers_.send(place.trainer,
                   AttachStopped{StopKind::kStopped, round,
                                 entry.stopped_by.empty()
                                     ? "another rank of this node left after round " + std::to_string(round.value)
                                     : entry.stopped_by});
  }
  entry.job->set_state(RegionState::kStopped);
}

void NodeJobs::lane_failed(const std::shared_ptr<NodeJob>& job, const LaneFailure& failure, std::uint64_t now_ms) {
  const auto at = std::ranges::find_if(entries_, [&](const Entry& entry) { return entry.job == job; });
  if (at == entries_.end() || at->phase != Phase::kRunning) return;
  Entry& entry = *at;
  switch (failure.kind) {
    case LaneFailure::Kind::kTrainer: {
      const std::string broke = "broke the rules: " + failure.error.message;
      if (const auto place = entry.places.find(failure.local_rank);
          place != entry.places.end() && place->second.connected) {
        refuse(place->second.trainer, {failure.error.code, who(entry, failure.local_rank) + " " + broke});
      }
      lost(entry, failure.local_rank, broke, now_ms);
      break;
    }
    case LaneFailure::Kind::kRefused:
      leave(entry, LeaveKind::kFailed, failure.error.message);
      fail_view(entry, failure.error);
      break;
    case LaneFailure::Kind::kViewOver:
      logger_->info("{}: {}", job_in_words(entry.name()), failure.error.message);
      if (entry.stop) break;  // the coordinator has said why
      entry.stop = StopJob{entry.view->job, entry.view->view, StopKind::kRestart, Round(entry.job->min_version().value),
                           failure.error.message};
      // The coordinator's own words normally come before.
      entry.stop_by_ms = now_ms + options_.peer_timeout_ms + kVerdictMs;
      break;
  }
  erase_finished();
}

void NodeJobs::tick_running(Entry& entry, std::uint64_t now_ms) {
  if (entry.stop) {
    const StopJob stop = *entry.stop;
    const bool settled = stop.kind != StopKind::kRestart && entry.job->min_version().value >= stop.round.value;
    if (settled) return end_view(entry, stop.kind, stop.round, stop.reason);
    const bool waits = entry.answers ? !entry.answers->over(entry.job->answers(), now_ms) : now_ms < entry.stop_by_ms;
    if (!waits) {
      if (entry.answers) {
        logger_->warn(
            "{}: no answer has come for {} ms since the stop at round {}; the parameters here are those of "
            "round {} in part",
            job_in_words(entry.name()), options_.stop_timeout_ms, stop.round.value, entry.job->min_version().value);
      }
      if (stop.kind == StopKind::kRestart) leave(entry, LeaveKind::kFailed, stop.reason);
      return end_view(entry, stop.kind, stop.round, stop.reason);
    }
  }
  // Ranks that finished contribute nothing to a further round: one that began it would wait for ever.
  const bool some_left =
      std::ranges::any_of(entry.places, [](const auto& place) { return place.second.left.has_value(); });
  if (!some_left) return;
  const Version reached = entry.job->min_version();
  for (const auto& [local_rank, place] : entry.places) {
    if (!place.left && entry.job->beyond(local_rank, Round(reached.value)))
      return stop_others(entry, Round(reached.value));
  }
}

void NodeJobs::tick(std::uint64_t now_ms) {
  for (Entry& entry : entries_) {
    redo_.in_use(entry.name(), now_ms);
    const bool due = entry.next_ms != 0 && now_ms >= entry.next_ms;
    if (entry.phase == Phase::kRunning) tick_running(entry, now_ms);
    if (entry.phase == Phase::kJoining && due) join(entry, now_ms);
    if (entry.phase == Phase::kAgreeing) tick_agreeing(entry, now_ms);
    // Until its end is known, and what came of the state.
    if (entry.phase == Phase::kLeft || awaits_saved(entry)) {
      if (due && entry.phase == Phase::kLeft) coordinator_.send(*entry.leave);
      if (due && entry.phase == Phase::kOver) {
        coordinator_.send(LeaveJob{
            entry.view->job, entry.view->view, entry.node, LeaveKind::kStopped, entry.ended.round, {}, entry.name()});
      }
      if (due || entry.next_ms == 0) entry.next_ms = now_ms + kLeaveRepeatMs;
    }
  }
  for (Checkpointed& unanswered : checkpointed_) {
    if (now_ms < unanswered.next_ms) continue;
    coordinator_.send(unanswered.done);
    unanswered.next_ms = now_ms + kLeaveRepeatMs;
  }
  redo_.tick(now_ms);
  erase_finished();
}

}  // namespace tributary
