// LocalCluster's trainers.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "common/config/json_text.h"
#include "tools/cluster/local_cluster.h"
#include "tools/cluster/processors.h"

namespace tributary {
namespace {

using std::chrono::milliseconds;

std::string how_it_ended(const std::string& who, const Process& process, const ExitStatus& status,
                         const std::string& log, std::uint64_t from) {
  return who + " (pid " + std::to_string(process.pid()) + ") " + status.describe() + "; the last lines of " + log +
         ":\n" + last_lines(log, LocalCluster::kReportedLogLines, from);
}

}  // namespace

std::string how_ended(const Daemon& daemon, const ExitStatus& status) {
  return how_it_ended(daemon.name, daemon.process, status, daemon.log_file, daemon.log_from);
}

std::string how_ended(const Trainer& trainer, const ExitStatus& status) {
  return how_it_ended(trainer.name(), trainer.process, status, trainer.log_file, trainer.log_from);
}

std::vector<std::string> job_command(std::vector<std::string> program, const std::string& job_file,
                                     const std::vector<std::string>& overrides,
                                     const std::vector<std::string>& arguments) {
  std::vector<std::string> argv = std::move(program);
  argv.insert(argv.end(), {"--job", job_file});
  for (const std::string& value : overrides) argv.insert(argv.end(), {"--set", value});
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  return argv;
}

std::vector<std::string> LocalCluster::train_command(const std::string& job_file,
                                                     const std::vector<std::string>& overrides,
                                                     const std::vector<std::string>& arguments) const {
  return job_command({options_.bin_dir + "/tributary-train"}, job_file, overrides, arguments);
}

Status LocalCluster::start_trainers(const TrainerOptions& options) {
  const std::uint32_t nodes = options.world_nodes == 0 ? options_.nodes : options.world_nodes;
  const std::uint32_t local = options_.ranks_per_node, ranks = options_.nodes * local;
  const std::uint32_t processors = usable_processors();
  if (options.meet) {
    const auto port = free_port();
    if (!port) return tl::unexpected(port.error());
    meeting_port_ = *port;
  }
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    const std::uint32_t node = rank / local;
    if (!options.nodes.empty() && std::ranges::find(options.nodes, node) == options.nodes.end()) continue;
    Trainer trainer;
    trainer.rank = rank;
    const std::string log = log_dir() + "/trainer-" + std::to_string(rank);
    trainer.log_file = log + ".log";
    if (options.output_apart && rank == 0) trainer.output_file = log + ".out";
    const Daemon& worker = workers_[node];
    trainer.network_namespace = worker.network_namespace;
    trainer.argv = options.command;
    trainer.environment = {{"TRIBUTARY_SOCKET", worker.socket},
                           {"TRIBUTARY_PROGRESS", options.progress_socket},
                           {"TRIBUTARY_BASE_DIR", std::filesystem::absolute(options_.base_dir).string()}};
    // Under torchrun's names, which programs and frameworks look at, and under ours, which come first.
    for (const auto& [name, value] : {std::pair{"RANK", rank},
                                      {"WORLD_SIZE", nodes * local},
                                      {"LOCAL_RANK", rank % local},
                                      {"LOCAL_WORLD_SIZE", local},
                                      {"GROUP_RANK", node},
                                      {"GROUP_WORLD_SIZE", nodes}}) {
      for (const char* prefix : {"", "TRIBUTARY_"}) {
        trainer.environment.emplace_back(std::string(prefix) + name, std::to_string(value));
      }
    }
    if (options_.attach_timeout_s > 0) {
      trainer.environment.emplace_back("TRIBUTARY_ATTACH_TIMEOUT", std::to_string(options_.attach_timeout_s));
    }
    trainer.meeting_port = meeting_port_;
    // Ranks share the processors that they may use, and what Python prints is seen when it is printed.
    const std::uint32_t threads = std::max(1u, processors / ranks);
    for (auto [name, value] : {std::pair{"OMP_NUM_THREADS", threads}, {"PYTHONUNBUFFERED", 1u}}) {
      if (std::getenv(name) == nullptr) trainer.environment.emplace_back(name, std::to_string(value));
    }
    if (auto ok = spawn(trainer); !ok) return ok;
    trainers_.push_back(std::move(trainer));
  }
  return {};
}

// A process group of torch's has no place for a process that is started again: the others end, too. The first that is
// started again gets another port. At the old one it would find addresses of processes that are about to end.
Status LocalCluster::restart_trainer(std::uint32_t index) {
  Trainer& trainer = trainers_.at(index);
  trainer.process.end_rest();
  if (trainer.meeting_port != 0 && trainer.meeting_port == meeting_port_) {
    const auto port = free_port();
    if (!port) return tl::unexpected(port.error());
    meeting_port_ = *port;
  }
  trainer.meeting_port = meeting_port_;
  return spawn(trainer);
}

Status LocalCluster::spawn(Trainer& trainer) {
  trainer.log_from = file_bytes(trainer.log_file);
  trainer.output_from = file_bytes(trainer.output_file);
  auto environment = trainer.environment;
  if (trainer.meeting_port != 0) {
    environment.emplace_back("MASTER_ADDR", "127.0.0.1");
    environment.emplace_back("MASTER_PORT", std::to_string(trainer.meeting_port));
  }
  auto process = Process::spawn({.argv = trainer.argv,
                                 .log_file = trainer.log_file,
                                 .output_file = trainer.output_file,
                                 .environment = std::move(environment),
                                 .network_namespace = trainer.network_namespace});
  if (!process) return tl::unexpected(process.error());
  trainer.process = std::move(*process);
  return {};
}

bool LocalCluster::trainers_running() {
  return std::any_of(trainers_.begin(), trainers_.end(), [](Trainer& t) { return t.process.running(); });
}

bool LocalCluster::wait_for_trainers(milliseconds timeout) {
  using std::chrono::steady_clock;
  const auto until = steady_clock::now() + timeout;
  for (Trainer& trainer : trainers_) {
    const auto left = std::chrono::duration_cast<milliseconds>(until - steady_clock::now());
    if (!trainer.process.wait(std::max(left, milliseconds(0)))) return false;
  }
  return true;
}

std::string trainer_result(const Trainer& trainer) {
  const bool apart = !trainer.output_file.empty();
  std::ifstream in(apart ? trainer.output_file : trainer.log_file, std::ios::binary);
  in.seekg(static_cast<std::streamoff>(apart ? trainer.output_from : trainer.log_from));
  std::string line, found;
  while (std::getline(in, line)) {
    if (!line.starts_with("{")) continue;
    const auto json = json_in(line);
    if (json.is_object() && json.contains("digest")) found = line;
  }
  return found;
}

}  // namespace tributary
