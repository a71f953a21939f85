#include "server/coordinator/orders/exams.h"

#include <algorithm>
#include <utility>

#include "common/base/version.h"

namespace tributary {
namespace {

constexpr std::size_t kMaxExamined = 4096;  // daemons

}  // namespace

ClusterFacts Exams::cluster_facts() const {
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

Result<std::uint64_t> Exams::begin(const ExamOrder& order, std::uint64_t now_ms) {
  if (order.paths.size() > kMaxExaminedPaths) {
    return fail(ErrorCode::kInvalidArgument, std::to_string(order.paths.size()) + " paths are asked for, at most " +
                                                 std::to_string(kMaxExaminedPaths) + " at a time are looked at");
  }
  for (const std::string& path : order.paths) {
    if (path.starts_with('/') && path.size() <= kMaxPathBytes && path.find('\0') == std::string::npos) continue;
    return fail(ErrorCode::kInvalidArgument,
                "'" + path.substr(0, kMaxPathBytes) + "' is no absolute path: daemons run in folders of their own");
  }
  end();
  std::vector<ExaminedDaemon> daemons;
  for (const auto& [incarnation, worker] : context_.peers.workers()) {
    if (daemons.size() + context_.peers.servers().size() < kMaxExamined)
      daemons.push_back({false, "worker " + worker.hello.name, incarnation, worker.hello.key});
  }
  std::ranges::sort(daemons, {}, &ExaminedDaemon::name);
  for (const auto& [index, server] : context_.peers.servers()) {
    if (server.alive)
      daemons.push_back({true, "server " + std::to_string(index), server.hello.incarnation, server.hello.key});
  }
  const std::uint32_t id = keeper_.begin(order, std::move(daemons));
  tick(now_ms);
  return id;
}

std::optional<ExamStatus> Exams::status(std::uint32_t id) const {
  std::optional<ExamStatus> status = keeper_.status(id);
  if (status) status->servers = context_.options.servers;
  return status;
}

void Exams::tick(std::uint64_t now_ms) {
  if (!keeper_.under_way()) return;
  const auto gone = [&](std::uint64_t incarnation) {
    const bool there = context_.peers.worker(incarnation) || context_.peers.server_with(incarnation);
    return there ? std::string() : "it was lost meanwhile";
  };
  const std::vector<ExaminedDaemon> due = keeper_.tick(gone, now_ms);
  if (!keeper_.under_way()) return end();
  if (due.empty()) return;
  const Examine question = order();
  for (const ExaminedDaemon& daemon : due) send(daemon, question);
}

// Only servers that are examined admit workers for it.
Examine Exams::order() const {
  Examine order{.exam = keeper_.id(), .measure = keeper_.order().measure, .paths = keeper_.order().paths};
  order.cluster = cluster_facts();
  std::erase_if(order.cluster.lanes, [&](const ServerLanes& server) {
    const std::string name = "server " + std::to_string(server.shard.value);
    return std::ranges::find(keeper_.daemons(), name, &ExaminedDaemon::name) == keeper_.daemons().end();
  });
  for (const ExaminedDaemon& daemon : keeper_.daemons()) {
    if (!daemon.server) order.worker_keys.push_back(daemon.key);
  }
  return order;
}

void Exams::send(const ExaminedDaemon& daemon, Examine order) {
  std::uint32_t node = 0;
  for (const ExaminedDaemon& other : keeper_.daemons()) {
    if (other.incarnation == daemon.incarnation) order.node = NodeRank(node);
    if (!other.server) ++node;
  }
  if (const Peers::Server* server = context_.peers.server_with(daemon.incarnation)) {
    context_.output.send(server->peer, order);
  } else {
    context_.send_worker(daemon.incarnation, order);
  }
}

void Exams::expel(const std::string& key) {
  if (!keeper_.under_way() || !keeper_.expel(key)) return;
  const Examine question = order();
  for (const ExaminedDaemon& daemon : keeper_.daemons()) {
    if (daemon.server && daemon.said) send(daemon, question);
  }
}

// Sends the end to every daemon: servers admit no more workers for the examination, and measurements stop.
void Exams::end() {
  if (keeper_.id() == 0 || std::exchange(ended_, keeper_.id()) == keeper_.id()) return;
  for (const ExaminedDaemon& daemon : keeper_.daemons()) send(daemon, Examine{.exam = keeper_.id(), .over = true});
}

void Exams::on(PeerId from, const Examined& m, std::uint64_t now_ms) {
  if (const Peers::Server* server = context_.peers.server_at(from)) keeper_.on(server->hello.incarnation, m);
  if (const Peers::Worker* worker = context_.peers.worker_at(from)) keeper_.on(worker->hello.incarnation, m);
  if (!keeper_.under_way()) return end();
  tick(now_ms);
}

}  // namespace tributary
