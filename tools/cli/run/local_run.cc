#include "tools/cli/run/local_run.h"

#include <poll.h>

#include <utility>

#include "common/base/printed.h"
#include "session/session.h"
#include "tools/cli/parts/commands.h"

namespace tributary::cli {
namespace {

constexpr int kPollMs = 100;

}  // namespace

void add_local_run_options(CliCommand command, LocalRunOptions& options, const std::string& servers,
                           const std::string& folder) {
  ClusterOptions& cluster = options.cluster;
  command->add_option("--servers", options.servers,
                      "server daemons: shards of the parameters (default: " + servers + ")");
  command->add_option("--nodes", cluster.nodes, "worker daemons")->capture_default_str();
  command->add_option("--ranks-per-node", cluster.ranks_per_node, "trainers attached to each worker")
      ->capture_default_str();
  command->add_option("--base-dir", cluster.base_dir, "folder for all files of the run (default: " + folder + ")")
      ->type_name("FOLDER");
  command->add_option("--lanes", cluster.lanes, "lanes of each daemon (default: from the machine's cores)");
  command
      ->add_option(
          "--transport", options.transport,
          "between workers and servers: shm (gradients and parameters stay in shared memory), ipc, tcp (without "
          "--secure open to every user of this machine)")
      ->check(one_of({"shm", "tcp", "ipc"}))
      ->capture_default_str();
  command
      ->add_option("--attach-timeout", cluster.attach_timeout_s,
                   "how long a trainer waits for its worker and the other ranks (default: "
                   "$TRIBUTARY_ATTACH_TIMEOUT, or 120)")
      ->type_name("SECONDS")
      ->check(in_range(1u, static_cast<std::uint32_t>(kMaxAttachTimeout.count())));
  command->add_flag("--fresh", cluster.fresh, "remove what an earlier run left in the base folder, and start over");
  add_secure(command, cluster.secure);
  command->add_option("--log-level", cluster.log_level, "of the daemons")
      ->check(one_of({"trace", "debug", "info", "warn", "error"}))
      ->capture_default_str();
  command->add_flag("--keep-running", options.keep_running, "leave the daemons running after the job until Ctrl-C");
  command->add_flag("--json", options.json, "print the result as one JSON object");
}

Status LocalRun::start(std::uint16_t servers, const std::string& base_dir) {
  signals_.emplace();
  ClusterOptions cluster = options_.cluster;
  cluster.servers = servers;
  cluster.base_dir = base_dir;
  cluster.transport = transport_named(options_.transport);
  auto started = LocalCluster::start(std::move(cluster));
  if (!started) return tl::unexpected(started.error());
  cluster_ = std::move(*started);
  auto view = ProgressView::listen(progress_socket(), options_.json);
  if (!view) return tl::unexpected(view.error());
  view_.emplace(std::move(*view));
  return {};
}

void LocalRun::announce(const std::string& what) {
  const ClusterOptions& o = cluster_->options();
  std::fprintf(out_, "%s: %s, %s x %s, in %s\n", what.c_str(), counted(o.servers, "server").c_str(),
               counted(o.nodes, "node").c_str(), counted(o.ranks_per_node, "rank").c_str(), o.base_dir.c_str());
  std::fprintf(out_, "  coordinator  %s (in %s)\n", cluster_->coordinator().c_str(),
               cluster_->coordinator_daemon().name.c_str());
  for (const Daemon& d : cluster_->servers()) {
    std::string lanes;
    for (const std::string& lane : d.lanes) lanes += (lanes.empty() ? "" : ", ") + lane;
    std::fprintf(out_, "  %-12s pid %d, lanes %s, admin http://%s\n", d.name.c_str(), d.process.pid(), lanes.c_str(),
                 d.admin.c_str());
  }
  for (std::size_t i = 0; i < cluster_->workers().size(); ++i) {
    const Daemon& d = cluster_->workers()[i];
    std::string ranks;
    for (const Trainer& t : cluster_->trainers()) {
      if (t.rank / o.ranks_per_node != i) continue;
      ranks += (ranks.empty() ? "" : ", ") + std::to_string(t.rank) + " (pid " + std::to_string(t.process.pid()) + ")";
    }
    std::fprintf(out_, "  %-12s pid %d, admin http://%s, ranks %s\n", d.name.c_str(), d.process.pid(), d.admin.c_str(),
                 ranks.c_str());
  }
  std::fprintf(out_, "  logs         %s\n", cluster_->log_dir().c_str());
  std::fflush(out_);
}

Status LocalRun::watch(const std::function<Status()>& look) {
  bool trained = false;
  while (true) {
    pollfd fds[] = {{.fd = signals_->fd(), .events = POLLIN, .revents = 0},
                    {.fd = view_->fd(), .events = POLLIN, .revents = 0}};
    ::poll(fds, 2, kPollMs);
    view_->update();
    if (signals_->taken()) {
      tell("stopping after the open round (once more to leave at once)");
      signals_->release();
      interrupted_ = !trained;
      return {};
    }
    if (Status looked = look(); !looked) {
      view_->clear();
      return looked;
    }
    if (!trained && !cluster_->trainers_running()) {
      trained = true;
      view_->clear();
      if (!options_.keep_running) return {};
      tell("training has ended; the daemons keep running until Ctrl-C");
    }
  }
}

void LocalRun::tell(std::string_view line) {
  view_->clear();
  std::fprintf(out_, "%.*s\n", static_cast<int>(line.size()), line.data());
  std::fflush(out_);
}

void tell_stopped(std::FILE* out, std::uint64_t round, const std::string& reason, bool saved) {
  std::fprintf(out, "stopped after round %llu%s%s\n", static_cast<unsigned long long>(round),
               reason.empty() ? "" : (" (" + reason + ")").c_str(),
               saved ? "; the same command goes on from there" : "");
}

Status stopped_in_time(const std::vector<std::string>& killed, const std::string& base_dir) {
  if (killed.empty()) return {};
  std::string names;
  for (const std::string& name : killed) names += (names.empty() ? "" : ", ") + name;
  return fail(ErrorCode::kTimeout,
              "did not stop in time and had to be killed: " + names + "; see the logs in " + base_dir + "/logs");
}

}  // namespace tributary::cli
