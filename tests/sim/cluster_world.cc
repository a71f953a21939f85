#include "tests/sim/cluster_world.h"

#include <spdlog/sinks/base_sink.h>

#include <algorithm>
#include <cstdio>
#include <type_traits>

#include "tests/sim/planted.h"

namespace tributary::sim {
namespace {

constexpr std::uint64_t kSuperviseNs = 250 * kMs;
constexpr std::uint32_t kFirstMachine = 100, kMachinesOfJob = 100;

// As the compiler writes it: "... [with M = tributary::OpenJob; ...]".
template <class M>
std::string name_of() {
  std::string_view name = __PRETTY_FUNCTION__;
  name.remove_prefix(name.find("M = ") + 4);
  name = name.substr(0, name.find_first_of(";]"));
  return std::string(name.substr(name.rfind(':') + 1));
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
      random(scenario_in.seed ^ 0xabcdefull),
      trace_(trace),
      disks_(scenario_in.servers),
      wires(clock, scenario_in.seed ^ 0x3317ull),
      servers_now_(static_cast<std::uint16_t>(scenario_in.first_servers)) {
  outcome_.scenario = scenario;
  servers_.resize(scenario.servers);
  jobs_.push_back(std::make_unique<JobWorld>(*this, scenario, kFirstMachine));
  for (const ClusterScenario& other : scenario.beside) {
    const auto machines = static_cast<std::uint32_t>(jobs_.size()) * kMachinesOfJob;
    jobs_.push_back(std::make_unique<JobWorld>(*this, other, kFirstMachine + machines));
  }
  checkpoints.sealed = [this](const std::string& path) { judge_scheduled(path); };
}

void ClusterWorld::judge_scheduled(const std::string& path) {
  const Result<Manifest> manifest = manifest_from_json(checkpoints.directories.at(path).manifest);
  JobWorld* job = manifest ? job_of(manifest->job_json) : nullptr;
  if (!job) return broken("'" + path + "' is of no job");
  CheckpointStatus status;
  status.path = path;
  status.round = manifest->round;
  job->checkpoints_judge.saved(status, checkpoints);
  ++outcome_.scheduled;
}

ClusterWorld::~ClusterWorld() {
  for (const auto& job : jobs_) job->end_processes();
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

ServerLaneSim* ClusterWorld::lane_at(const std::string& endpoint) const {
  for (const Server& server : servers_) {
    if (!server.process) continue;
    if (ServerLaneSim* lane = server.process->lane_at(endpoint)) return lane;
  }
  return nullptr;
}

const ServerSim* ClusterWorld::chief() const {
  const ServerSim* chief = nullptr;
  for (const Server& server : servers_) {
    const ServerSim* process = server.process.get();
    if (process && process->coordinator() && (!chief || process->term() > chief->term())) chief = process;
  }
  return chief;
}

// ---- Jobs ----

JobWorld* ClusterWorld::job_called(const std::string& name) {
  const auto found = std::ranges::find_if(jobs_, [&](const auto& job) { return job->scenario.job == name; });
  return found == jobs_.end() ? nullptr : found->get();
}

JobWorld* ClusterWorld::job_of(const std::string& job_json) {
  const auto found = std::ranges::find_if(jobs_, [&](const auto& job) { return job->job_json == job_json; });
  return found == jobs_.end() ? nullptr : found->get();
}

JobWorld* ClusterWorld::job_with(JobId id) {
  if (jobs_.size() == 1) return jobs_.front().get();
  if (const auto known = ids_.find(id); known != ids_.end()) return known->second;
  for (const Server& server : servers_) {  // two may have the coordinator, and not know of each other yet
    if (!server.process || !server.process->coordinator()) continue;
    for (const CoordinatorCore::JobStatus& status : server.process->coordinator()->jobs()) {
      if (status.record.job != id) continue;
      JobWorld* job = job_called(status.name);
      if (job && id.value != 0) ids_[id] = job;
      return job;
    }
  }
  return nullptr;
}

JobWorld& ClusterWorld::job(JobId id) {
  JobWorld* known = job_with(id);
  if (!known) broken("a server has a job that the coordinator never spoke of");
  return known ? *known : *jobs_.front();
}

bool ClusterWorld::told(const ServerSim& coordinator, PeerId to, const ControlMessage& message) {
  say_message("coordinator", "to " + coordinator.name_of(to) + ":", message);
  const auto of = [this](const auto& m) -> JobWorld* {
    if constexpr (requires { m.owners_before; }) return ids_[m.job] = job_called(m.name);
    if constexpr (requires { m.job.value; }) return job_with(m.job);
    return nullptr;
  };
  if (JobWorld* job = std::visit(of, message); job && !job->told(coordinator, to, message)) return false;
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

void ClusterWorld::plant(ControlMessage& message) {
  if (mutation == Mutation::kNone) return;
  const auto of = [this](const auto& m) -> JobWorld* {
    if constexpr (requires { m.job_json; }) return job_of(m.job_json);
    if constexpr (requires { m.job.value; }) return job_with(m.job);
    return nullptr;
  };
  if (const JobWorld* job = std::visit(of, message)) job->plant(message);
}

// ---- From the beginning to the end ----

bool ClusterWorld::began_anew() const {
  return std::ranges::any_of(jobs_, [](const auto& job) { return job->judge.began_anew(); });
}

ClusterOutcome ClusterWorld::run() {
  for (std::uint32_t index = 0; index < servers_now_; ++index) start_server(index);
  for (const auto& job : jobs_) job->start();
  for (const ClusterScenario::Fault& fault : scenario.faults) {
    const bool ends = fault.lasts_ns != ClusterScenario::Fault::kForEver;
    faults_over_ns_ = std::max(faults_over_ns_, fault.at_ns + (ends ? fault.lasts_ns : 0));
    clock.after(fault.at_ns, [this, &fault] { strike(fault); });
  }
  bool ended = false;
  supervise_ = [this, &ended] {
    for (const auto& job : jobs_) job->supervise();
    ended = std::ranges::all_of(jobs_, [](const auto& job) { return job->ended(); });
    std::erase_if(pools_, [](const auto& pool) { return pool->in_use() == 0; });
    clock.after(kSuperviseNs, supervise_);
  };
  clock.after(0, supervise_);
  while (!ended && outcome_.failure.empty() && !began_anew()) {
    clock.step();
    ++outcome_.events;
  }
  outcome_.began_anew = began_anew();
  for (const auto& job : jobs_) {
    outcome_.refused |= job->refused();
    if (outcome_.failure.empty() && !outcome_.began_anew && !job->refused()) job->judge.ended();
    outcome_.resends += job->resends;
    outcome_.saved += job->orders.saved();
    outcome_.saved_parts += job->orders.saved_parts();
    outcome_.copied_parts += job->parts_judge.survived();
    outcome_.not_saved += job->orders.failed();
    outcome_.brought_back += job->orders.restored();
  }
  outcome_.ok = outcome_.failure.empty();
  outcome_.virtual_ns = clock.now_ns();
  outcome_.packets = wires.packets();
  return outcome_;
}

ClusterOutcome run_cluster(std::uint64_t seed, Mutation mutation, bool trace) {
  planted_mutation = mutation;
  ClusterScenario scenario = cluster_scenario_of(seed);
  // Ranks that wait for each other's values are in step, which hides other mistakes.
  if (mutation != Mutation::kNone && mutation != Mutation::kForgottenAnswers) {
    scenario.gathers = false;
    for (ClusterScenario& other : scenario.beside) other.gathers = false;
  }
  ClusterWorld world(scenario, mutation, trace);
  return world.run();
}

}  // namespace tributary::sim
