#include "tests/sim/cluster_world.h"

#include <spdlog/sinks/base_sink.h>

#include <algorithm>
#include <cstdio>
#include <type_traits>

#include "common/config/config_check.h"
#include "common/config/job_json.h"
#include "tests/sim/planted.h"

namespace tributary::sim {
namespace {

constexpr std::uint64_t kSecond = 1'000 * kMs;
// When the faults are over the next round is complete within this: peers that have gone silent are noticed, overdue
// acknowledgements asked for, trainers attach again after pauses of up to 5 s.
constexpr std::uint64_t kPatienceNs = 60 * kSecond;
// And then the job ends within this and its rounds.
constexpr std::uint64_t kEndPatienceNs = 180 * kSecond;
constexpr std::uint64_t kSuperviseNs = 250 * kMs;
constexpr std::uint64_t kRelaunchNs = 3 * kSecond;
constexpr std::uint64_t kRelaunchSteps = 40;
constexpr std::uint64_t kResendsNs = 24 * kSecond;
constexpr std::uint32_t kMaxRelaunches = 50;
// A view that nothing has happened to for so long has the snapshots that its nodes' rings need.
constexpr std::uint64_t kSettledNs = 8 * kSecond;
constexpr std::uint64_t kLossNs = 10 * kSecond;  // a round

JobConfig config_of(const ClusterScenario& scenario) {
  JobConfig config;
  config.name = "job";
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
  if (scenario.optimizer == "sgd") config.optimizer.momentum = 0.9;
  if (scenario.says_settings) {
    config.groups.assign(1, config.optimizer);
    config.groups.front().weight_decay = 0.125;
  }
  config.schedule.kind = ScheduleKind::kCosine;
  config.schedule.warmup_rounds = 2;
  config.schedule.total_rounds = scenario.rounds;
  config.snapshot.every_rounds = scenario.snapshot_rounds;
  config.snapshot.every_s = scenario.snapshot_s;
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

template <class M>
const char* name_of() {
  if constexpr (std::is_same_v<M, ServerHello>) return "ServerHello";
  if constexpr (std::is_same_v<M, WorkerHello>) return "WorkerHello";
  if constexpr (std::is_same_v<M, HelloReply>) return "HelloReply";
  if constexpr (std::is_same_v<M, JoinJob>) return "JoinJob";
  if constexpr (std::is_same_v<M, OpenJob>) return "OpenJob";
  if constexpr (std::is_same_v<M, ShardReady>) return "ShardReady";
  if constexpr (std::is_same_v<M, JobWelcome>) return "JobWelcome";
  if constexpr (std::is_same_v<M, SnapshotAt>) return "SnapshotAt";
  if constexpr (std::is_same_v<M, SnapshotDone>) return "SnapshotDone";
  if constexpr (std::is_same_v<M, SnapshotCommit>) return "SnapshotCommit";
  if constexpr (std::is_same_v<M, StopRequest>) return "StopRequest";
  if constexpr (std::is_same_v<M, LeaveJob>) return "LeaveJob";
  if constexpr (std::is_same_v<M, StopJob>) return "StopJob";
  if constexpr (std::is_same_v<M, ControlError>) return "ControlError";
  if constexpr (std::is_same_v<M, ShardKept>) return "ShardKept";
  if constexpr (std::is_same_v<M, RoundFacts>) return "RoundFacts";
  if constexpr (std::is_same_v<M, RoundDecision>) return "RoundDecision";
  return "another message";
}

// Returns whether the job has no joined node. A stop then is one of the state that servers keep between two views.
bool nobody_in(const CoordinatorCore& coordinator) {
  const std::vector<CoordinatorCore::JobStatus> jobs = coordinator.jobs();
  return !jobs.empty() && jobs.front().joined == 0;
}

// A process's log lines, as a part of the trace.
class TraceSink final : public spdlog::sinks::base_sink<spdlog::details::null_mutex> {
 public:
  TraceSink(ClusterWorld& world, std::string who) : world_(world), who_(std::move(who)) {}

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    world_.say(who_, std::string(message.payload.data(), message.payload.size()));
  }
  void flush_() override {}
  ClusterWorld& world_;
  const std::string who_;
};

}  // namespace

ClusterWorld::ClusterWorld(const ClusterScenario& scenario_in, Mutation mutation_in, bool trace)
    : scenario(scenario_in),
      mutation(mutation_in),
      job_json(to_canonical_json(config_of(scenario_in))),
      tensors(tensors_of(scenario_in)),
      offsets(offsets_of(tensors)),
      random(scenario_in.seed ^ 0xabcdefull),
      trace_(trace),
      disks_(scenario_in.servers),
      replica_disks_(scenario_in.nodes),
      replicas_judge(scenario, replica_disks_.front(), disks_.front(), outcome_,
                     [this](const std::string& what) { broken(what); }),
      judge(
          scenario, disks_, outcome_,
          [this](const ChunkOwner& owner, JobId job, ViewId view, ChunkIndex chunk) {
            const ServerSim* server = servers_[owner.shard.value].process.get();
            return server ? server->held(owner.lane, job, view, chunk) : std::nullopt;
          },
          [this](const std::string& what) { broken(what); },
          scenario_in.mode == Mode::kAllreduce ? &replicas_judge : nullptr),
      values_judge(outcome_, scenario_in.elastic, [this](const std::string& what) { broken(what); }),
      checkpoints_judge(
          scenario, [this](ViewId view, ChunkIndex chunk, Round version) { return judge.right(view, chunk, version); },
          [this](const std::string& what) { broken(what); }),
      wires(clock, scenario_in.seed ^ 0x3317ull),
      servers_now_(static_cast<std::uint16_t>(scenario_in.first_servers)),
      operator_(*this) {
  outcome_.scenario = scenario;
  nodes_.resize(scenario.nodes);
  for (std::uint32_t node = 0; node < scenario.nodes; ++node) places_.push_back(node);
  servers_.resize(scenario.servers);
}

ClusterWorld::~ClusterWorld() {
  for (Node& node : nodes_) {
    node.trainers.clear();
    node.worker.reset();
  }
  servers_.clear();
}

void ClusterWorld::broken(const std::string& what) {
  if (!outcome_.failure.empty()) return;
  outcome_.failure = what + " (virtual time " + std::to_string(clock.now_ns() / kMs) + " ms)";
  say("BROKEN", what);
}

void ClusterWorld::say(const std::string& who, const std::string& what) {
  if (trace_) std::printf("%9.3f  %-12s %s\n", static_cast<double>(clock.now_ns()) * 1e-9, who.c_str(), what.c_str());
}

void ClusterWorld::say_message(const std::string& who, const std::string& other, const ControlMessage& message) {
  const bool chatter = std::holds_alternative<Heartbeat>(message) || std::holds_alternative<HeartbeatReply>(message);
  if (!trace_ || chatter) return;
  std::string text;
  std::visit(
      [&](const auto& m) {
        text = name_of<std::decay_t<decltype(m)>>();
        if constexpr (requires { m.view; }) text += " view " + std::to_string(m.view.value);
        if constexpr (requires { m.round; }) text += " round " + std::to_string(m.round.value);
        if constexpr (requires { m.ok; }) text += m.ok ? " ok" : " failed: " + m.message;
        if constexpr (requires { m.resume_round; }) text += " from round " + std::to_string(m.resume_round.value);
        if constexpr (requires { m.min_version; }) {
          text += (m.any ? " has versions " : " has none ") + std::to_string(m.min_version.value) + " to " +
                  std::to_string(m.max_version.value);
        }
        if constexpr (requires { m.redo_last; }) {
          text += " keeps rounds " + std::to_string(m.redo_first.value) + " to " + std::to_string(m.redo_last.value);
        }
      },
      message);
  say(who, other + " " + text);
}

Logger ClusterWorld::logger(const std::string& who) {
  auto logger = std::make_shared<Log>(who);
  if (trace_) logger->sinks().push_back(std::make_shared<TraceSink>(*this, who));
  logger->set_level(trace_ ? spdlog::level::info : spdlog::level::off);
  return logger;
}

void ClusterWorld::wake_trainers(std::uint32_t node) {
  for (const auto& trainer : nodes_[node].trainers) {
    if (trainer) trainer->wake();
  }
}

ServerLaneSim* ClusterWorld::lane_at(const std::string& endpoint) const {
  for (const Server& server : servers_) {
    if (!server.process) continue;
    if (ServerLaneSim* lane = server.process->lane_at(endpoint)) return lane;
  }
  return nullptr;
}

bool ClusterWorld::told(const ServerSim& coordinator, PeerId to, const ControlMessage& message) {
  const std::optional<std::uint16_t> server = coordinator.server_of(to);
  say_message("coordinator", "to " + coordinator.name_of(to) + ":", message);
  if (const auto* open = std::get_if<OpenJob>(&message); open && server) {
    stops_ = false;
    judge.opens(coordinator.coordinator_id(), *open, *server, coordinator.coordinator()->jobs().front().record.members);
  } else if (const auto* welcome = std::get_if<JobWelcome>(&message)) {
    judge.welcome(*welcome, coordinator.node_of(to));
  } else if (std::holds_alternative<StopRequest>(message)) {
    stops();
  } else if (const auto* decision = std::get_if<RoundDecision>(&message)) {
    judge.decides(*decision);
  } else if (const auto* commit = std::get_if<SnapshotCommit>(&message)) {
    judge.committed(commit->round);
  } else if (const auto* done = std::get_if<SnapshotDone>(&message); done && !server) {
    if (scenario.mode == Mode::kAllreduce) replicas_judge.outcome(*done);
  } else if (const auto* stop = std::get_if<StopJob>(&message); stop && server) {
    if (stop->kind == StopKind::kStopped && scenario.mode != Mode::kAllreduce) {
      judge.stops_at(stop->round);
      if (*server == 0 && nobody_in(*coordinator.coordinator())) ++outcome_.kept_saved;
    }
    const bool again = !stops_told_.insert({*server, stop->view}).second;
    if (mutation == Mutation::kLostStop && again && stop->kind == StopKind::kRestart) return false;
  }
  const bool chatter = std::holds_alternative<HeartbeatReply>(message);
  if (!chatter && clock.now_ns() < faults_over_ns_ && random.chance(scenario.kill_at_message)) {
    const auto who = static_cast<std::uint32_t>(random.below(processes()));
    const std::uint64_t for_ns = random.between(kMs, 500 * kMs);
    clock.after(random.below(3 * kMs), [this, who, for_ns] {
      strike({ClusterScenario::Fault::Kind::kKill, clock.now_ns(), for_ns, {who}});
    });
  }
  return true;
}

void ClusterWorld::plant(ControlMessage& message) const {
  if (auto* hello = std::get_if<ServerHello>(&message); hello && mutation == Mutation::kForgottenJob) {
    const std::vector<CoordinatorCore::JobStatus> jobs = servers_.front().process->coordinator()->jobs();
    std::erase_if(hello->stored, [&](const StoredJob& stored) {
      return std::ranges::none_of(jobs, [&](const auto& job) { return job.record.job == stored.job; });
    });
  }
  if (auto* state = std::get_if<NodeRankState>(&message); state && mutation == Mutation::kMixedStates) {
    state->local_rank = (state->local_rank + 1) % scenario.ranks;
  }
  if (auto* join = std::get_if<JoinJob>(&message);
      join && mutation == Mutation::kOldRing && join->redo_job.value != 0) {
    std::vector<std::uint32_t> here;
    for (std::uint32_t node = 0; node < nodes_.size(); ++node) {
      if (nodes_[node].worker) here.push_back(node);
    }
    const std::vector<CoordinatorCore::JobStatus> jobs = servers_.front().process->coordinator()->jobs();
    if (jobs.empty()) return;  // it has lost its store
    const JobFacts& record = jobs.front().record;
    join->redo_members = members_hash(here, record.view_nodes.since);
    if (join->redo_members != record.view_nodes.hash) join->redo_members = members_hash(here, record.view.next());
  }
}

// ---- From the beginning to the end ----

// Supervises the trainers, as torchrun does: starts them again when they have ended but the job has not.
void ClusterWorld::supervise() {
  std::size_t done = 0;
  for (const Node& node : nodes_) {
    for (const auto& trainer : node.trainers) {
      if (!trainer) continue;
      if (trainer->failure() && !judge.may_refuse(*trainer->failure()))
        broken(trainer->name() + " failed: " + trainer->failure()->message);
      if (trainer->done() && !trainer->failure()) ++done;
    }
  }
  if (done == 0 || over() || operator_.keeps_trainers()) {
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
  for (std::uint32_t node = 0; node < scenario.nodes; ++node) {
    for (std::uint32_t rank = 0; rank < scenario.ranks; ++rank) {
      auto& trainer = nodes_[node].trainers[rank];
      if (!trainer || !trainer->done()) continue;
      ++nodes_[node].starts[1 + rank];
      trainer = std::make_unique<TrainerSim>(*this, node, rank);
    }
  }
}

bool ClusterWorld::some_failed() const {
  return std::ranges::any_of(nodes_, [](const Node& node) {
    return std::ranges::any_of(node.trainers, [](const auto& trainer) { return trainer && trainer->failure(); });
  });
}

// The job has ended and its record says so; or it cannot go on, and said why.
bool ClusterWorld::over() const {
  bool all_done = !operator_.keeps_trainers();
  for (const Node& node : nodes_) {
    for (const auto& trainer : node.trainers) {
      all_done = all_done && (!node.here || (trainer && trainer->done() && !trainer->failure()));
    }
  }
  if (judge.disk_hurt() && some_failed()) return true;
  const ServerSim* first = servers_.front().process.get();
  if (!all_done || !first) return false;
  const std::vector<CoordinatorCore::JobStatus> jobs = first->coordinator()->jobs();
  return jobs.size() == 1 && jobs.front().phase == "idle" && jobs.front().record.finished && jobs.front().recorded;
}

void ClusterWorld::check_progress() {
  const std::uint64_t now = clock.now_ns();
  const bool settled = now > struck_ns_ + kSettledNs;
  // (Memory for a snapshot may be waited for, for longer than a ring holds.)
  if (scenario.rare_snapshots && !scenario.prepares && settled && judge.uncovered() > scenario.ring_rounds) {
    broken("rounds since the last snapshot are more than nodes can push again");
  }
  if (now < faults_over_ns_ || operator_.keeps_trainers()) return;
  if (!deliveries_then_) deliveries_then_ = judge.deliveries();
  const bool some_done = std::ranges::any_of(nodes_, [](const Node& node) {
    return std::ranges::any_of(node.trainers, [](const auto& trainer) { return trainer && trainer->done(); });
  });
  const bool goes_on = judge.deliveries() > *deliveries_then_ || some_done;
  if (goes_on && outcome_.longest_pause_ns == 0) outcome_.longest_pause_ns = now - faults_over_ns_;
  const std::uint64_t rounds_ns = scenario.rounds * scenario.work_ns * scenario.slow_factor * 4;
  // A lost message is missed when nothing else has come for some seconds.
  const std::uint64_t losses_ns = scenario.disorder.loses > 0.0 ? scenario.rounds * kLossNs : 0;
  if (!goes_on && now > faults_over_ns_ + kPatienceNs + losses_ns) broken("nothing goes on after the last fault");
  if (now > faults_over_ns_ + kEndPatienceNs + rounds_ns + losses_ns) broken("the job does not come to its end");
}

ClusterOutcome ClusterWorld::run() {
  for (std::uint32_t index = 0; index < servers_now_; ++index) start_server(index);
  for (std::uint32_t node = 0; node < scenario.nodes; ++node) {
    nodes_[node].starts.resize(1 + scenario.ranks);
    nodes_[node].trainers.resize(scenario.ranks);
    if (!scenario.elastic || node < scenario.first_nodes) join(node);
  }
  for (const ClusterScenario::Fault& fault : scenario.faults) {
    const bool ends = fault.lasts_ns != ClusterScenario::Fault::kForEver;
    faults_over_ns_ = std::max(faults_over_ns_, fault.at_ns + (ends ? fault.lasts_ns : 0));
    clock.after(fault.at_ns, [this, &fault] { strike(fault); });
  }
  bool ended = false;
  supervise_ = [this, &ended] {
    look_after_rings();
    replicas_judge.look_at_registry();
    supervise();
    check_progress();
    ended = over() && operator_.idle();
    std::erase_if(pools_, [](const auto& pool) { return pool->in_use() == 0; });
    clock.after(kSuperviseNs, supervise_);
  };
  clock.after(0, supervise_);
  while (!ended && outcome_.failure.empty() && !judge.began_anew()) {
    clock.step();
    ++outcome_.events;
  }
  outcome_.refused = judge.disk_hurt() && some_failed();
  outcome_.began_anew = judge.began_anew();
  if (outcome_.failure.empty() && !outcome_.refused && !outcome_.began_anew) judge.ended();
  outcome_.ok = outcome_.failure.empty();
  outcome_.virtual_ns = clock.now_ns();
  outcome_.packets = wires.packets();
  outcome_.resends = resends;
  outcome_.saved = operator_.saved();
  outcome_.saved_parts = operator_.saved_parts();
  outcome_.not_saved = operator_.failed();
  outcome_.brought_back = operator_.restored();
  return outcome_;
}

ClusterOutcome run_cluster(std::uint64_t seed, Mutation mutation, bool trace) {
  planted_mutation = mutation;
  ClusterScenario scenario = cluster_scenario_of(seed);
  // Ranks that wait for each other's values are in step, which hides other mistakes.
  if (mutation != Mutation::kNone && mutation != Mutation::kForgottenAnswers) scenario.gathers = false;
  ClusterWorld world(scenario, mutation, trace);
  return world.run();
}

}  // namespace tributary::sim
