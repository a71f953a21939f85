#include "tests/sim/server_sim.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "tests/sim/cluster_world.h"

namespace tributary::sim {
namespace {

constexpr std::uint64_t kHelloMs = 1000;
// Control's.
constexpr std::uint64_t kDrainAloneMs = 1000, kDrainAgainMs = 5000;
constexpr std::uint64_t kControlTickNs = 100'000'000, kBusyTickNs = 20'000'000;
constexpr std::uint64_t kCoordinatorTickNs = 100'000'000;
constexpr std::uint64_t kMaxSayNs = 500'000;
constexpr std::size_t kServerOutbox = 100;

ServerConfig config_of(std::uint16_t servers, std::uint16_t index) {
  ServerConfig config;
  config.index = index;
  config.servers = servers;
  return config;
}

// Do two views begin with the same, as far as this server is concerned?
bool begin_alike(const OpenJob& a, const OpenJob& b) {
  const auto what = [](const OpenJob& m) {
    return std::tie(m.job, m.job_json, m.owners, m.nodes, m.model_ranks, m.resume, m.resume_round, m.kept);
  };
  return what(a) == what(b);
}

}  // namespace

ServerSim::ServerSim(ClusterWorld& world, std::uint16_t index, Disk& disk, bool moved)
    : Process(world.clock, ClusterWorld::machine_of_server(index)),
      world_(world),
      index_(index),
      incarnation_(world.fresh_incarnation()),
      name_("server " + std::to_string(index)),
      store_(disk, ShardIndex(index), world.mutation != Mutation::kUnsyncedRegistry,
             world.mutation != Mutation::kFailedDrop),
      snapshots_(
          *this, store_, world.checkpoints,
          {.shard = ShardIndex(index),
           .step_ns = world.scenario.disk_step_ns,
           .syncs = world.mutation != Mutation::kUnsyncedSnapshot},
          [this](const ChunkSnapshot& snapshot) { world_.job(snapshot.job).judge.snapshot_read(snapshot); },
          [this](const SnapshotDone& done) { lane_says([done](ControlJobs& jobs) { jobs.snapshot_finished(done); }); },
          [this](const WriteCheckpoint& order, const CheckpointDone& done) {
            world_.outcome().from_memory += done.ok ? 1 : 0;
            lane_says([order, done](ControlJobs& jobs) { jobs.checkpoint_written(order, done); });
          }),
      orders_(
          *this, store_, {.chunk_ns = world.scenario.load_step_ns, .drop_ns = world.scenario.disk_step_ns},
          [this](JobId job) { return loads(job); },
          [this](std::function<void()> event) { lane_says([event = std::move(event)](ControlJobs&) { event(); }); }),
      records_(
          *this, store_, {.drop_ns = world.scenario.disk_step_ns}, [](JobId) { return [] {}; },
          [this](std::function<void()> event) {
            if (coordinator_) return after(kMaxSayNs, std::move(event));  // the coordinator's
            lane_says([event = std::move(event)](ControlJobs&) { event(); });
          }),
      fetches_(
          *this, store_, world.scenario.load_step_ns, world.mutation != Mutation::kUnsyncedCopy,
          [this](ShardIndex server) { return world_.readable_store(machine(), server); },
          [this](std::function<void()> event) { lane_says([event = std::move(event)](ControlJobs&) { event(); }); }),
      checkpoints_(*this, store_, world.checkpoints, ShardIndex(index), world.scenario.disk_step_ns,
                   [this](const CheckpointDone& done) {
                     lane_says([this, done](ControlJobs&) {
                       if (done.operation != 0) return send(done);
                       if (done.ok && !done.unchanged) hello();
                     });
                   }),
      jobs_(config_of(world.servers(), index), &store_, world.logger(name_), static_cast<ControlJobsOutput&>(*this)),
      coordinator_id_(world.fresh_incarnation()) {
  std::vector<LaneCommands*> commands;
  for (std::uint16_t lane = 0; lane < world.scenario.lanes; ++lane) {
    lanes_.push_back(std::make_unique<ServerLaneSim>(world, *this, LaneIndex(lane)));
    commands.push_back(lanes_.back().get());
  }
  jobs_.start(std::move(commands), {&snapshots_, &orders_, &records_, &fetches_});
  if (index < world.scenario.coordinators && !moved) serve_coordinator();
  link_ = std::make_unique<ControlLinkSim>(world.wires, *this, world.scenario.coordinators, store_.terms()->promised,
                                           ClusterWorld::kPeerTimeoutMs, [this](Packet& packet) { receive(packet); });
  control_tick_ = [this] {
    for (const auto& lane : lanes_) lane->turn();
    turn();
    after(joined_ && outbox_.empty() ? kControlTickNs : kBusyTickNs, control_tick_);
  };
  after(0, control_tick_);
}

ServerSim::~ServerSim() = default;

// ---- Control ----

void ServerSim::lane_says(std::function<void(ControlJobs&)> what) {
  said_until_ns_ = std::max(said_until_ns_ + 1, now_ns() + world_.random.below(kMaxSayNs));
  after(said_until_ns_ - now_ns(), [this, what = std::move(what)] {
    what(jobs_);
    turn();
  });
}

void ServerSim::turn() {
  for (auto& [id, load] : loads_) {
    if (!load.loaded_for || !make_encoding(*parse_encoding(world_.job(id).scenario.push))->keeps_residual()) continue;
    const std::vector<ServerJobStatus> jobs = jobs_.statuses();
    const auto runs = [of = id](const auto& job) { return job.view->job == of && job.phase == "running"; };
    if (std::ranges::any_of(jobs, runs)) load.loaded_for.reset();
  }
  if (link_->turn(joined_)) forget("the coordinator has not been heard");
  heartbeat();
  jobs_.tick();
  flush();
  check_drain();
}

void ServerSim::drain() {
  draining_ = true;
  turn();
}

void ServerSim::check_drain() {
  if (!draining_ || drained_) return;
  if (drain_ms_ == 0) drain_ms_ = now_ms();
  if (now_ms() >= drain_due_ms_) {
    drain_due_ms_ = now_ms() + kDrainAgainMs;
    send(DrainRequest{incarnation_});
  }
  const bool heard = joined_ && now_ms() < link_->heard_ms() + ClusterWorld::kPeerTimeoutMs;
  if (jobs_.empty() && !heard && now_ms() >= drain_ms_ + kDrainAloneMs) end_drain();
}

void ServerSim::end_drain() {
  jobs_.give_up_parked();
  drained_ = true;
}

void ServerSim::receive(Packet& packet) {
  const Term promised = link_->promised();
  if (!link_->hears(std::get<ControlMessage>(packet.message))) return forget("the coordinator is not there any more");
  if (const Term term = link_->promised(); term > promised) {
    records_.run([this, term] { return store_.promise(term); }, [](const Status&) {});
  }
  std::visit(
      [&](const auto& m) {
        using M = std::decay_t<decltype(m)>;
        if constexpr (std::is_same_v<M, HelloReply>) {
          meet(m.coordinator_incarnation, true);
        } else if constexpr (std::is_same_v<M, HeartbeatReply>) {
          meet(m.coordinator_incarnation, false);
        } else if constexpr (std::is_same_v<M, OpenJob>) {
          opens(m);
        } else if constexpr (std::is_same_v<M, StopJob>) {
          if (m.kind != StopKind::kRestart) loads_[m.job].loaded_for.reset();
          jobs_.on(m);
        } else if constexpr (std::is_same_v<M, WriteCheckpoint>) {
          m.from_memory() ? jobs_.on(m) : checkpoints_.order(m);
        } else if constexpr (std::is_same_v<M, JobRecordCopy>) {
          if (world_.mutation != Mutation::kNoCopies) jobs_.on(m);
        } else if constexpr (requires { jobs_.on(m); }) {
          jobs_.on(m);
        } else if constexpr (requires { checkpoints_.order(m); }) {
          checkpoints_.order(m);
        } else if constexpr (std::is_same_v<M, DropCheckpoint>) {
          on(m);
        } else if constexpr (std::is_same_v<M, ServerBook>) {  // of keys
        } else if constexpr (std::is_same_v<M, DrainDone>) {
          if (draining_ && !drained_) end_drain();
        } else if constexpr (std::is_same_v<M, ControlError>) {
          world_.say(name_, "was refused: " + m.message);
        } else {
          world_.broken("a server got a control message that is not for servers");
        }
      },
      std::get<ControlMessage>(packet.message));
  turn();
}

void ServerSim::opens(const OpenJob& m) {
  Load& load = loads_[m.job];
  load.last_open = m;
  if (load.loaded_for && !begin_alike(*load.loaded_for, m)) load.loaded_for.reset();
  if (m.kept) {
    for (const auto& lane : lanes_) lane->goes_on(m.job, m.view);
  }
  jobs_.on(m);
}

// Whatever became of views in between: what was loaded, or is being, is not read again.
StoreOrdersSim::Failed ServerSim::loads(JobId id) {
  Load& load = loads_[id];
  const JobWorld& job = world_.job(id);
  if (load.loaded_for)
    job.broken(name_ + " loads again what it has loaded for view " + std::to_string(load.loaded_for->view.value));
  if (job.scenario.mode == Mode::kSync || job.scenario.mode == Mode::kLocalSgd) load.loaded_for = load.last_open;
  return [&load, view = load.last_open.view] {  // that leaves nothing
    if (load.loaded_for && load.loaded_for->view == view) load.loaded_for.reset();
  };
}

void ServerSim::on(const DropCheckpoint& m) {
  jobs_.on(m);
  loads_[m.job].loaded_for.reset();
  checkpoints_.drop(m);
}

void ServerSim::meet(std::uint64_t incarnation, bool hello) {
  if (hello && incarnation != 0) {
    if (coordinator_incarnation_ != incarnation) jobs_.park_all("the coordinator came back as a new process");
    coordinator_incarnation_ = incarnation;
    joined_ = true;
    if (draining_) send(DrainRequest{incarnation_});
    return;
  }
  if (incarnation != coordinator_incarnation_) forget("the coordinator does not know this server any more");
}

void ServerSim::forget(const std::string& why) {
  if (!joined_) return;
  link_->forgotten();
  jobs_.park_all(why);
  outbox_.clear();
  joined_ = false;
  coordinator_incarnation_ = 0;
  say_hello();
}

void ServerSim::say_hello() {
  if (!link_->connected()) return;
  ServerHello hello;
  hello.shard = ShardIndex(index_);
  hello.servers = world_.servers();
  hello.incarnation = incarnation_;
  hello.host = name_;
  for (const auto& lane : lanes_) {
    hello.lane_endpoints.push_back(lane->endpoint());
    hello.lane_locals.emplace_back();
  }
  hello.exclusive = "store of " + name_;
  hello.copy_endpoint = "copies of " + name_;
  hello.promised = link_->promised();
  jobs_.coordinator_is_here(coordinator_listener_ && link_->place() == index_);
  jobs_.describe(hello);
  send_now(hello);
  hello_ms_ = now_ms();
}

void ServerSim::heartbeat() {
  if (!joined_) {
    if (now_ms() >= hello_ms_ + kHelloMs || hello_ms_ == 0) say_hello();
  } else if (now_ms() >= heartbeat_ms_ + ClusterWorld::kHeartbeatMs) {
    beat();
    heartbeat_ms_ = now_ms();
  }
}

void ServerSim::beat() {
  send_now(Heartbeat{incarnation_, jobs_.progress()});
}

bool ServerSim::send_now(const ControlMessage& message) {
  return link_->send(message);
}

void ServerSim::send(ControlMessage message) {
  if (const auto* kept = std::get_if<ShardKept>(&message); kept && kept->any && loads_[kept->job].loaded_for) {
    std::optional<OpenJob>& loaded_for = loads_[kept->job].loaded_for;
    const Version loaded(loaded_for->resume_round.value);
    if (kept->min_version != loaded || kept->max_version != loaded) loaded_for.reset();
  }
  if (outbox_.size() >= kServerOutbox) return world_.broken("a server has too much to say to its coordinator");
  outbox_.push_back(std::move(message));
  flush();
}

void ServerSim::flush() {
  if (!outbox_.empty() && joined_) beat();
  while (!outbox_.empty() && send_now(outbox_.front())) outbox_.pop_front();
}

// ---- Coordinator ----

void ServerSim::serve_coordinator() {
  if (world_.scenario.coordinators == 1) {
    begin_coordinator(*store_.records());
  } else {
    seat_.emplace(CoordinatorSeat::Options{ShardIndex(index_), static_cast<std::uint16_t>(world_.scenario.coordinators),
                                           ClusterWorld::kPeerTimeoutMs},
                  store_.terms()->promised, now_ms());
    for (std::uint32_t place = 0; place < world_.scenario.coordinators; ++place) {
      if (place == index_) continue;
      seats_.push_back(
          std::make_unique<Dealer>(world_.wires, *this, coordinator_address(place), true, [this](Packet& packet) {
            const auto& message = std::get<ControlMessage>(packet.message);
            if (const auto* m = std::get_if<SeatReport>(&message)) hear(*m);
          }));
    }
  }
  coordinator_listener_ = std::make_unique<Listener>(
      world_.wires, *this, coordinator_address(index_), Disorder{},
      [this](PeerId from, Packet& packet) { listen(from, std::get<ControlMessage>(packet.message)); });
  coordinator_tick_ = [this] {
    tick_seat();
    if (coordinator_) coordinator_->tick(now_ms());
    if (draining_ && coordinator_) coordinator_->drain(now_ms());
    coordinator_drained_ = draining_ && (!coordinator_ || coordinator_->idle());
    after(kCoordinatorTickNs, coordinator_tick_);
  };
  after(kCoordinatorTickNs, coordinator_tick_);
}

// As server/coordinator/coordinator.cc, from here on.
void ServerSim::tick_seat() {
  if (!seat_) return;
  if (now_ms() >= report_ms_ + ClusterWorld::kHeartbeatMs) {
    report_ms_ = now_ms();
    for (const auto& other : seats_) other->send(Packet{ControlMessage(seat_->report(now_ms())), {}, {}});
  }
  if (draining_) return;
  if (const auto term = seat_->stand(now_ms())) take(*term);
}

void ServerSim::hear(const SeatReport& m) {
  seat_->on(m, now_ms());
  look_at_seat();
}

void ServerSim::look_at_seat() {
  if (!coordinator_ || seat_->holds()) return;
  world_.say(name_, "does not have the coordinator any more");
  coordinator_id_ = world_.fresh_incarnation();
  coordinator_.reset();
}

void ServerSim::take(Term term) {
  const auto moved = std::make_shared<bool>();
  const auto promise = [this, term, moved, known = seat_->term(), unaware = seat_->unaware()]() -> Status {
    const SeatTerms before = *store_.terms();
    *moved = unaware || CoordinatorSeat::moved(before, known, ShardIndex(index_));
    if (before.promised > term) return fail(ErrorCode::kStopped, "this server has obeyed a later one");
    if (Status promised = store_.promise(term); !promised) return promised;
    return *moved ? Status() : store_.own(term);
  };
  records_.run(promise, [this, term, moved](const Status& saved) {
    if (!saved) return seat_->failed(now_ms());
    known_ = {.heard_ms = seat_->last_heard(now_ms()), .since_ms = now_ms(), .given_up = {}};
    if (!seat_->took(term, *moved)) return;
    world_.say(name_, "has the coordinator now, in term " + std::to_string(term.value));
    world_.outcome().moves += term.value / kMaxCoordinators > 1 ? 1 : 0;
    moved_ = *moved;
    term_ = term;
    coordinator_id_ = world_.fresh_incarnation();
    report_ms_ = 0;
    begin_coordinator(*store_.records());
  });
}

void ServerSim::listen(PeerId from, const ControlMessage& message) {
  if (const auto* m = std::get_if<SeatReport>(&message)) {
    hear(*m);
    coordinator_listener_->send(from, Packet{ControlMessage(seat_->report(now_ms())), {}, {}});
    return;
  }
  if (const auto* hello = std::get_if<ServerHello>(&message); hello && seat_) {
    seat_->learn(hello->promised);
    look_at_seat();
  }
  if (!coordinator_) {
    coordinator_listener_->send(from, Packet{ControlMessage(seat_->report(now_ms())), {}, {}});
    return;
  }
  if (const auto* hello = std::get_if<ServerHello>(&message)) {
    for (const auto& job : world_.jobs()) {
      std::vector<StoredJob> stored = hello->stored;
      std::erase_if(stored, [&](const StoredJob& of) { return of.name != job->scenario.job; });
      job->judge.hears_stored(hello->shard.value, stored);
    }
    peers_[from] = hello->incarnation;
    servers_[hello->incarnation] = hello->shard.value;
  } else if (const auto* worker = std::get_if<WorkerHello>(&message)) {
    peers_[from] = worker->incarnation;
    workers_[worker->incarnation] = {worker->name, WorkerSim::node_of(worker->name)};
  } else if (const auto* beat = std::get_if<Heartbeat>(&message)) {
    peers_[from] = beat->incarnation;
  } else if (const auto* join = std::get_if<JoinJob>(&message)) {
    JobWorld* job = world_.job_of(join->job_json);
    if (!job) return world_.broken("a node joins with another configuration than its job's");
    job->replicas_judge.named(join->node.value, join->checkpoint_round);
    job->judge.joins(join->node.value);
    if (const auto known = peers_.find(from); known != peers_.end()) {
      workers_[known->second] = {job->name_of("worker", join->node.value), join->node.value};
    }
  }
  world_.say_message("coordinator", "from " + name_of(from) + ":", message);
  if (const auto* done = std::get_if<SnapshotDone>(&message); done && !done->ok) {
    JobWorld* job = world_.job_with(done->job);
    const auto status = job ? job->status_in(*coordinator_) : std::nullopt;
    if (status && status->phase == "stopping") {
      if (const auto server = server_of(from)) job->judge.last_state_failed(*server);
    }
  }
  if (const auto* done = std::get_if<SnapshotDone>(&message); done && world_.dies_before(*done)) return;
  ControlMessage heard = message;
  world_.plant(heard);
  coordinator_->on_message(from, heard, now_ms());
}

std::string ServerSim::name_of(PeerId peer) const {
  if (const auto server = server_of(peer)) return "server " + std::to_string(*server);
  const Worker* worker = worker_at(peer);
  return worker ? worker->name : "a stranger";
}

std::uint32_t ServerSim::node_of(PeerId peer) const {
  const Worker* worker = worker_at(peer);
  return worker ? worker->node : kStranger;
}

const ServerSim::Worker* ServerSim::worker_at(PeerId peer) const {
  const auto known = peers_.find(peer);
  const auto worker = known == peers_.end() ? workers_.end() : workers_.find(known->second);
  return worker == workers_.end() ? nullptr : &worker->second;
}

std::optional<std::uint16_t> ServerSim::server_of(PeerId peer) const {
  const auto known = peers_.find(peer);
  const auto server = known == peers_.end() ? servers_.end() : servers_.find(known->second);
  return server == servers_.end() ? std::nullopt : std::optional(server->second);
}

void ServerSim::save(const JobRecord& record) {
  const auto write = [this, record, core = coordinator_id_]() -> Status {
    if (core != coordinator_id_) return fail(ErrorCode::kStopped, "its core is gone");
    const Status saved = store_.save(record);
    JobWorld* job = world_.job_of(record.job_json);
    if (saved && job) job->judge.recorded(coordinator_id_, record);
    return saved;
  };
  records_.run(write, [this, job = record.job, core = coordinator_id_](const Status& s) {
    if (core == coordinator_id_) coordinator_->saved(job, s, now_ms());
  });
}

void ServerSim::begin_coordinator(std::vector<JobRecord> records) {
  CoordinatorOptions options;
  options.servers = world_.servers();
  options.incarnation = coordinator_id_;
  options.job_id_seed = world_.fresh_incarnation();
  options.peer_timeout_ms = ClusterWorld::kPeerTimeoutMs;
  options.home = ShardIndex(index_);
  options.moved = moved_;
  options.term = term_;
  options.known = known_;
  options.prepare_from_bytes = world_.scenario.prepares ? 0 : options.prepare_from_bytes;
  coordinator_ = std::make_unique<CoordinatorCore>(options, std::move(records), static_cast<CoordinatorOutput&>(*this));
}

void ServerSim::adopt(std::vector<JobRecord> records) {
  const auto save = [this, records = std::move(records), core = coordinator_id_]() -> Status {
    if (core != coordinator_id_) return fail(ErrorCode::kStopped, "its core is gone");
    if (Status saved = store_.save_all(records); !saved) return saved;
    return seat_ ? store_.own(term_) : Status();
  };
  records_.run(save, [this, core = coordinator_id_](const Status& saved) {
    if (core != coordinator_id_) return;
    if (!saved) return coordinator_->not_adopted(saved.error());
    moved_ = false;
    known_ = coordinator_->known_servers();
    coordinator_id_ = world_.fresh_incarnation();
    begin_coordinator(*store_.records());
  });
}

void ServerSim::send(PeerId to, const ControlMessage& message) {
  if (!world_.told(*this, to, message)) return;
  ControlMessage said = message;
  if (auto* at = std::get_if<SnapshotAt>(&said); at && world_.mutation == Mutation::kFarSnapshot) {
    const std::uint64_t every = std::max<std::uint64_t>(world_.job(at->job).scenario.snapshot_rounds, 1);
    at->round = Round((at->round.value + every - 1) / every * every);
  }
  coordinator_listener_->send(to, Packet{std::move(said), {}, {}});
}

void ServerSim::log(const std::string& line, LogLevel) {
  world_.say("coordinator", line);
}

}  // namespace tributary::sim
