// How a view of a job begins on this node: it is joined, agreed on, and handed to lanes and trainers.
#include <tuple>
#include <utility>

#include "common/config/job_json.h"
#include "worker/allreduce/allreduce_lane.h"
#include "worker/attached_job.h"
#include "worker/node_view.h"

namespace tributary {

using namespace attached;

// ---- Joining ----

void AttachedJob::join(std::uint64_t now_ms) {
  Joining& joining = in<Joining>() ? std::get<Joining>(phase_) : phase_.emplace<Joining>();
  joining.next_ms = now_ms + kJoinRepeatMs;
  const JobConfig& config = plan_->config;
  for (FileDescriptor& fd : std::exchange(brought_, {})) {
    context_.redo.adopt(config, trainers_.node(), tensors_, trainers_.model_ranks(), std::move(fd), now_ms);
  }
  JoinJob message;
  message.job_json = to_canonical_json(config);
  message.tensors = tensors_;
  message.number = number_;
  message.node = trainers_.node();
  message.nodes = trainers_.world_size() / trainers_.local_world_size();
  message.local_world_size = trainers_.local_world_size();
  message.world_size = trainers_.world_size();
  message.model_ranks = trainers_.model_ranks();
  context_.held.describe(name(), message);
  trainers_.describe_living(message);
  for (const auto& [local_rank, trainer] : trainers_) add_kind(message.computes_with, trainer.computes_with);
  // The last view gives its part of the budget back soon, when lanes have closed it. The next one takes as much.
  const auto last = context_.join_record(name()).memory.lock();
  if (last && context_.budget->used() + last->budget_bytes() > context_.budget->limit()) {
    joining.next_ms = now_ms + kRingRetryMs;
    return;
  }
  message.on_devices = context_.options.devices && context_.options.devices->api() &&
                       trainers_.any(&LocalTrainer::on_device) && !have_holders(tensors_);
  if (context_.redo.busy(name())) {
    joining.next_ms = now_ms + kRingRetryMs;
    return;
  }
  const std::string why_not = context_.redo.describe(config, message, context_.parameters.spare());
  if (!why_not.empty() && !std::exchange(told_of_redo_, true)) {
    context_.logger->warn(
        "{}: what this node pushes is not kept for lost servers: {}; after the loss of a server the job "
        "goes back to its last snapshot",
        in_words(), why_not);
  }
  if (!plan_->on_servers()) {
    // It goes on from the newest that any of its nodes has. To find the newest here means to read all of it, once.
    if (!checkpoint_) {
      const Result<Layout> layout = bucket_layout(tensors_, config.chunk_bytes);
      if (!layout) return fail_with(layout.error());
      const Result<std::optional<Round>> newest = context_.lanes.newest_checkpoint(config, *layout);
      if (!newest && newest.error().code == ErrorCode::kConfigMismatch) return fail_with(newest.error());
      if (newest && !*newest) {
        joining.next_ms = now_ms + kCheckpointRetryMs;
        return;
      }
      checkpoint_ = newest.map([](const std::optional<Round>& round) { return *round; });
    }
    message.checkpoint_round = checkpoint_->value_or(Round());
    if (!*checkpoint_) message.checkpoint_flaw = checkpoint_->error().message;
  }
  context_.join_record(name()).joined_as = trainers_.node();
  context_.coordinator.send(message);
}

void AttachedJob::refused(const Error& error, std::uint64_t now_ms) {
  if (error.code != ErrorCode::kUnavailable) return fail_with(error);
  // Not now, but soon: the trainers keep waiting, their attach time-out bounds it.
  phase_ = Joining{now_ms + kJoinRetryMs};
  if (std::exchange(last_refusal_, error.message) == error.message) return;
  context_.logger->info("{}: waiting: {}", in_words(), error.message);
}

void AttachedJob::welcome(const JobWelcome& m, std::uint64_t now_ms) {
  if (m.node.value >= m.nodes) {
    const std::string place = "node " + std::to_string(m.node.value) + " of " + std::to_string(m.nodes);
    context_.decline(m, trainers_.node(), "the welcome made it " + place);
    return fail_with(
        {ErrorCode::kMalformed, "the coordinator gave this node an impossible place in " + in_words() + ": " + place});
  }
  context_.join_record(name()) = {trainers_.node(), trainers_.node(), m.job, m.view};
  addresses_.clear();
  if (Status begun = begin(m, now_ms); !begun) decline(m, begun.error());
}

// The view begins without this node.
void AttachedJob::decline(const JobWelcome& m, const Error& error) {
  context_.decline(m, trainers_.node(), error.message);
  fail_with(error);
}

// ---- Agreeing ----

Status AttachedJob::begin(const JobWelcome& m, std::uint64_t now_ms) {
  Result<NodeJobSpec> spec = spec_of(plan_, tensors_, trainers_.local_world_size(), m);
  if (!spec) return tl::unexpected(spec.error());
  NodeDevices* const devices = context_.options.devices.get();
  if (!devices || plan_->on_servers()) return run(m, std::move(*spec), now_ms);
  const std::vector<std::string> uuids = trainers_.devices();
  auto opened = devices->open_allreduce(*spec->view, m.node, uuids, spec->why_host);
  if (!opened) return tl::unexpected(opened.error());
  spec->allreduce_devices = std::move(*opened);
  if (!spec->allreduce_devices || m.nodes == 1) return run(m, std::move(*spec), now_ms);
  DeviceAgreement agreement(m, devices->collectives_number(), uuids);
  publish(agreement.offer(), now_ms);
  phase_ = Agreeing{m, std::move(*spec), std::move(agreement), now_ms + devices->patience_ms()};
  return {};
}

// Takes another node's address or offer, in an all-reduce view. (This view's welcome came before it.)
void AttachedJob::on(const PeerAddress& m, std::uint64_t now_ms) {
  if (plan_->on_servers() || over()) return;
  if (m.key != kOfferKey && !m.value.empty()) context_.lanes.peer_address(m);
  Agreeing* agreeing = std::get_if<Agreeing>(&phase_);
  if (!agreeing || !agreeing->agreement.hear(m)) return;
  const std::string conflict = agreeing->agreement.conflict();
  if (conflict.empty() && !agreeing->agreement.complete()) return;
  const Agreeing agreed = *agreeing;
  if (!conflict.empty() && context_.options.devices->required()) {
    return decline(agreed.welcome,
                   {ErrorCode::kUnavailable, in_words() + " cannot be added up on devices: " + conflict +
                                                 " (this worker has [worker] node_reduction = \"device\")"});
  }
  NodeJobSpec spec = agreed.spec;
  if (!conflict.empty()) {
    spec.allreduce_devices.reset();
    spec.why_host = conflict;
  }
  const Status begun = run(agreed.welcome, std::move(spec), now_ms);
  if (!begun) return decline(agreed.welcome, begun.error());
  if (agreed.stop_requested) running()->set_state(RegionState::kStopRequested);
}

// ---- Running ----

Status AttachedJob::run(const JobWelcome& m, NodeJobSpec spec, std::uint64_t now_ms) {
  const auto opened = open_view(context_, std::move(spec), m, trainers_.node(), trainers_, now_ms);
  if (!opened) return tl::unexpected(opened.error());
  const NodeJob& job = **opened;
  context_.join_record(name()).memory = *opened;
  Running& running = phase_.emplace<Running>(Running{
      .job = *opened,
      .states = StateDelivery(context_, m.job),
      .values = NodeValues(m.job, m.view, m.node.value * job.spec().ranks, job.spec().ranks, is_elastic(plan_->config),
                           context_.answers.begin(name(), m.job, m.resume_round, now_ms)),
      .begun = m.resume_round,
      .loaded = m.resume && m.resume_round == m.committed,
      .giver = m.giver});
  last_refusal_.clear();
  lent_ = job.spec().devices;
  if (!lent_) lent_ = job.spec().allreduce_devices;
  context_.held.begin(name(), m.job, m.node, m.resume_round, !m.resume, now_ms);
  trainers_.welcome(m, job, context_.lanes.doorbells(!plan_->on_servers()), context_.held, context_.trainers);
  deliver_states(running, m, now_ms);
  say_values();
  context_.logger->info("{}: view {} begins at round {} ({}), {} chunks, {} MB of memory, reduced on {}", in_words(),
                        m.view.value, m.resume_round.value, m.resume ? "resumed" : "fresh", job.layout().chunks(),
                        job.budget_bytes() / 1'000'000,
                        lent_ ? std::to_string(lent_->width()) + " devices" : "the host");
  if (plan_->on_servers()) return {};
  const auto& [devices, why_host] = std::tie(job.spec().allreduce_devices, job.spec().why_host);
  context_.logger->info("{}: ranks are added up by {}", in_words(),
                        !devices ? "Gloo" + (why_host.empty() ? std::string() : ", in host memory: " + why_host)
                        : devices->plan().collectives() ? "NCCL"
                                                        : "nobody: there is one, on a device");
  return {};
}

// For the next view, which may find most of them unchanged. Until then those of the view before are kept.
void AttachedJob::keep_parameters(Running& running) {
  if (running.whole || !plan_->on_servers() || plan_->has_clocks() || running.job->spec().lender()) return;
  if (!(running.whole = running.job->whole())) return;
  context_.parameters.keep(name(), running.job->region());
  std::uint64_t had = 0, pulled = 0;
  for (std::size_t lane = 0; lane < running.job->lanes(); ++lane) {
    had += running.job->lane_stats(lane).bytes_had.value();
    pulled += running.job->lane_stats(lane).bytes_pulled.value();
  }
  context_.logger->info("{}: all parameters are here: {} bytes were here before, servers sent {}", in_words(), had,
                        pulled);
}

// Delivers what the attach reply names but lacks: large parts of the ranks' states, and the first rank's state.
void AttachedJob::deliver_states(Running& running, const JobWelcome& m, std::uint64_t now_ms) {
  for (const auto& [local_rank, trainer] : trainers_) {
    const KeptState* held = context_.held.of(name(), local_rank, m.resume_round);
    const bool saved = local_rank < m.rank_states.size() && !m.rank_states[local_rank].empty();
    if (!saved && !held) continue;
    RankState mine = saved ? RankState{m.resume_round, m.rank_states[local_rank]} : held->state;
    if (!StateHead::of(mine.state).large) continue;
    running.states.deliver(trainer.id, StateDelivery::Whose::kOwn, std::move(mine), now_ms);
  }
  if (!m.first_state.empty()) deliver_first(running, {m.resume_round, m.first_state}, now_ms);
}

}  // namespace tributary
