#include "tests/sim/job_world.h"

#include <algorithm>

#include "common/config/config_check.h"
#include "common/config/job_json.h"
#include "tests/sim/cluster_world.h"

namespace tributary::sim {
namespace {

constexpr std::uint64_t kSecond = 1'000 * kMs;
// When the faults are over the next round is complete within this: peers that have gone silent are noticed, overdue
// acknowledgements asked for, trainers attach again after pauses of up to 5 s.
constexpr std::uint64_t kPatienceNs = 150 * kSecond;  // longer than two minutes in which a state is waited for
// And then the job ends within this and its rounds.
constexpr std::uint64_t kEndPatienceNs = 180 * kSecond;
constexpr std::uint64_t kRelaunchNs = 3 * kSecond;
constexpr std::uint64_t kRelaunchSteps = 40;
constexpr std::uint64_t kResendsNs = 24 * kSecond;
constexpr std::uint32_t kMaxRelaunches = 50;
// A view that nothing has happened to for so long has the snapshots that its nodes' rings need.
constexpr std::uint64_t kSettledNs = 8 * kSecond;
constexpr std::uint64_t kLossNs = 10 * kSecond;  // a round

JobConfig config_of(const ClusterScenario& scenario) {
  JobConfig config;
  config.name = scenario.job;
  config.mode = scenario.mode;
  config.chunk_bytes = kMinChunkBytes;
  config.push = *parse_encoding(scenario.push);
  config.pull = *parse_encoding(scenario.pull);
  config.ssp.staleness = scenario.staleness;
  if (scenario.mode == Mode::kLocalSgd) {
    config.local.steps = 4;
    config.local.keep_state = false;
  }
  if (scenario.mode == Mode::kAllreduce) config.recovery.redo_mb = 0;
  if (scenario.deadline) config.sync.deadline_ms = 100;
  config.optimizer = default_optimizer(scenario.optimizer);
  config.optimizer.lr = 0.05;
  if (scenario.optimizer == "sgd") config.optimizer["momentum"] = 0.9;
  if (scenario.says_settings) {
    config.groups.assign(1, config.optimizer);
    config.groups.front().weight_decay = 0.125;
  }
  config.schedule.kind = ScheduleKind::kCosine;
  config.schedule.warmup_rounds = 2;
  config.schedule.total_rounds = scenario.rounds;
  config.snapshot.every_rounds = scenario.snapshot_rounds;
  config.snapshot.every_s = scenario.snapshot_s;
  if (scenario.checkpoint_s != 0) config.checkpoint = {"/scheduled", scenario.checkpoint_s, scenario.checkpoint_s};
  config.gate = scenario.gate();
  if (!scenario.redo) config.recovery.redo_mb = 0;
  config.membership = scenario.membership();
  return config;
}

std::vector<TensorSpec> tensors_of(const ClusterScenario& scenario) {
  Random random(scenario.seed);
  std::vector<TensorSpec> tensors;
  for (std::uint64_t left = scenario.parameters; left > 0;) {
    const std::uint64_t elements = std::min<std::uint64_t>(left, random.between(1, scenario.parameters / 2));
    std::string name(1, 't');
    name += std::to_string(tensors.size());
    const auto group = static_cast<std::uint32_t>(scenario.says_settings ? tensors.size() % 2 : 0);
    tensors.push_back({std::move(name), {elements}, group});
    left -= elements;
  }
  if (scenario.split == ClusterScenario::Split::kWhole) return tensors;
  Random apart(scenario.seed ^ 0x401de5ull);
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    const std::uint64_t who = t < 2 ? t : apart.below(3);  // both parts have one
    if (who < 2) tensors[t].holders = {static_cast<std::uint32_t>(who)};
  }
  return tensors;
}

std::vector<std::uint64_t> offsets_of(const std::vector<TensorSpec>& tensors) {
  const auto layout = Layout::unowned(tensors);
  std::vector<std::uint64_t> offsets;
  for (std::size_t t = 0; t < tensors.size(); ++t) offsets.push_back(layout->tensor_offset(t));
  return offsets;
}

}  // namespace

JobWorld::JobWorld(ClusterWorld& cluster_in, const ClusterScenario& scenario_in, std::uint32_t first_machine)
    : cluster(cluster_in),
      scenario(scenario_in),
      mutation(cluster.mutation),
      random(cluster.random),
      clock(cluster.clock),
      wires(cluster.wires),
      job_json(to_canonical_json(config_of(scenario))),
      tensors(tensors_of(scenario)),
      offsets(offsets_of(tensors)),
      first_machine_(first_machine),
      replica_disks_(scenario.nodes),
      replicas_judge(scenario, replica_disks_.front(), cluster.disks().front(), cluster.outcome(),
                     [this](const std::string& what) { broken(what); }),
      judge(
          scenario, cluster.disks(), cluster.outcome(),
          [this](const ChunkOwner& owner, JobId job, ViewId view, ChunkIndex chunk) {
            const ServerSim* server = cluster.server(owner.shard.value);
            return server ? server->held(owner.lane, job, view, chunk) : std::nullopt;
          },
          [this](const std::string& what) { broken(what); },
          scenario.mode == Mode::kAllreduce ? &replicas_judge : nullptr),
      values_judge(cluster.outcome(), scenario.elastic, [this](const std::string& what) { broken(what); }),
      checkpoints_judge(
          scenario, [this](ViewId view, ChunkIndex chunk, Round version) { return judge.right(view, chunk, version); },
          [this](const std::string& what) { broken(what); }),
      parts_judge([this](const std::string& what) { broken(what); }),
      orders(*this) {
  // Connections that lose messages, and nodes that come one after the other, are enough for another view.
  befallen_ = scenario.elastic || scenario.disorder.drops > 0.0 || scenario.disorder.loses > 0.0;
  nodes_.resize(scenario.nodes);
  for (std::uint32_t node = 0; node < scenario.nodes; ++node) places_.push_back(node);
}

JobWorld::~JobWorld() = default;

void JobWorld::start() {
  for (std::uint32_t node = 0; node < scenario.nodes; ++node) {
    nodes_[node].starts.resize(1 + scenario.ranks);
    nodes_[node].trainers.resize(scenario.ranks);
    if (!scenario.elastic || node < scenario.first_nodes) join(node);
  }
}

void JobWorld::end_processes() {
  for (Node& node : nodes_) {
    node.trainers.clear();
    node.worker.reset();
  }
}

void JobWorld::broken(const std::string& what) const {
  cluster.broken(cluster.jobs().size() == 1 ? what : scenario.job + ": " + what);
}

void JobWorld::say(const std::string& who, const std::string& what) const {
  cluster.say(who, what);
}

Logger JobWorld::logger(const std::string& who) const {
  return cluster.logger(who);
}

std::string JobWorld::name_of(const char* kind, std::uint32_t number) const {
  const std::string name = std::string(kind) + " " + std::to_string(number);
  return this == cluster.jobs().front().get() ? name : name + " of " + scenario.job;
}

std::uint64_t JobWorld::fresh_incarnation() const {
  return cluster.fresh_incarnation();
}

TrainerId JobWorld::fresh_trainer() const {
  return cluster.fresh_trainer();
}

ServerLaneSim* JobWorld::lane_at(const std::string& endpoint) const {
  return cluster.lane_at(endpoint);
}

// ---- The coordinator ----

std::optional<CoordinatorCore::JobStatus> JobWorld::status_in(const CoordinatorCore& coordinator) const {
  std::vector<CoordinatorCore::JobStatus> all = coordinator.jobs();
  const auto found = std::ranges::find(all, scenario.job, &CoordinatorCore::JobStatus::name);
  return found == all.end() ? std::nullopt : std::optional(std::move(*found));
}

bool JobWorld::told(const ServerSim& coordinator, PeerId to, const ControlMessage& message) {
  const std::optional<std::uint16_t> server = coordinator.server_of(to);
  if (const auto* open = std::get_if<OpenJob>(&message); open && server) {
    stops_ = false;
    views_.insert(open->view);
    opened_on_[{open->job, open->view}].insert(*server);
    if (views_.size() > 1 && !befallen_) broken("another view begins, and nothing has befallen this job");
    judge.opens(coordinator.coordinator_id(), *open, *server, status_in(*coordinator.coordinator())->record.members);
  } else if (const auto* welcome = std::get_if<JobWelcome>(&message)) {
    judge.welcome(*welcome, coordinator.node_of(to));
    judge.look_at_copies(welcome->job, welcome->view, opened_on_[{welcome->job, welcome->view}]);
  } else if (const auto* deal = std::get_if<DealChunks>(&message)) {
    judge.deals(*deal);
  } else if (std::holds_alternative<StopRequest>(message)) {
    stops();
  } else if (const auto* decision = std::get_if<RoundDecision>(&message)) {
    judge.decides(*decision);
  } else if (const auto* commit = std::get_if<SnapshotCommit>(&message)) {
    // Before the first commit the message only names a snapshot that is dropped.
    if (commit->round.value != 0) judge.committed(commit->round);
  } else if (const auto* done = std::get_if<SnapshotDone>(&message); done && !server) {
    if (scenario.mode == Mode::kAllreduce) replicas_judge.outcome(*done);
  } else if (const auto* stop = std::get_if<StopJob>(&message); stop && server) {
    if (stop->kind == StopKind::kStopped && scenario.mode != Mode::kAllreduce) {
      judge.stops_at(stop->round);
      // Without a joined node the stop is one of the state that servers keep between two views.
      const auto status = status_in(*coordinator.coordinator());
      if (*server == 0 && status && status->joined == 0) ++cluster.outcome().kept_saved;
    }
    const bool again = !stops_told_.insert({*server, stop->view}).second;
    if (mutation == Mutation::kLostStop && again && stop->kind == StopKind::kRestart) return false;
  }
  return true;
}

void JobWorld::plant(ControlMessage& message) const {
  if (auto* state = std::get_if<NodeRankState>(&message); state && mutation == Mutation::kMixedStates) {
    state->local_rank = (state->local_rank + 1) % scenario.ranks;
  }
  if (auto* join = std::get_if<JoinJob>(&message);
      join && mutation == Mutation::kOldRing && join->redo_job.value != 0) {
    std::vector<std::uint32_t> here;
    for (std::uint32_t node = 0; node < nodes_.size(); ++node) {
      if (nodes_[node].worker) here.push_back(node);
    }
    const auto status = cluster.chief() ? status_in(*cluster.chief()->coordinator()) : std::nullopt;
    if (!status) return;  // it has lost its store
    const JobFacts& record = status->record;
    join->redo_members = members_hash(here, record.view_nodes.since);
    if (join->redo_members != record.view_nodes.hash) join->redo_members = members_hash(here, record.view.next());
  }
}

// ---- From the beginning to the end ----

void JobWorld::supervise() {
  look_after_rings();
  look_at_parts();
  if (ended_) return;
  replicas_judge.look_at_registry();
  restart_trainers();
  check_progress();
  ended_ = over() && orders.idle();
}

void JobWorld::look_at_parts() {
  const ServerSim* chief = cluster.chief();
  if (!scenario.large_states || !chief) return;
  parts_judge.look(chief->coordinator()->record(scenario.job), cluster.disks());
}

// As torchrun does: trainers are started again when they have ended but the job has not.
void JobWorld::restart_trainers() {
  std::size_t done = 0;
  for (const Node& node : nodes_) {
    for (const auto& trainer : node.trainers) {
      if (!trainer) continue;
      if (trainer->failure() && !judge.may_refuse(*trainer->failure()))
        broken(trainer->name() + " failed: " + trainer->failure()->message);
      if (trainer->done() && !trainer->failure()) ++done;
    }
  }
  if (done == 0 || over() || orders.keeps_trainers()) {
    since_done_ns_ = clock.now_ns();
    return;
  }
  // Ranks may end late: large parts come through the coordinator's disk, one step after the other, and a node asks for a
  // refused last answer again after 10 s.
  const std::uint64_t patience_ns =
      kRelaunchNs + kRelaunchSteps * scenario.disk_step_ns + (scenario.refuses_last ? kResendsNs : 0);
  if (clock.now_ns() < since_done_ns_ + patience_ns) return;
  since_done_ns_ = clock.now_ns();
  if (++relaunches_ > kMaxRelaunches) return broken("trainers were started again too often");
  say("supervisor", "starts trainers again that have ended before the job has");
  befallen_ = true;
  for (std::uint32_t node = 0; node < scenario.nodes; ++node) {
    for (std::uint32_t rank = 0; rank < scenario.ranks; ++rank) {
      auto& trainer = nodes_[node].trainers[rank];
      if (!trainer || !trainer->done()) continue;
      ++nodes_[node].starts[1 + rank];
      start_trainer(node, rank);
    }
  }
}

bool JobWorld::some_failed() const {
  return std::ranges::any_of(nodes_, [](const Node& node) {
    return std::ranges::any_of(node.trainers, [](const auto& trainer) { return trainer && trainer->failure(); });
  });
}

// The job has ended and its record says so; or it cannot go on, and said why.
bool JobWorld::over() const {
  bool all_done = !orders.keeps_trainers();
  for (const Node& node : nodes_) {
    for (const auto& trainer : node.trainers) {
      all_done = all_done && (!node.here || (trainer && trainer->done() && !trainer->failure()));
    }
  }
  if (refused()) return true;
  const ServerSim* first = cluster.chief();
  if (!all_done || !first) return false;
  const auto status = status_in(*first->coordinator());
  return status && status->phase == "idle" && status->record.finished && status->recorded;
}

void JobWorld::check_progress() {
  const std::uint64_t now = clock.now_ns(), over_ns = cluster.faults_over_ns();
  const bool settled = now > cluster.struck_ns() + kSettledNs;
  // (Memory for a snapshot may be waited for, for longer than a ring holds.)
  if (scenario.rare_snapshots && !scenario.prepares && settled && judge.uncovered() > scenario.ring_rounds) {
    broken("rounds since the last snapshot are more than nodes can push again");
  }
  if (now < over_ns || orders.keeps_trainers()) return;
  if (!deliveries_then_) deliveries_then_ = judge.deliveries();
  const bool some_done = std::ranges::any_of(nodes_, [](const Node& node) {
    return std::ranges::any_of(node.trainers, [](const auto& trainer) { return trainer && trainer->done(); });
  });
  const bool goes_on = judge.deliveries() > *deliveries_then_ || some_done;
  if (goes_on && cluster.outcome().longest_pause_ns == 0) cluster.outcome().longest_pause_ns = now - over_ns;
  const std::uint64_t rounds_ns = scenario.rounds * scenario.work_ns * scenario.slow_factor * 4;
  // A lost message is missed when nothing else has come for some seconds.
  const std::uint64_t losses_ns = scenario.disorder.loses > 0.0 ? scenario.rounds * kLossNs : 0;
  if (!goes_on && now > over_ns + kPatienceNs + losses_ns) broken("nothing goes on after the last fault");
  // So is one that a peer did not take. The more nodes, the more rounds have one.
  const std::uint64_t drops_ns = scenario.disorder.drops > 0.0 ? scenario.rounds * kLossNs : 0;
  if (now > over_ns + kEndPatienceNs + rounds_ns + std::max(losses_ns, drops_ns))
    broken("the job does not come to its end");
}

}  // namespace tributary::sim
