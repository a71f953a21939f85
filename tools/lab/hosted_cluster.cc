#include "tools/lab/hosted_cluster.h"

#include <filesystem>
#include <utility>

#include "tools/cluster/run_folder.h"

namespace tributary::lab {

namespace fs = std::filesystem;

std::string bin_dir_of(const RunOptions& run) {
  return run.bin_dir.empty() ? executable_dir() : run.bin_dir;
}

Status make_folder(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) return fail(ErrorCode::kIo, "cannot create the folder " + path + ": " + error.message());
  return {};
}

// Makes a new, empty folder for gates and the like, next to LocalCluster's files in the base folder.
Result<std::string> fresh_folder(const RunOptions& run, const std::string& name) {
  std::error_code error;
  const std::string path = fs::absolute(run.base_dir, error).string() + "/" + name;
  if (auto ok = renew_scratch_folder(path); !ok) return tl::unexpected(ok.error());
  return path;
}

namespace {

bool serves(const LabHost& host, ServerHosts servers) {
  switch (servers) {
    case ServerHosts::kNone:
      return false;
    case ServerHosts::kPlaced:
      return host.server;
    case ServerHosts::kWorkers:
      return host.worker;
  }
  return false;
}

ClusterOptions cluster_options(const Lab& lab, const RunOptions& run, ServerHosts servers) {
  ClusterOptions options;
  options.base_dir = run.base_dir;
  options.bin_dir = bin_dir_of(run);
  options.fresh = true;
  options.store = false;
  options.log_level = run.log_level;
  options.secure = run.secure;
  options.servers = 0;
  options.nodes = 0;
  for (std::size_t i = 0; i < lab.config().hosts.size(); ++i) {
    const LabHost& host = lab.config().hosts[i];
    const PlannedHost& planned = lab.plan().hosts[i];
    const DaemonSite site{.network_namespace = namespace_path(planned.network_namespace),
                          .address = planned.address,
                          .bandwidth = host.bandwidth};
    if (serves(host, servers)) {
      ++options.servers;
      options.server_sites.push_back(site);
    }
    if (host.worker) {
      ++options.nodes;
      options.ranks_per_node = host.ranks;
      options.worker_sites.push_back(site);
    }
  }
  return options;
}

}  // namespace

ServerHosts servers_for(const JobConfig& job) {
  return on_servers(job) ? ServerHosts::kPlaced : ServerHosts::kNone;
}

Result<std::unique_ptr<LocalCluster>> start_cluster(const Lab& lab, const RunOptions& run, ServerHosts servers,
                                                    bool store) {
  if (servers == ServerHosts::kPlaced && lab.config().servers() == 0) {
    return fail(ErrorCode::kInvalidArgument,
                "the lab " + lab.config().name +
                    " has no host with a server, and this run needs one: give a host runs = \"server\" or \"both\"");
  }
  ClusterOptions options = cluster_options(lab, run, servers);
  options.store = store;
  return LocalCluster::start(std::move(options));
}

std::vector<Watched> watched(LocalCluster& cluster) {
  std::vector<Watched> all;
  for (Daemon& d : cluster.servers()) all.push_back({d.name, &d.process});
  for (Daemon& d : cluster.workers()) all.push_back({d.name, &d.process});
  for (Trainer& t : cluster.trainers()) all.push_back({"rank " + std::to_string(t.rank), &t.process});
  return all;
}

Status not_interrupted(const RunOptions& run) {
  if (run.interrupted && run.interrupted())
    return fail(ErrorCode::kStopped, "interrupted; all processes were ended, and nothing of the training is kept");
  return {};
}

Status healthy(LocalCluster& cluster, const RunOptions& run) {
  if (auto ok = not_interrupted(run); !ok) return ok;
  if (const auto failure = cluster.failure()) return fail(ErrorCode::kUnavailable, *failure);
  return {};
}

}  // namespace tributary::lab
