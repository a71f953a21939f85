// LocalRun: the common part of `tributary up` and `tributary run`: a cluster of daemons on this machine, the watch over
// its trainers until they end or a signal asks to stop, and the output meanwhile. The command owns it; one thread.
#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/command_line.h"
#include "common/base/result.h"
#include "tools/cli/parts/stop_signals.h"
#include "tools/cli/run/progress_view.h"
#include "tools/cluster/local_cluster.h"

namespace tributary::cli {

struct LocalRunOptions {
  ClusterOptions cluster;
  std::optional<std::uint16_t> servers;  // not given: as the command sees fit
  std::string transport = "shm";
  bool json = false;
  bool keep_running = false;
};

// Adds the options of both commands. folder: the default of --base-dir, in words.
void add_local_run_options(CliCommand command, LocalRunOptions& options, const std::string& servers,
                           const std::string& folder);

class LocalRun {
 public:
  explicit LocalRun(const LocalRunOptions& options) : options_(options), out_(options.json ? stderr : stdout) {}

  // Starts the daemons, with so many servers, and the socket for progress. From now on signals ask to stop.
  Status start(std::uint16_t servers, const std::string& base_dir);
  std::string progress_socket() const { return cluster_->socket_dir() + "/progress.sock"; }
  // Prints the daemons and their places, under a heading.
  void announce(const std::string& what);
  // Waits until the trainers have ended or a signal asks to stop. look: called now and then; its error ends the watch.
  Status watch(const std::function<Status()>& look);
  bool interrupted() const { return interrupted_; }  // before the trainers had ended
  // Prints a line in place of the progress that is drawn.
  void tell(std::string_view line);

  LocalCluster& cluster() { return *cluster_; }
  bool started() const { return cluster_ != nullptr; }
  std::FILE* out() const { return out_; }  // standard output, which --json keeps for its object

 private:
  const LocalRunOptions& options_;
  std::FILE* out_;
  std::optional<StopSignals> signals_;
  std::unique_ptr<LocalCluster> cluster_;
  std::optional<ProgressView> view_;
  bool interrupted_ = false;
};

// Prints how a run was stopped. saved: the same command can continue it.
void tell_stopped(std::FILE* out, std::uint64_t round, const std::string& reason, bool saved);

// kTimeout, naming the processes that had to be killed, if any had to be.
Status stopped_in_time(const std::vector<std::string>& killed, const std::string& base_dir);

}  // namespace tributary::cli
