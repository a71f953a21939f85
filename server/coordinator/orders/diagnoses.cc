#include "server/coordinator/orders/diagnoses.h"

#include <algorithm>
#include <utility>

#include "common/base/version.h"

namespace tributary {
namespace {

constexpr std::size_t kMaxDiagnosed = 4096;  // daemons

}  // namespace

ClusterFacts Diagnoses::cluster_facts() const {
  ClusterFacts facts;
  facts.servers = context_.options.servers;
  facts.version = kVersion;
  facts.clock_ms = context_.output.wall_ms();
  for (const auto& [index, server] : context_.peers.servers()) {
    if (!server.alive) continue;
    facts.lanes.push_back(
        {ShardIndex(index), server.hello.host, server.hello.lane_endpoints, server.hello.key, server.hello.plain});
  }
  facts.workers = static_cast<std::uint32_t>(context_.peers.workers().size());
  return facts;
}

Result<std::uint64_t> Diagnoses::begin(const DiagnosisOrder& order, std::uint64_t now_ms) {
  if (order.paths.size() > kMaxDiagnosedPaths) {
    return fail(ErrorCode::kInvalidArgument, std::to_string(order.paths.size()) + " paths are asked for, at most " +
                                                 std::to_string(kMaxDiagnosedPaths) + " at a time are looked at");
  }
  for (const std::string& path : order.paths) {
    if (path.starts_with('/') && path.size() <= kMaxPathBytes && path.find('\0') == std::string::npos) continue;
    return fail(ErrorCode::kInvalidArgument,
                "'" + path.substr(0, kMaxPathBytes) + "' is no absolute path: daemons run in folders of their own");
  }
  end();
  std::vector<DiagnosedDaemon> daemons;
  for (const auto& [incarnation, worker] : context_.peers.workers()) {
    if (daemons.size() + context_.peers.servers().size() < kMaxDiagnosed)
      daemons.push_back({false, "worker " + worker.hello.name, incarnation, worker.hello.key});
  }
  std::ranges::sort(daemons, {}, &DiagnosedDaemon::name);
  for (const auto& [index, server] : context_.peers.servers()) {
    if (server.alive)
      daemons.push_back({true, "server " + std::to_string(index), server.hello.incarnation, server.hello.key});
  }
  const std::uint32_t id = keeper_.begin(order, std::move(daemons));
  tick(now_ms);
  return id;
}

std::optional<DiagnosisStatus> Diagnoses::status(std::uint32_t id) const {
  std::optional<DiagnosisStatus> status = keeper_.status(id);
  if (status) status->servers = context_.options.servers;
  return status;
}

void Diagnoses::tick(std::uint64_t now_ms) {
  if (!keeper_.under_way()) return;
  const auto gone = [&](std::uint64_t incarnation) {
    const bool there = context_.peers.worker(incarnation) || context_.peers.server_with(incarnation);
    return there ? std::string() : "it was lost meanwhile";
  };
  const std::vector<DiagnosedDaemon> due = keeper_.tick(gone, now_ms);
  if (!keeper_.under_way()) return end();
  if (due.empty()) return;
  const Diagnose question = order();
  for (const DiagnosedDaemon& daemon : due) send(daemon, question);
}

// Only servers that are diagnosed admit workers for it.
Diagnose Diagnoses::order() const {
  Diagnose order{.diagnosis = keeper_.id(), .measure = keeper_.order().measure, .paths = keeper_.order().paths};
  order.cluster = cluster_facts();
  std::erase_if(order.cluster.lanes, [&](const ServerLanes& server) {
    const std::string name = "server " + std::to_string(server.shard.value);
    return std::ranges::find(keeper_.daemons(), name, &DiagnosedDaemon::name) == keeper_.daemons().end();
  });
  for (const DiagnosedDaemon& daemon : keeper_.daemons()) {
    if (!daemon.server) order.worker_keys.push_back(daemon.key);
  }
  return order;
}

void Diagnoses::send(const DiagnosedDaemon& daemon, Diagnose order) {
  std::uint32_t node = 0;
  for (const DiagnosedDaemon& other : keeper_.daemons()) {
    if (other.incarnation == daemon.incarnation) order.node = NodeRank(node);
    if (!other.server) ++node;
  }
  if (const Peers::Server* server = context_.peers.server_with(daemon.incarnation)) {
    context_.output.send(server->peer, order);
  } else {
    context_.send_worker(daemon.incarnation, order);
  }
}

void Diagnoses::expel(const std::string& key) {
  if (!keeper_.under_way() || !keeper_.expel(key)) return;
  const Diagnose question = order();
  for (const DiagnosedDaemon& daemon : keeper_.daemons()) {
    if (daemon.server && daemon.said) send(daemon, question);
  }
}

// Sends the end to every daemon: servers admit no more workers for the diagnosis, and measurements stop.
void Diagnoses::end() {
  if (keeper_.id() == 0 || std::exchange(ended_, keeper_.id()) == keeper_.id()) return;
  for (const DiagnosedDaemon& daemon : keeper_.daemons())
    send(daemon, Diagnose{.diagnosis = keeper_.id(), .over = true});
}

void Diagnoses::on(PeerId from, const Diagnosed& m, std::uint64_t now_ms) {
  if (const Peers::Server* server = context_.peers.server_at(from)) keeper_.on(server->hello.incarnation, m);
  if (const Peers::Worker* worker = context_.peers.worker_at(from)) keeper_.on(worker->hello.incarnation, m);
  if (!keeper_.under_way()) return end();
  tick(now_ms);
}

}  // namespace tributary
