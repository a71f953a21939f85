#include "tests/sim/worker_sim.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "tests/sim/cluster_world.h"

namespace tributary::sim {
namespace {

constexpr std::size_t kWorkerOutbox = 100;
constexpr std::uint64_t kTickNs = 50'000'000;
constexpr std::uint64_t kMaxLocalNs = 300'000;  // between threads and processes of a machine
constexpr std::string_view kName = "worker ";

NodeJobsOptions options_of(const ClusterScenario& scenario, std::uint64_t incarnation) {
  NodeJobsOptions options;
  options.incarnation = incarnation;
  options.max_memory = 1ull << 30;
  options.peer_timeout_ms = ClusterWorld::kPeerTimeoutMs;
  options.max_redo_rounds = scenario.ring_rounds;
  return options;
}

}  // namespace

WorkerSim::WorkerSim(JobWorld& world, std::uint32_t node)
    : Process(world.clock, world.machine_of(node)),
      world_(world),
      node_(node),
      incarnation_(world.fresh_incarnation()),
      name_(world.name_of("worker", node)) {
  jobs_ = std::make_unique<NodeJobs>(options_of(world.scenario, incarnation_), static_cast<TrainerPort&>(*this),
                                     static_cast<CoordinatorPort&>(*this), static_cast<LanePort&>(*this),
                                     world.logger(name_));
  link_ = std::make_unique<ControlLinkSim>(world.wires, *this, world.cluster.scenario.coordinators, std::nullopt,
                                           ClusterWorld::kPeerTimeoutMs, [this](Packet& packet) { receive(packet); });
  beat_ = [this] {
    if (link_->turn(coordinator_ != 0)) forget();
    beat();
    const std::uint64_t ms =
        coordinator_ == 0 ? std::min<std::uint64_t>(ClusterWorld::kHeartbeatMs, 100) : ClusterWorld::kHeartbeatMs;
    after(ms * 1'000'000, beat_);
  };
  after(0, beat_);
  tick_ = [this] {
    jobs_->tick(now_ms());
    for (const auto& lane : lanes_) lane->tick();
    for (const auto& lane : keeping_) lane->tick();
    std::erase_if(keeping_, [](const auto& lane) { return lane->job().kept(); });
    look_after_replicas();
    flush();
    after(kTickNs, tick_);
  };
  after(kTickNs, tick_);
}

// Nobody hears of its end but through the kernel.
WorkerSim::~WorkerSim() {
  outbox_.clear();
  link_.reset();
  for (auto& [id, entry] : trainers_) {
    if (entry.trainer) entry.trainer->worker_died(id);
    entry.trainer = nullptr;
  }
  lanes_.clear();
  keeping_.clear();
  replicas_.clear();
  ending_replicas_.clear();
}

std::uint32_t WorkerSim::node_of(const std::string& name) {
  return static_cast<std::uint32_t>(std::stoul(name.substr(kName.size())));
}

void WorkerSim::drain() {
  world_.stops();
  jobs_->drain(now_ms());
  world_.wake_trainers(node_);
}

// ---- The coordinator ----

bool WorkerSim::transmit(const ControlMessage& message) {
  return link_->send(message);
}

void WorkerSim::send(const ControlMessage& message) {
  if (!link_) return;  // it is being killed
  const auto* values = std::get_if<RankValues>(&message);
  if (values && values->shared.complete && world_.mutation == Mutation::kForgottenAnswers) return;
  if (const auto* join = std::get_if<JoinJob>(&message); join && join->redo_job != JobId()) has_ring_ = true;
  if (outbox_.size() >= kWorkerOutbox) return world_.broken("a worker has too much to say to the coordinator");
  outbox_.push_back(message);
  after(0, [this] { flush(); });
}

void WorkerSim::flush() {
  while (coordinator_ != 0 && !outbox_.empty()) {
    if (!transmit(Heartbeat{incarnation_, {}}) || !transmit(outbox_.front())) return;
    outbox_.pop_front();
  }
}

// As AttachServer::heartbeat(), without the times that the host took.
Heartbeat WorkerSim::heartbeat() const {
  const std::vector<NodeJobSummary> jobs = jobs_->summaries();
  Heartbeat beat{incarnation_, progress_of(jobs)};
  for (const NodeJobSummary& summary : jobs) {
    if (!summary.job) continue;
    const NodePace pace = summary.job->pace();
    beat.paces.push_back({.job = pace.job,
                          .view = pace.view,
                          .node = NodeRank(summary.node),
                          .answers = pace.answers,
                          .said = pace.said});
  }
  return beat;
}

void WorkerSim::beat() {
  if (coordinator_ == 0) {
    transmit(WorkerHello{name_, incarnation_, name_, 1.0, "socket of " + name_});
  } else {
    transmit(heartbeat());
  }
}

void WorkerSim::forget() {
  if (coordinator_ == 0) return;
  coordinator_ = 0;
  link_->forgotten();
  transmit(WorkerHello{name_, incarnation_, name_, 1.0, "socket of " + name_});
  jobs_->coordinator_restarted(now_ms());
}

void WorkerSim::receive(Packet& packet) {
  const ControlMessage& message = std::get<ControlMessage>(packet.message);
  if (!link_->hears(message)) return forget();
  if (const auto* reply = std::get_if<HelloReply>(&message)) {
    const bool other = coordinator_ != 0 && coordinator_ != reply->coordinator_incarnation;
    coordinator_ = reply->coordinator_incarnation;
    if (other) jobs_->coordinator_restarted(now_ms());
  } else if (const auto* beat = std::get_if<HeartbeatReply>(&message)) {
    if (beat->coordinator_incarnation != coordinator_) forget();
  } else {
    ControlMessage heard = message;
    auto* welcome = std::get_if<JobWelcome>(&heard);
    if (welcome && world_.mutation == Mutation::kOldRing) welcome->members = 1;
    jobs_->on_control(heard, now_ms());
  }
  flush();
}

// ---- Trainers ----

TrainerId WorkerSim::connect(TrainerSim& trainer) {
  const TrainerId id = world_.fresh_trainer();
  trainers_[id].trainer = &trainer;
  return id;
}

void WorkerSim::trainer_says(TrainerId trainer, std::function<void(NodeJobs&)> what) {
  const auto found = trainers_.find(trainer);
  if (found == trainers_.end()) return;  // its worker is dead, and it does not know that yet
  std::uint64_t& until = found->second.says_until_ns;
  until = std::max(until + 1, now_ns() + world_.random.below(kMaxLocalNs));
  after(until - now_ns(), [this, what = std::move(what)] {
    what(*jobs_);
    flush();
  });
}

void WorkerSim::trainer_gone(TrainerId trainer) {
  if (const auto found = trainers_.find(trainer); found != trainers_.end()) found->second.trainer = nullptr;
  trainer_says(trainer, [this, trainer](NodeJobs& jobs) {
    jobs.gone(trainer, now_ms());
    trainers_.erase(trainer);
  });
}

void WorkerSim::send(TrainerId to, const AttachMessage& message, std::span<const int> fds) {
  const auto found = trainers_.find(to);
  if (found == trainers_.end() || !found->second.trainer) return;
  std::uint64_t& until = found->second.hears_until_ns;
  until = std::max(until + 1, now_ns() + world_.random.below(kMaxLocalNs));
  std::shared_ptr<FileDescriptor> ring;
  const bool state = std::holds_alternative<HeldState>(message) || std::holds_alternative<RankState>(message);
  if (state && !fds.empty()) ring = std::make_shared<FileDescriptor>(::dup(fds.front()));
  if (const auto* reply = std::get_if<AttachReply>(&message); reply && reply->redo) {
    ring = std::make_shared<FileDescriptor>(::dup(fds.back()));
    has_ring_ = true;
  }
  found->second.trainer->hear(to, message, std::move(ring), until - now_ns());
}

std::shared_ptr<NodeJob> WorkerSim::memory(JobId job, ViewId view) const {
  for (const NodeJobSummary& summary : jobs_->summaries()) {
    if (summary.job && summary.job->view().job == job && summary.job->view().view == view) return summary.job;
  }
  return nullptr;
}

void WorkerSim::ring_doorbells() {
  if (std::exchange(rung_, true)) return;
  after(world_.random.below(kMaxLocalNs), [this] {
    rung_ = false;
    for (const auto& lane : lanes_) lane->scan();
    for (const auto& view : replicas_) view->scan();
  });
}

// ---- Lanes ----

std::vector<int> WorkerSim::doorbells(bool allreduce) const {
  return std::vector<int>(allreduce ? 1 : world_.scenario.lanes, -1);
}

void WorkerSim::command(std::function<void()> action) {
  commands_until_ns_ = std::max(commands_until_ns_ + 1, now_ns() + world_.random.below(kMaxLocalNs));
  after(commands_until_ns_ - now_ns(), std::move(action));
}

template <class Function>
void WorkerSim::each_lane(const std::shared_ptr<NodeJob>& job, Function&& function) {
  for (const auto& lane : lanes_) {
    if (lane->memory() == job) function(*lane);
  }
}

void WorkerSim::open(const std::shared_ptr<NodeJob>& job) {
  command([this, job] {
    if (!job->plan().on_servers()) {
      replicas_.push_back(std::make_shared<ReplicaViewSim>(world_, *this, job, world_.replica_disk(node_)));
      replicas_.back()->open();
      for (const PeerAddress& address : std::exchange(early_, {})) peer_address(address);
      return;
    }
    const Layout& layout = job->layout();
    const bool forgets =
        world_.mutation == Mutation::kForgottenWords && job->spec().redo && job->plan().push->keeps_residual();
    for (std::uint32_t c = 0; c < layout.chunks() && forgets; ++c) {
      job->spec().redo->begin_residual(ChunkIndex(c), job->view().start);
    }
    for (std::uint16_t index = 0; index < world_.scenario.lanes; ++index) {
      const auto lanes = static_cast<std::uint16_t>(world_.scenario.lanes);
      if (LaneChunks::count(layout, index, lanes) == 0) continue;
      lanes_.push_back(std::make_unique<WorkerLaneSim>(world_, *this, job, index));
    }
  });
}

void WorkerSim::initial_values(const std::shared_ptr<NodeJob>& job) {
  command([this, job] {
    each_lane(job, [](WorkerLaneSim& lane) { lane.job().initial_values(); });
    if (ReplicaViewSim* view = replica(job.get())) view->initial_values();
  });
}

void WorkerSim::close(const std::shared_ptr<NodeJob>& job, bool keep) {
  if (!link_) return;  // it is being killed
  world_.wake_trainers(node_);
  command([this, job, keep] {
    for (auto& lane : lanes_) {
      if (lane->memory() == job && keep && lane->job().keep_residuals()) keeping_.push_back(std::move(lane));
    }
    std::erase_if(lanes_, [&](const auto& lane) { return !lane || lane->memory() == job; });
    const auto view = std::ranges::find(replicas_, job, &ReplicaViewSim::job);
    if (view == replicas_.end()) return;
    (*view)->close(keep);
    if (keep) ending_replicas_.push_back(*view);
    replicas_.erase(view);
  });
}

// ---- All-reduce (worker/allreduce/allreduce_lane.cc) ----

void WorkerSim::publish(PeerAddress address) {
  command([this, address = std::move(address)] { jobs_->publish(address, now_ms()); });
}

ReplicaViewSim* WorkerSim::replica(const NodeJob* job) const {
  const auto found = std::ranges::find_if(replicas_, [&](const auto& view) { return view->job().get() == job; });
  return found == replicas_.end() ? nullptr : found->get();
}

void WorkerSim::peer_address(const PeerAddress& address) {
  command([this, address] {
    const auto found = std::ranges::find_if(replicas_, [&](const auto& view) {
      return view->job()->view().job == address.job && view->job()->view().view == address.view;
    });
    if (found != replicas_.end()) return (*found)->peer_address(address);
    early_.push_back(address);
  });
}

bool WorkerSim::keeps_replicas() const {
  return !ending_replicas_.empty();
}

Result<std::optional<Round>> WorkerSim::newest_checkpoint(const JobConfig&, const Layout&) const {
  if (keeps_replicas()) return std::optional<Round>();
  return world_.replica_disk(node_).newest().map([](Round newest) { return std::optional(newest); });
}

void WorkerSim::look_after_replicas() {
  std::erase_if(ending_replicas_, [this](const std::shared_ptr<ReplicaViewSim>& view) {
    if (!view->kept()) return false;
    if (view->job()->spec().node.value == 0) jobs_->checkpointed(view->left(), now_ms());
    return true;
  });
}

void WorkerSim::lane_failed(std::shared_ptr<NodeJob> job, LaneFailure failure) {
  command([this, job = std::move(job), failure = std::move(failure)] {
    jobs_->lane_failed(job, failure, now_ms());
    flush();
  });
}

}  // namespace tributary::sim
