#include "common/codec_peers.h"

#include <cmath>

#include "common/assert.h"

namespace tributary::codec {

using Root = wire::ControlMessage;

void write(Root::Builder out, const ServerHello& m) {
  auto body = out.initServerHello();
  body.setShard(m.shard.value);
  body.setServers(m.servers);
  body.setIncarnation(m.incarnation);
  body.setBandwidth(m.bandwidth);
  write_texts(body.initLaneEndpoints(size_of(m.lane_endpoints)), m.lane_endpoints);
  auto stored = body.initStored(size_of(m.stored));
  for (unsigned i = 0; i < stored.size(); ++i) {
    const StoredJob& job = m.stored[i];
    auto entry = stored[i];
    entry.setJob(job.job.value);
    entry.setName(text(job.name));
    entry.setLayoutHash(job.layout_hash);
    auto rounds = entry.initSnapshots(size_of(job.snapshots));
    for (unsigned r = 0; r < rounds.size(); ++r) rounds.set(r, job.snapshots[r].value);
  }
  body.setHost(text(m.host));
  write_texts(body.initLaneLocals(size_of(m.lane_locals)), m.lane_locals);
  auto kept = body.initKept(size_of(m.kept));
  for (unsigned i = 0; i < kept.size(); ++i) {
    kept[i].setJob(m.kept[i].job.value);
    kept[i].setMinVersion(m.kept[i].min_version.value);
    kept[i].setMaxVersion(m.kept[i].max_version.value);
    kept[i].setPending(m.kept[i].pending);
  }
  body.setStore(m.store);
  body.setExclusive(text(m.exclusive));
}

void write(Root::Builder out, const WorkerHello& m) {
  auto body = out.initWorkerHello();
  body.setName(text(m.name));
  body.setIncarnation(m.incarnation);
  body.setHost(text(m.host));
  body.setBandwidth(m.bandwidth);
  body.setExclusive(text(m.exclusive));
}

void write(Root::Builder out, const HelloReply& m) {
  out.initHelloReply().setCoordinatorIncarnation(m.coordinator_incarnation);
}

void write(Root::Builder out, const Heartbeat& m) {
  auto body = out.initHeartbeat();
  body.setIncarnation(m.incarnation);
  auto progress = body.initProgress(size_of(m.progress));
  for (unsigned i = 0; i < progress.size(); ++i) {
    progress[i].setJob(m.progress[i].job.value);
    progress[i].setView(m.progress[i].view.value);
    progress[i].setMinVersion(m.progress[i].min_version.value);
    progress[i].setMaxVersion(m.progress[i].max_version.value);
    progress[i].setPrepared(m.progress[i].prepared);
    progress[i].setWriting(m.progress[i].writing);
  }
  auto paces = body.initPaces(size_of(m.paces));
  for (unsigned i = 0; i < paces.size(); ++i) {
    paces[i].setJob(m.paces[i].job.value);
    paces[i].setView(m.paces[i].view.value);
    paces[i].setNode(m.paces[i].node.value);
    paces[i].setRounds(m.paces[i].rounds);
    paces[i].setComputeNs(m.paces[i].compute_ns);
    paces[i].setReduceNs(m.paces[i].reduce_ns);
    paces[i].setNetworkNs(m.paces[i].network_ns);
    paces[i].setSamples(m.paces[i].samples);
    paces[i].setAnswers(m.paces[i].answers);
  }
}

void write(Root::Builder out, const HeartbeatReply& m) {
  out.initHeartbeatReply().setCoordinatorIncarnation(m.coordinator_incarnation);
}

namespace {

ServerHello read(wire::ServerHello::Reader in) {
  ServerHello m;
  m.shard = ShardIndex(in.getShard());
  m.servers = in.getServers();
  m.incarnation = in.getIncarnation();
  m.bandwidth = in.getBandwidth();
  if (!std::isfinite(m.bandwidth)) throw Malformed{"the server's bandwidth is no finite number"};
  m.lane_endpoints = read_texts(in.getLaneEndpoints(), kMaxLaneEndpoints, "the list of lane endpoints");
  const auto stored = in.getStored();
  check_count(stored.size(), kMaxJobs, "the list of stored jobs");
  m.stored.reserve(stored.size());
  for (auto entry : stored) {
    StoredJob job;
    job.job = JobId(entry.getJob());
    job.name = read_text(entry.getName(), kMaxNameBytes, "a stored job's name");
    job.layout_hash = entry.getLayoutHash();
    const auto rounds = entry.getSnapshots();
    check_count(rounds.size(), kMaxStoredSnapshots, "a stored job's list of snapshots");
    job.snapshots.reserve(rounds.size());
    for (auto round : rounds) job.snapshots.emplace_back(round);
    m.stored.push_back(std::move(job));
  }
  m.host = read_text(in.getHost(), kMaxNameBytes, "the server's host");
  m.lane_locals = read_texts(in.getLaneLocals(), kMaxLaneEndpoints, "the list of the lanes' local names");
  const auto kept = in.getKept();
  check_count(kept.size(), kMaxJobs, "the list of jobs that are kept in memory");
  for (auto entry : kept) {
    m.kept.push_back(
        {JobId(entry.getJob()), Version(entry.getMinVersion()), Version(entry.getMaxVersion()), entry.getPending()});
  }
  m.store = in.getStore();
  m.exclusive = read_text(in.getExclusive(), kMaxNameBytes, "what the server holds");
  return m;
}

WorkerHello read(wire::WorkerHello::Reader in) {
  WorkerHello m;
  m.name = read_text(in.getName(), kMaxNameBytes, "the worker's name");
  m.incarnation = in.getIncarnation();
  m.host = read_text(in.getHost(), kMaxNameBytes, "the worker's host");
  m.bandwidth = in.getBandwidth();
  if (!std::isfinite(m.bandwidth)) throw Malformed{"the worker's bandwidth is no finite number"};
  m.exclusive = read_text(in.getExclusive(), kMaxNameBytes, "what the worker holds");
  return m;
}

Heartbeat read(wire::Heartbeat::Reader in) {
  Heartbeat m;
  m.incarnation = in.getIncarnation();
  const auto progress = in.getProgress();
  check_count(progress.size(), kMaxJobs, "the progress report");
  m.progress.reserve(progress.size());
  for (auto entry : progress) {
    m.progress.push_back({JobId(entry.getJob()), ViewId(entry.getView()), Version(entry.getMinVersion()),
                          Version(entry.getMaxVersion()), entry.getPrepared(), entry.getWriting()});
  }
  const auto paces = in.getPaces();
  check_count(paces.size(), kMaxJobs, "the list of paces");
  m.paces.reserve(paces.size());
  for (auto entry : paces) {
    m.paces.push_back({JobId(entry.getJob()), ViewId(entry.getView()), NodeRank(entry.getNode()), entry.getRounds(),
                       entry.getComputeNs(), entry.getReduceNs(), entry.getNetworkNs(), entry.getSamples(),
                       entry.getAnswers()});
  }
  return m;
}

}  // namespace

ControlMessage read_peer(Root::Reader root) {
  switch (root.which()) {
    case Root::SERVER_HELLO:
      return read(root.getServerHello());
    case Root::WORKER_HELLO:
      return read(root.getWorkerHello());
    case Root::HELLO_REPLY:
      return HelloReply{root.getHelloReply().getCoordinatorIncarnation()};
    case Root::HEARTBEAT:
      return read(root.getHeartbeat());
    case Root::HEARTBEAT_REPLY:
      return HeartbeatReply{root.getHeartbeatReply().getCoordinatorIncarnation()};
    default:
      break;
  }
  TRIB_ASSERT(false);
  return HelloReply{};
}

}  // namespace tributary::codec
