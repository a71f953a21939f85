#include "tests/sim/trainer_sim.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "tests/gradient_place.h"
#include "tests/sim/cluster_world.h"
#include "tests/sim/judge/reference.h"

namespace tributary::sim {
namespace {

constexpr std::uint64_t kAttachTimeoutNs = 120'000'000'000;
constexpr std::uint64_t kReplyTimeoutNs = 10'000'000'000;
constexpr std::uint64_t kLivenessNs = 50'000'000;
constexpr std::size_t kStatesKept = 3, kStatesOfStop = 2;

}  // namespace

TrainerSim::TrainerSim(JobWorld& world, std::uint32_t node, std::uint32_t local_rank)
    : Process(world.clock, world.machine_of(node)),
      world_(world),
      node_(node),
      place_(world.place_of(node)),
      local_rank_(local_rank),
      rank_(place_ * world.scenario.ranks + local_rank) {
  after(0, [this] { attach(); });
}

TrainerSim::~TrainerSim() {
  close();
}

std::string TrainerSim::name() const {
  return world_.name_of("trainer", rank_);
}

void TrainerSim::say(std::function<void(NodeJobs&, TrainerId)> what) {
  WorkerSim* worker = world_.worker(node_);
  if (!connection_ || !worker) return;
  worker->trainer_says(*connection_, [what = std::move(what), id = *connection_](NodeJobs& jobs) { what(jobs, id); });
}

void TrainerSim::close() {
  WorkerSim* worker = world_.worker(node_);
  if (connection_ && worker) worker->trainer_gone(*connection_);
  connection_.reset();
  job_.reset();
}

void TrainerSim::attach() {
  WorkerSim* worker = world_.worker(node_);
  if (!worker) return attach_again("the worker daemon is gone");
  phase_ = Phase::kAttaching;
  stopped_.reset();
  connection_ = worker->connect(*this);
  AttachRequest request;
  request.job_json = world_.job_json;
  request.rank = rank_;
  request.local_rank = local_rank_;
  // In an elastic job: of the nodes that its starter knows of.
  const ClusterScenario& scenario = world_.scenario;
  const std::uint32_t nodes = scenario.elastic ? std::max(scenario.first_nodes, place_ + 1) : scenario.nodes;
  request.world_size = nodes * scenario.ranks;
  request.local_world_size = world_.scenario.ranks;
  request.node_rank = place_;
  request.pid = static_cast<std::int32_t>(1000 + rank_);
  request.tensors = world_.tensors;
  if (scenario.large_states) request.lived_in = lived_in_;
  request.gradients_move = scenario.gradients_move;
  if (const auto model_ranks = scenario.model_ranks(); !model_ranks.empty()) request.model_rank = model_ranks[rank_];
  std::shared_ptr<FileDescriptor> kept;
  if (kept_) kept = std::make_shared<FileDescriptor>(::dup(kept_->get()));
  // It may be dead when this arrives.
  say([&clock = world_.clock, request, kept](NodeJobs& jobs, TrainerId id) {
    jobs.attach(id, request, 0, clock.now_ns() / 1'000'000, kept ? std::move(*kept) : FileDescriptor());
  });
  after(kAttachTimeoutNs, [this, attempt = ++attaches_] {
    if (phase_ == Phase::kAttaching && attempt == attaches_) attach_again("the job did not come together");
  });
}

void TrainerSim::attach_again(const std::string& why) {
  if (job_) {
    const auto state = static_cast<RegionState>(job_->header().state.load(std::memory_order_acquire));
    retries_.ended(state == RegionState::kRestart, world_.scenario.membership());
  }
  close();
  // The next session must have the state of the last complete round, if this session made or loaded that state.
  const bool knows = std::ranges::find(states_, complete_, &KeptState::round) != states_.end();
  if (!states_.empty()) own_states_ = std::exchange(states_, {});
  if (knows) knows_ = complete_;
  phase_ = Phase::kPausing;
  const AttachRetries::Clock::time_point now{std::chrono::nanoseconds(world_.clock.now_ns())};
  const auto next = retries_.next(std::exchange(moved_, false), now);
  if (!next) return world_.broken(name() + " " + retries_.gave_up(why));
  const std::chrono::nanoseconds pause = *next;
  world_.say(name(), "attaches again: " + why);
  after(static_cast<std::uint64_t>(pause.count()), [this] { attach(); });
}

void TrainerSim::worker_died(TrainerId connection) {
  after(world_.random.below(kLivenessNs), [this, connection] {
    if (connection_ != connection) return;
    connection_.reset();
    if (phase_ == Phase::kSaving && left_ == LeaveKind::kStopped) {
      phase_ = Phase::kDone;
      return;
    }
    attach_again("the worker daemon is gone");
  });
}

void TrainerSim::hear(TrainerId connection, AttachMessage message, std::shared_ptr<FileDescriptor> memory,
                      std::uint64_t delay_ns) {
  after(delay_ns, [this, connection, message = std::move(message), memory = std::move(memory)] {
    if (connection_ != connection) return;
    if (const auto* reply = std::get_if<AttachReply>(&message)) return on(*reply, memory);
    if (const auto* own = std::get_if<HeldState>(&message)) return on(*own, memory);
    if (const auto* first = std::get_if<RankState>(&message)) return on(*first, memory);
    if (const auto* answer = std::get_if<SharedValues>(&message)) return on(*answer);
    const auto* error = std::get_if<AttachError>(&message);
    if (error && phase_ == Phase::kSaving) not_saved_ = Error{error->code, error->message};
    if (error && phase_ != Phase::kSaving) return on(*error);
    if (const auto* stopped = std::get_if<AttachStopped>(&message)) stopped_ = *stopped;
    if (phase_ == Phase::kSaving && std::holds_alternative<AttachStopped>(message)) return saved();
    if (std::holds_alternative<DetachReply>(message) && phase_ == Phase::kFinishing) {
      phase_ = Phase::kSaving;
      return;
    }
    look();
  });
}

void TrainerSim::on(const AttachReply& reply, const std::shared_ptr<FileDescriptor>& ring) {
  if (phase_ != Phase::kAttaching) return;
  kept_ = ring;
  WorkerSim* worker = world_.worker(node_);
  job_ = worker ? worker->memory(reply.job, reply.view) : nullptr;
  if (!job_) return attach_again("the view is over already");
  resume_ = reply.resume_round;
  begin_states(reply);
  begin_values(reply);
  phase_ = Phase::kStarting;
  const Layout& layout = job_->layout();
  for (std::size_t t = 0; t < layout.tensors().size(); ++t) {
    if (reply.resume || job_->view().model_ranks.first_with(layout.tensors()[t]) != reply.rank) continue;
    const auto [begin, end] = elements_of(t);
    for (std::uint64_t e = begin; e < end; ++e) {
      job_->parameters()[e] = initial_value(world_.scenario.seed, e + in_whole(t));
    }
  }
  if (job_->spec().gives_values(local_rank_)) {
    say([](NodeJobs& jobs, TrainerId id) { jobs.initial_values(id); });
  }
  look();
}

// As Session does, and who trains with it.
void TrainerSim::begin_states(const AttachReply& reply) {
  const bool large = world_.scenario.large_states;
  view_rank_ = reply.rank;
  given_.clear();
  coming_.reset();
  const auto own = std::ranges::find(own_states_, resume_, &KeptState::round);
  const bool lived = reply.state.empty() && own != own_states_.end();
  const bool held = large && reply.state.empty() && !lived && !reply.held_state.empty();
  KeptState state = lived ? *own : KeptState{{resume_, held ? reply.held_state : reply.state}};
  world_.judge.begins(job_->spec(), rank_, state.body(), lived || held);
  if (state.state.state.empty() && knows_ && *knows_ == resume_) {
    world_.broken(name() + " has forgotten its own state after round " + std::to_string(resume_.value));
  }
  knows_.reset();
  const bool any = !state.state.state.empty();
  if (any && state.complete()) {
    states_ = {state};
    knows_ = resume_;
    if (large && reply.held_state.empty()) hold(state);
    if (reply.state.empty()) give(state);
  } else if (any) {
    coming_ = state;
  }
  if (!large) return;
  if (world_.scenario.rewinds && reply.resume && reply.first == FirstState::kNone && !world_.brought_back()) {
    world_.broken(name() + " begins at round " + std::to_string(resume_.value) + " without what anybody kept");
  }
  awaits_first_ = reply.first == FirstState::kComes && (!any || !state.head().whole);
  gives_first_ = reply.first == FirstState::kGiven;
  if (!coming_) give_first();
}

// The whole state of the round at which the view begins, of the rank that others get theirs from.
void TrainerSim::give_first() {
  if (!std::exchange(gives_first_, false)) return;
  if (states_.empty()) {
    states_ = {state_after(resume_)};
    world_.judge.makes_up(rank_, resume_);
  }
  KeptState whole = states_.back();  // as it has lived, it knows what the first rank did
  whole.state.state = StateHead{whole.head().large, true}.before(whole.body());
  hold(whole);
  given_.erase(resume_);
  give(whole);
}

namespace {

std::shared_ptr<const SealedBytes> received(const StateHead& head, const std::shared_ptr<FileDescriptor>& memory) {
  if (!head.large || !memory) return nullptr;
  auto bytes = SealedBytes::received(FileDescriptor(::dup(memory->get())), head.large.bytes, "what a rank kept");
  return bytes ? *bytes : nullptr;
}

std::vector<std::byte> copy_of(const SealedBytes& large) {
  return {large.bytes().begin(), large.bytes().end()};
}

}  // namespace

void TrainerSim::on(const HeldState& m, const std::shared_ptr<FileDescriptor>& memory) {
  if (!coming_ || !job_) return;
  KeptState state = *std::exchange(coming_, std::nullopt);
  if (m.held.state != state.state.state) world_.broken(name() + " gets another state than it was to get");
  state.large = received(state.head(), memory);
  if (!state.large) return attach_again("what it kept is lost");
  const std::vector<std::byte> bytes = copy_of(*state.large);
  world_.judge.gets_large(job_->spec(), rank_, state.body(), &bytes);
  states_ = {state};
  knows_ = resume_;
  hold(state);
  give(state);
  give_first();
  look();
}

void TrainerSim::on(const RankState& m, const std::shared_ptr<FileDescriptor>& memory) {
  if (!awaits_first_ || !job_) return;
  awaits_first_ = false;
  const auto large = received(StateHead::of(m.state), memory);
  if (StateHead::of(m.state).large && !large) return attach_again("what the first rank kept is lost");
  const std::vector<std::byte> bytes = large ? copy_of(*large) : std::vector<std::byte>();
  world_.judge.gets_first(job_->spec(), rank_, m.state, large ? &bytes : nullptr);
  look();
}

void TrainerSim::on(const AttachError& error) {
  // A leave that was lost with a forgotten connection keeps the old rank of that node taken until its worker joins again.
  const bool taken = error.code == ErrorCode::kTopology && world_.permutes();
  if (may_come_back({error.code, error.message}) || taken) return attach_again(error.message);
  close();
  phase_ = Phase::kDone;
  if (error.code == ErrorCode::kStopped) return;  // the cluster is; it is started again
  failure_ = Error{error.code, error.message};
  world_.say(name(), "fails: " + error.message);
}

bool TrainerSim::all_at(Round round) const {
  for (std::uint32_t c = 0; c < job_->layout().chunks(); ++c) {
    if (!holds(job_->layout().tensors_of(ChunkIndex(c)).first)) continue;
    if (job_->chunk_words()[c].version_plus_one.load(std::memory_order_acquire) <= round.value) return false;
  }
  return true;
}

void TrainerSim::wake() {
  after(world_.random.below(200'000), [this] { look(); });
}

void TrainerSim::look() {
  if (!job_ || (phase_ != Phase::kStarting && phase_ != Phase::kWaiting && phase_ != Phase::kGathering)) return;
  const auto state = static_cast<RegionState>(job_->header().state.load(std::memory_order_acquire));
  if (state <= RegionState::kStopRequested) give_for_snapshot();
  if (phase_ == Phase::kGathering) {
    if (state > RegionState::kStopRequested) over();
    return;
  }
  const bool there = all_at(phase_ == Phase::kStarting ? resume_ : ready_);
  if (state == RegionState::kFailed || state == RegionState::kRestart) return over();
  if (phase_ == Phase::kStarting && (coming_ || awaits_first_) && state <= RegionState::kStopRequested) return;
  if (!there) {
    if (state > RegionState::kStopRequested) over();
    return;
  }
  if (phase_ == Phase::kStarting) {
    if (!world_.scenario.one_ends) {
      job_->header().last_round.store(world_.scenario.rounds, std::memory_order_relaxed);
    }
    pushed_ = ready_ = resume_;
    lived_in_ = job_->spec().view->job;
  }
  complete_ = pushed_;
  moved_ = complete_ > resume_;
  if (state == RegionState::kStopRequested) return finish(LeaveKind::kStopped);
  if (state == RegionState::kStopped) {
    if (!stopped_) return;  // the worker's words are under way
    if (stopped_->kind != StopKind::kFinished) return finish(LeaveKind::kStopped);
    if (world_.scenario.one_ends) return over();
  }
  if (phase_ == Phase::kWaiting) ask_after(complete_);
  gather();
}

// The view has ended, in whatever order.
void TrainerSim::over() {
  const auto state = static_cast<RegionState>(job_->header().state.load(std::memory_order_acquire));
  if (state == RegionState::kStopped && world_.scenario.one_ends) {
    if (!stopped_) return;  // the worker's words are under way
    if (stopped_->kind == StopKind::kFinished) return end(LeaveKind::kFinished);
  }
  if (state == RegionState::kStopped) return finish(LeaveKind::kStopped);
  if (state == RegionState::kRestart) return attach_again(stopped_ ? stopped_->reason : "the view is over");
  phase_ = Phase::kOver;  // the worker says why
  after(kReplyTimeoutNs, [this, attempt = attaches_] {
    if (phase_ == Phase::kOver && attempt == attaches_) attach_again("the worker has given the job up");
  });
}

void TrainerSim::next() {
  if (complete_.value >= world_.scenario.rounds) {
    if (!world_.scenario.one_ends) return end(LeaveKind::kFinished);
    if (rank_ == 0) return end(LeaveKind::kFinishesAll);
  }
  phase_ = Phase::kComputing;
  std::uint64_t work = world_.scenario.work_ns * world_.scenario.slowness(node_);
  if (world_.scenario.deadline) work = std::min(work, world_.scenario.work_ns * 3 / 2);
  after(world_.random.between(work / 2, work * 3 / 2), [this, round = complete_.value + 1, job = job_] {
    if (job == job_) await_replica(round);
  });
}

// With model parallelism the ranks of a replica compute a round together: none has its gradients before all of them
// have the parameters of the round before.
void TrainerSim::await_replica(std::uint64_t round) {
  const ModelRanks& all = job_->view().model_ranks;
  const ViewId view = job_->view().view;
  world_.backward[{view, rank_}] = round;
  bool together = true;
  for (std::uint32_t rank = 0; rank < all.by_rank().size(); ++rank) {
    if (replica_of(all, rank) != replica_of(all, rank_)) continue;
    const auto mate = world_.backward.find({view, rank});
    together &= mate != world_.backward.end() && mate->second >= round;
  }
  if (together) return compute(round, job_->layout().tensors().size());
  const auto state = static_cast<RegionState>(job_->header().state.load(std::memory_order_acquire));
  if (state > RegionState::kStopRequested) return over();  // its peers have gone
  after(1'000'000, [this, round, job = job_] {
    if (job == job_ && phase_ == Phase::kComputing) await_replica(round);
  });
}

// With a deadline: a random number, another one if the trainer computes the round again.
std::uint64_t TrainerSim::samples_of(std::uint64_t round) const {
  const ModelRanks& model_ranks = job_->view().model_ranks;
  if (!world_.scenario.deadline) {
    return sample_weight(world_.scenario.seed, replica_of(model_ranks, rank_), round);
  }
  return world_.random.between(1, 8);
}

// Returns a tensor's range in this node's flat space, with the padding up to the next tensor, as the reference has it.
std::pair<std::uint64_t, std::uint64_t> TrainerSim::elements_of(std::size_t tensor) const {
  const Layout& layout = job_->layout();
  const bool last = tensor + 1 == layout.tensors().size();
  return {layout.tensor_offset(tensor), last ? layout.flat_elements() : layout.tensor_offset(tensor + 1)};
}

// Returns the distance from an element's place in this node's flat space to its place in the whole model's.
std::uint64_t TrainerSim::in_whole(std::size_t tensor) const {
  const Layout& layout = job_->layout();
  return world_.offsets[layout.tensor_in_whole(tensor)] - layout.tensor_offset(tensor);
}

bool TrainerSim::holds(std::size_t tensor) const {
  return job_->layout().tensors()[tensor].held_at(job_->spec().model_ranks(), local_rank_);
}

// The last layer's first, each a moment after the other.
void TrainerSim::compute(std::uint64_t round, std::size_t tensors_left) {
  const Layout& layout = job_->layout();
  const std::size_t tensor = tensors_left - 1;
  if (tensors_left == layout.tensors().size()) {
    weight_ = samples_of(round);
    keep(Round(round));
  }
  if (!holds(tensor)) return computed(round, tensor);
  const auto [begin, end] = elements_of(tensor);
  auto* gradients = testing::gradient_place(*job_, local_rank_, Round(round));
  const GateDecision gate = job_->header().gate[(round - 1) % kGateWords].read(round - 1);
  const bool forgets =
      world_.mutation == Mutation::kFirstScale && world_.scenario.elastic && round == resume_.value + 1;
  const float scale = gate.known() && !forgets ? gate.loss_scale : world_.scenario.first_scale();
  const std::uint64_t seed = world_.scenario.seed, whole = in_whole(tensor);
  const float* const parameters = job_->parameters();
  for (std::uint64_t e = begin; e < end; ++e) {
    gradients[e] = gradient_value(seed, rank_, round, e + whole, parameters[e]) * scale;
    if (world_.scenario.deadline) gradients[e] *= static_cast<float>(weight_);
  }
  auto& word = const_cast<TensorWord&>(job_->tensor_words(local_rank_)[tensor]);
  word.weight.store(weight_, std::memory_order_relaxed);
  if (world_.scenario.says_settings) {
    const std::uint32_t group = layout.tensors()[tensor].group;
    word.set(settings_of(world_.scenario.seed, round, group, *job_->plan().optimizer));
  }
  job_->rank_words(local_rank_).say(tensor, ready_.value + 1);
  if (WorkerSim* worker = world_.worker(node_)) worker->ring_doorbells();
  computed(round, tensor);
}

void TrainerSim::computed(std::uint64_t round, std::size_t tensor) {
  if (tensor == 0) {
    pushed_ = Round(round);
    ready_ = ready_.next();
    phase_ = Phase::kWaiting;
    return look();
  }
  after(world_.random.below(1'000'000), [this, round, tensor, job = job_] {
    if (job == job_) compute(round, tensor);
  });
}

// Session::keep(), and what it does with it.
void TrainerSim::keep(Round round) {
  if (states_.size() >= kStatesKept) states_.erase(states_.begin());
  states_.push_back(state_after(round));
  if (world_.scenario.large_states) hold(states_.back());
  give_for_snapshot();
}

KeptState TrainerSim::state_after(Round round) const {
  const std::vector<std::byte> body = ClusterJudge::state_of(rank_, round, job_->view().view);
  if (!world_.scenario.large_states) return {{round, body}};
  const std::vector<std::byte> large = ClusterJudge::large_of(rank_, round);
  const auto [high, low] = Checksum128().add(large.data(), large.size()).value();
  const StateHead head{{large.size(), high, low}, ClusterJudge::keeps_whole(view_rank_)};
  const std::span<const std::byte> parts[] = {large};
  auto sealed = SealedBytes::of(parts, "what a rank keeps");
  if (!sealed) world_.broken(sealed.error().message);
  return {{round, head.before(body)}, sealed ? *sealed : nullptr};
}

void TrainerSim::hold(const KeptState& state) {
  say([&clock = world_.clock, state](NodeJobs& jobs, TrainerId id) {
    jobs.held_state(id, state, clock.now_ns() / 1'000'000);
  });
}

void TrainerSim::give_for_snapshot() {
  const std::uint64_t wanted = job_->header().snapshot_round.load(std::memory_order_relaxed);
  for (const KeptState& state : states_) {
    if (state.round().value == wanted) give(state);
  }
}

void TrainerSim::give(const KeptState& state) {
  if (!given_.insert(state.round()).second) return;
  world_.judge.gives(rank_, state.round());
  say([state = state.state](NodeJobs& jobs, TrainerId id) { jobs.rank_state(id, state); });
}

// Session::saved(), and what the built-in trainer makes of it.
void TrainerSim::saved() {
  if (world_.scenario.mode == Mode::kAllreduce) world_.replicas_judge.told(stopped_->round, not_saved_);
  const bool again = left_ != LeaveKind::kStopped && not_saved_ && may_come_back(*not_saved_);
  if (again) return attach_again(not_saved_->message);
  if (not_saved_) world_.say(name(), "is not saved: " + not_saved_->message);
  close();
  phase_ = Phase::kDone;
}

void TrainerSim::end(LeaveKind kind) {
  world_.judge.trained(place_, local_rank_, job_->spec(), {job_->parameters(), job_->layout().flat_elements()});
  finish(kind);
}

void TrainerSim::finish(LeaveKind kind) {
  left_ = kind;
  not_saved_.reset();
  world_.say(name(), "leaves after round " + std::to_string(complete_.value));
  if (kind == LeaveKind::kStopped && world_.cluster.scenario.faults.empty()) {
    world_.broken(name() + " was stopped, but nobody has asked for that");
  }
  if (kind == LeaveKind::kStopped && world_.scenario.mode != Mode::kAllreduce) {
    world_.judge.stops_at(std::max(complete_, resume_));  // it may not have got the view's first parameters yet
  }
  const std::size_t older = states_.size() - std::min(states_.size(), kStatesOfStop);
  for (std::size_t i = older; i < states_.size(); ++i) give(states_[i]);
  phase_ = Phase::kFinishing;
  say([&clock = world_.clock, kind](NodeJobs& jobs, TrainerId id) {
    jobs.detach(id, Detach{kind, {}}, clock.now_ns() / 1'000'000);
  });
}

}  // namespace tributary::sim
