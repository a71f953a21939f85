#include "worker/node_jobs.h"

#include <algorithm>
#include <optional>
#include <span>

#include "common/base/printed.h"
#include "common/base/utf8.h"
#include "common/config/job_json.h"
#include "common/config/step_runs.h"
#include "session/shared/topology.h"

namespace tributary {
namespace {

constexpr char kStopping[] = "the worker daemon is being stopped; attach again when it is back";

}  // namespace

std::vector<JobProgress> progress_of(const std::vector<NodeJobSummary>& summaries) {
  std::vector<JobProgress> progress;
  for (const NodeJobSummary& summary : summaries) {
    if (!summary.job) continue;
    const NodeJob& job = *summary.job;
    progress.push_back({job.view().job, job.view().view, job.min_version(), job.max_version()});
  }
  return progress;
}

NodeJobs::Found NodeJobs::find(TrainerId trainer) {
  for (AttachedJob& job : jobs_) {
    if (const auto local_rank = job.trainers().local_rank_of(trainer)) return std::pair(&job, *local_rank);
  }
  return std::nullopt;
}

AttachedJob* NodeJobs::open_job(const std::string& name) {
  for (AttachedJob& job : jobs_) {
    if (job.name() == name && job.takes_trainers()) return &job;
  }
  return nullptr;
}

AttachedJob* NodeJobs::job_of(const auto& message) {
  for (AttachedJob& job : jobs_) {
    if (message.view != ViewId() && job.view() == std::pair(message.job, message.view)) return &job;
  }
  return nullptr;
}

void NodeJobs::erase_finished() {
  std::erase_if(jobs_, [](const AttachedJob& job) { return job.finished(); });
}

// ---- Trainers ----

// May this trainer become part of `job` (null: the first of its job)?
Status NodeJobs::admit(const AttachedJob* job, const AttachRequest& request, const JobConfig& config) const {
  const Topology topology{request.rank, request.world_size, request.local_rank, request.local_world_size,
                          request.node_rank};
  if (Status status = topology.validate(); !status) return status;
  if (request.local_world_size > kMaxLocalRanks) {
    return fail(ErrorCode::kLimit, printed("local_world_size %u is over the limit of %zu ranks per node",
                                           request.local_world_size, kMaxLocalRanks));
  }
  const NodeDevices* devices = context_.options.devices.get();
  if (Status status = devices ? devices->admit(request.device) : Status(); !status) return status;
  if (!is_utf8(request.computes_with)) {
    return fail(ErrorCode::kInvalidArgument, "what rank " + std::to_string(request.rank) +
                                                 " says it computes with is no UTF-8; say it in ASCII, or nothing");
  }
  if (config.mode == Mode::kAllreduce && !context_.options.no_allreduce.empty()) {
    return fail(ErrorCode::kConfig,
                job_in_words(config.name) + " adds up by all-reduce: " + context_.options.no_allreduce);
  }
  if (request.tensors.empty())
    return fail(ErrorCode::kInvalidArgument, "no tensor was declared; a job has at least one");
  if (job) return job->admit(request, config);
  const auto layout = Layout::unowned(request.tensors);
  if (!layout) return tl::unexpected(layout.error());
  if (Status known = check_groups(config, request.tensors); !known) return known;
  // On devices it takes less, and ranks that hold a part each take more; NodeJob::create() has the last word.
  const std::span mine(&request.model_rank, 1);
  const bool in_parts =
      std::ranges::any_of(request.tensors, [](const TensorSpec& one) { return !one.holders.empty(); });
  const std::optional<Layout> part = in_parts ? layout->part(mine) : *layout;
  const std::uint64_t bytes =
      part ? NodeJob::bytes_needed(*part, in_parts ? 1 : request.local_world_size, {}, config.push) : 0;
  const bool on_devices = devices && devices->api() && !request.device.empty();
  if (bytes > budget().limit() && !on_devices) {
    return fail(ErrorCode::kLimit,
                printed("%s with %u local ranks needs %ju bytes of memory on this node, the worker may use %ju; raise "
                        "[limits] max_shared_memory in worker.toml, or use fewer ranks per node",
                        job_in_words(config.name).c_str(), request.local_world_size, std::uintmax_t{bytes},
                        std::uintmax_t{budget().limit()}));
  }
  if (jobs_.size() < kMaxJobs) return {};
  return fail(ErrorCode::kLimit, printed("this worker has %zu jobs already; wait for one to end", kMaxJobs));
}

void NodeJobs::attach(TrainerId trainer, const AttachRequest& request, int peer_pid, std::uint64_t now_ms,
                      FileDescriptor kept) {
  if (known(trainer)) {
    return context_.refuse(
        trainer, {ErrorCode::kInvalidArgument, "this connection has attached already; a session attaches once"});
  }
  if (draining_) return context_.refuse(trainer, {ErrorCode::kUnavailable, kStopping});
  const Result<JobConfig> config = job_from_json(request.job_json);
  if (!config) return context_.refuse(trainer, config.error());
  AttachedJob* job = open_job(config->name);
  if (Status admitted = admit(job, request, *config); !admitted) return context_.refuse(trainer, admitted.error());
  if (!job) job = &jobs_.emplace_back(context_, *config, request);
  job->attach(trainer, request, peer_pid, std::move(kept), now_ms);
}

void NodeJobs::initial_values(TrainerId trainer) {
  if (const Found found = find(trainer)) found->first->initial_values(found->second);
}

void NodeJobs::rank_state(TrainerId trainer, const RankState& state) {
  const Found found = find(trainer);
  if (!found) return;
  found->first->rank_state(found->second, state);
  if (StateHead::of(state.state).large) gave_large_ = true;
}

void NodeJobs::held_state(TrainerId trainer, KeptState state, std::uint64_t now_ms) {
  if (const Found found = find(trainer)) found->first->held_state(found->second, std::move(state), now_ms);
}

void NodeJobs::figures(TrainerId trainer, const Figures& figures) {
  if (const Found found = find(trainer)) found->first->figures(found->second, figures);
}

void NodeJobs::values(TrainerId trainer, const SharedValues& said, std::uint64_t now_ms) {
  if (const Found found = find(trainer)) found->first->values(found->second, said, now_ms);
}

void NodeJobs::detach(TrainerId trainer, const Detach& detach, std::uint64_t now_ms) {
  context_.trainers.send(trainer, DetachReply{});
  if (const Found found = find(trainer)) found->first->detach(found->second, detach, now_ms);
}

void NodeJobs::gone(TrainerId trainer, std::uint64_t now_ms) {
  if (const Found found = find(trainer)) found->first->gone(found->second, now_ms);
  erase_finished();
}

// ---- The coordinator ----

void NodeJobs::on(const auto& message, std::uint64_t now_ms) {
  if constexpr (requires(AttachedJob & job) { job.on(message, now_ms); }) {
    if (AttachedJob* job = job_of(message)) job->on(message, now_ms);
  } else {
    context_.logger->warn("the coordinator sent a message that workers do not expect");
  }
}

void NodeJobs::on_control(const ControlMessage& message, std::uint64_t now_ms) {
  const SnapshotDone* done = std::get_if<SnapshotDone>(&message);
  const StopJob* stop = std::get_if<StopJob>(&message);
  if (done) context_.checkpoints.answered(done->job, done->view);
  if (stop && stop->kind == StopKind::kRestart) context_.checkpoints.answered(stop->job, stop->view);
  std::visit([&](const auto& m) { on(m, now_ms); }, message);
  erase_finished();
}

void NodeJobs::on(const JobWelcome& m, std::uint64_t now_ms) {
  // Repeated by the coordinator, which does not know whether this welcome or later messages arrived.
  AttachedJob* said = job_of(m);
  if (said && !said->over()) {
    said->say_values();
    return on(SnapshotCommit{m.job, m.committed}, now_ms);
  }
  AttachedJob* job = open_job(m.name);
  const JoinRecord& record = context_.join_record(m.name);
  const bool over = record.has_begun(m);  // the messages of the view's end may not have arrived
  const bool joining = job && job->joining();
  if (!over && joining && job->asked(m.join)) return job->welcome(m, now_ms);
  // Else a trainer left while the job was being opened. (Others may have come since.)
  context_.decline(
      m, over ? record.begun_as : record.joined_as,
      over ? "the view is over on this node" : "a trainer of " + job_in_words(m.name) + " left before it began");
  if (joining) job->join(now_ms);  // the coordinator took the place of this join away, too
}

void NodeJobs::on(const PeerAddresses& m, std::uint64_t now_ms) {
  for (const PeerAddress& address : m.addresses) {
    if (AttachedJob* job = job_of(address)) job->on(address, now_ms);
  }
}

// A snapshot has everything up to that round: pushes up to it are not needed any more.
void NodeJobs::on(const SnapshotCommit& m, std::uint64_t) {
  const auto needs_ring = [&](const AttachedJob& one) {
    const auto job = one.running();
    return job ? job->view().job == m.job && job->spec().redo
               : one.awaits_view() && context_.redo.keeps(one.name(), m.job);
  };
  if (std::ranges::none_of(jobs_, needs_ring)) context_.redo.covered(m.job, m.round);
}

void NodeJobs::on(const ControlError& m, std::uint64_t now_ms) {
  bool about_a_join = false;
  for (AttachedJob& job : jobs_) {
    if (!job.joining() || !job.asked(m.join) || (!m.job.empty() && m.job != job.name())) continue;
    about_a_join = true;
    job.refused({m.code, m.message}, now_ms);
  }
  if (about_a_join || (m.message == last_refusal_ && now_ms < refusal_ms_ + kRefusalMs)) return;
  last_refusal_ = m.message;
  refusal_ms_ = now_ms;
  context_.logger->warn("the coordinator refused: {}", m.message);
}

void NodeJobs::on(const JobWaits& m, std::uint64_t) {
  if (AttachedJob* job = open_job(m.name); job && job->joining()) job->waits(m);
}

// Sends bytes of a large part that ranks of this node keep, or kept.
void NodeJobs::on(const WantPart& m, std::uint64_t) {
  StatePart answer{m, {}};
  if (const auto memory = context_.held.large(m.large); memory && m.offset < memory->bytes().size()) {
    const auto part = memory->bytes().subspan(m.offset);
    answer.data.assign(part.begin(), part.begin() + std::min(part.size(), kPartBytes));
  }
  context_.coordinator.send(answer);
}

void NodeJobs::on(const StatePart& m, std::uint64_t now_ms) {
  for (AttachedJob& job : jobs_) job.on(m, now_ms);
}

void NodeJobs::coordinator_restarted(std::uint64_t now_ms) {
  context_.checkpoints.forget_all();
  for (AttachedJob& job : jobs_) job.coordinator_restarted(now_ms);
  erase_finished();
}

// ---- Lanes, time, and the end ----

void NodeJobs::lane_failed(const std::shared_ptr<NodeJob>& failed, const LaneFailure& failure, std::uint64_t now_ms) {
  for (AttachedJob& job : jobs_) {
    if (failed && job.running() == failed) job.lane_failed(failure, now_ms);
  }
  erase_finished();
}

void NodeJobs::publish(const PeerAddress& address, std::uint64_t now_ms) {
  if (AttachedJob* job = job_of(address)) job->publish(address, now_ms);
}

void NodeJobs::tick(std::uint64_t now_ms) {
  for (AttachedJob& job : jobs_) job.tick(now_ms);
  context_.checkpoints.tick(now_ms);
  context_.redo.tick(now_ms);
  context_.parameters.tick(now_ms);
  context_.held.tick(now_ms);
  context_.answers.tick(now_ms);
  if (draining_ && !drain_done_ && now_ms >= drain_due_ms_) ask_to_drain(now_ms);
  erase_finished();
}

void NodeJobs::drain(std::uint64_t now_ms) {
  if (std::exchange(draining_, true)) return;
  ask_to_drain(now_ms);
  for (AttachedJob& job : jobs_) job.drain({ErrorCode::kUnavailable, kStopping}, now_ms);
  erase_finished();
}

// Either message may be lost with a connection.
void NodeJobs::ask_to_drain(std::uint64_t now_ms) {
  drain_due_ms_ = now_ms + kDrainAgainMs;
  context_.coordinator.send(DrainRequest{context_.options.incarnation});
}

bool NodeJobs::drained() const {
  return draining_ && (drain_done_ || (!gave_large_ && context_.checkpoints.empty())) &&
         std::ranges::all_of(jobs_, [&](const AttachedJob& job) { return job.drained(drain_done_); });
}

void NodeJobs::abandon(const std::string& reason, std::uint64_t) {
  for (AttachedJob& job : jobs_) job.abandon(reason);
  jobs_.clear();
}

std::vector<NodeJobSummary> NodeJobs::summaries() const {
  std::vector<NodeJobSummary> result;
  for (const AttachedJob& job : jobs_) result.push_back(job.summary());
  return result;
}

}  // namespace tributary
