#include <algorithm>
#include <utility>

#include "tests/sim/cluster_world.h"
#include "tests/sim/server_sim.h"

namespace tributary::sim {
namespace {

constexpr std::uint64_t kMaxCommandNs = 300'000;
constexpr std::uint64_t kMaxPrepareNs = 500'000'000;
constexpr std::uint64_t kMaxSlowCommandNs = 30'000'000;
constexpr double kSlowCommand = 0.02;
constexpr std::size_t kMaxCommands = 256;

std::string endpoint_of(const ClusterWorld& world, const ServerSim& server, LaneIndex lane) {
  const std::string place = "server-" + std::to_string(server.index()) + ":" + std::to_string(lane.value);
  return world.scenario.fixed_ports ? place : place + "@" + std::to_string(server.incarnation());
}

}  // namespace

ServerLaneSim::ServerLaneSim(ClusterWorld& world, ServerSim& server, LaneIndex lane)
    : world_(world), server_(server), lane_(lane), endpoint_(endpoint_of(world, server, lane)) {
  listener_ = std::make_unique<Listener>(world_.wires, server_, endpoint_, world_.scenario.drops,
                                         [this](PeerId from, Packet& packet) { receive(from, packet); });
}

ServerLaneSim::~ServerLaneSim() {
  for (auto* jobs : {&jobs_, &parked_}) {
    for (auto& [id, job] : *jobs) retire(std::move(job));
  }
}

void ServerLaneSim::post(std::function<void()> command) {
  const std::uint64_t now = server_.now_ns();
  const std::uint64_t most = world_.random.chance(kSlowCommand) ? kMaxSlowCommandNs : kMaxCommandNs;
  commands_until_ns_ = std::max(commands_until_ns_ + 1, now + world_.random.below(most));
  if (++commands_ > kMaxCommands)
    world_.broken("more than " + std::to_string(kMaxCommands) + " commands wait for a lane");
  server_.after(commands_until_ns_ - now, [this, command = std::move(command)] {
    --commands_;
    command();
  });
}

void ServerLaneSim::open(ShardJob job, std::shared_ptr<LaneJobGauges> gauges) {
  post([this, job = std::move(job), gauges = std::move(gauges)] {
    retire(jobs_, job.job);
    retire(parked_, job.job);
    Job entry;
    entry.gauges = gauges;
    std::size_t chunks = 0, largest = 1;
    for (const ChunkIndex chunk : job.layout->chunks_owned_by(job.shard, job.lane)) {
      ++chunks;
      largest = std::max<std::size_t>(largest, job.layout->chunk(chunk).elements);
    }
    entry.pool = std::make_shared<BufferPool>(
        largest * sizeof(float), ShardCore::pool_blocks(chunks, job.optimizer->slots(), job.pull, job.push, job.nodes,
                                                        job.recovers, job.clocks.has_value(), job.gate.has_value()));
    entry.core = std::make_unique<ShardCore>(job, *entry.pool, static_cast<ShardOutput&>(*this));
    jobs_.emplace(job.job, std::move(entry));
  });
}

void ServerLaneSim::reopen(ShardJob job, std::shared_ptr<LaneJobGauges> gauges) {
  post([this, job = std::move(job), gauges = std::move(gauges)] {
    const JobId id = job.job;
    retire(jobs_, id);
    auto kept = parked_.extract(id);
    if (kept.empty()) return world_.broken("a lane is to go on with what it does not have");
    kept.mapped().gauges = gauges;
    ShardJob next = job;
    if (world_.mutation == Mutation::kOldNodes) next.nodes = kept.mapped().core->job().nodes;
    kept.mapped().restored = kept.mapped().core->reopen(next);
    jobs_.insert(std::move(kept));
  });
}

void ServerLaneSim::park(JobId job, ViewId view) {
  post([this, job, view] {
    if (const auto found = jobs_.find(job); found != jobs_.end() && found->second.core->job().view == view) {
      found->second.core->stop(false, Round());
    }
    set_aside(job, view);
  });
}

void ServerLaneSim::set_aside(JobId job, ViewId view) {
  bool any = false;
  Version min, max;
  if (const auto found = jobs_.find(job); found != jobs_.end() && found->second.core->job().view == view) {
    const ShardCore& core = *found->second.core;
    told_->end_view(job);
    publish(found->second);
    any = core.initialised();
    min = core.min_version();
    max = core.max_version();
    retire(parked_, job);
    if (any) {
      parked_.insert(jobs_.extract(found));
    } else {
      retire(jobs_, job);
    }
  }
  server_.lane_says([=](ControlJobs& jobs) { jobs.lane_parked(job, view, any, min, max); });
}

void ServerLaneSim::drop_parked(JobId job) {
  post([this, job] { retire(parked_, job); });
}

void ServerLaneSim::restore(JobId job, RestoredChunk restored) {
  post([this, job, chunk = std::move(restored)] {
    Job& entry = jobs_.at(job);
    if (!entry.restored) return;
    world_.judge.restores(*entry.core, chunk);
    const std::vector<std::span<const float>> slots(chunk.slots.begin(), chunk.slots.end());
    std::vector<NodeResidual> residuals;
    for (const auto& [node, values] : chunk.residuals) residuals.push_back({node, values});
    const bool others = chunk.nodes != entry.core->job().nodes;
    if (world_.mutation == Mutation::kLostResiduals && others) residuals.clear();
    entry.restored = entry.core->restore(chunk.chunk, chunk.version, chunk.step, chunk.params, slots,
                                         {chunk.estimate, chunk.nodes, residuals}, chunk.clocks, chunk.gate);
  });
}

void ServerLaneSim::opened(JobId job, ViewId view, bool restored) {
  post([this, job, view, restored] {
    Job& entry = jobs_.at(job);
    Status status = entry.restored;
    if (status && restored && !entry.core->initialised()) {
      status = fail(ErrorCode::kStore, "the snapshot in the store lacks chunks of a lane");
    }
    publish(entry);
    server_.lane_says([=](ControlJobs& jobs) { jobs.lane_opened(job, view, status); });
    if (const std::optional<RoundFacts> known = entry.core->decided(); status && known) facts(*known);
  });
}

void ServerLaneSim::prepare_snapshot(JobId job, ViewId view) {
  post([this, job, view] {
    const auto found = jobs_.find(job);
    if (found == jobs_.end() || found->second.core->job().view != view) return;
    const std::shared_ptr<LaneJobGauges> gauges = found->second.gauges;
    gauges->prepared.store(false);
    if (world_.random.chance(0.1)) return;  // the machine has no memory to give, for longer than anybody waits
    server_.after(world_.random.below(kMaxPrepareNs), [gauges] { gauges->prepared.store(true); });
  });
}

void ServerLaneSim::snapshot_at(JobId job, ViewId view, Round round) {
  post([this, job, view, round] {
    const auto found = jobs_.find(job);
    const bool started =
        found != jobs_.end() && found->second.core->job().view == view && found->second.core->snapshot_at(round);
    if (started) found->second.gauges->prepared.store(false);
    if (!started)
      server_.lane_says([=, this](ControlJobs& jobs) { jobs.lane_snapshot(lane_, job, view, round, false); });
  });
}

void ServerLaneSim::decide(const RoundDecision& decision) {
  post([this, decision] {
    const auto found = jobs_.find(decision.job);
    if (found == jobs_.end()) return;
    ShardCore& core = *found->second.core;
    core.decide(decision);
    world_.judge.decided(core);
  });
}

void ServerLaneSim::facts(const RoundFacts& facts) {
  server_.lane_says([lane = lane_, facts](ControlJobs& jobs) { jobs.lane_facts(lane, facts); });
}

void ServerLaneSim::await_longer(JobId job, ViewId view) {
  post([this, job, view] {
    const auto found = jobs_.find(job);
    if (found == jobs_.end() || found->second.core->job().view != view || !found->second.stop) return;
    found->second.stop_by_ns = server_.now_ns() + LaneOptions().stop_timeout_ms * 1'000'000;
  });
}

void ServerLaneSim::stop_job(JobId job, ViewId view, bool keep, Round round, bool park) {
  post([this, job, view, keep, round, park] {
    bool kept = false;
    if (const auto found = jobs_.find(job); found != jobs_.end() && found->second.core->job().view == view) {
      Job& entry = found->second;
      kept = entry.core->stop(keep, round) && keep;
      publish(entry);
      if (entry.core->keeping()) {
        entry.stop = round;
        entry.parks = park;
        entry.stop_by_ns = server_.now_ns() + LaneOptions().stop_timeout_ms * 1'000'000;
        return;
      }
      if (!park) retire(jobs_, job);
    }
    if (!kept) server_.lane_says([=](ControlJobs& jobs) { jobs.lane_stopped(job, view, round, kept); });
    if (park) set_aside(job, view);
  });
}

void ServerLaneSim::tick() {
  std::erase_if(retired_, [](const auto& pool) {
    pool->trim(0);
    return pool->in_use() == 0;
  });
  std::vector<JobId> over;
  for (auto& [id, job] : jobs_) {
    publish(job);
    if (job.stop && (!job.core->keeping() || server_.now_ns() >= job.stop_by_ns)) over.push_back(id);
  }
  for (const JobId id : over) {
    Job& job = jobs_.at(id);
    if (job.core->keeping()) {
      server_.lane_says([id, view = job.core->job().view, round = *job.stop](ControlJobs& jobs) {
        jobs.lane_stopped(id, view, round, false);
      });
    }
    job.stop.reset();
    if (job.parks) {
      const ViewId view = job.core->job().view;
      job.core->stop(false, Round());
      set_aside(id, view);
    } else {
      retire(jobs_, id);
    }
  }
}

void ServerLaneSim::publish(Job& job) {
  job.gauges->min_version.store(job.core->min_version().value, std::memory_order_relaxed);
  job.gauges->max_version.store(job.core->max_version().value, std::memory_order_relaxed);
}

void ServerLaneSim::retire(Job job) {
  told_->end_view(job.core->job().job);
  if (world_.mutation == Mutation::kEmptiedPool) told_->clear();
  job.core.reset();
  retired_.push_back(job.pool);
  world_.retire(std::move(job.pool));  // packets and snapshots may still refer to its blocks
}

void ServerLaneSim::retire(std::map<JobId, Job>& jobs, JobId job) {
  auto found = jobs.extract(job);
  if (!found.empty()) retire(std::move(found.mapped()));
}

std::optional<Version> ServerLaneSim::held(JobId job, ViewId view, ChunkIndex chunk) const {
  const auto found = jobs_.find(job);
  if (found == jobs_.end() || found->second.core->job().view != view) return std::nullopt;
  return found->second.core->version(chunk);
}

// ---- Messages ----

void ServerLaneSim::send(PeerId to, DataMessage message, BufferRef payload) {
  listener_->send(to, Packet{std::move(message), std::move(payload), {}});
}

void ServerLaneSim::receive(PeerId from, Packet& packet) {
  const DataMessage& message = std::get<DataMessage>(packet.message);
  std::visit(
      [&](const auto& m) {
        using M = std::decay_t<decltype(m)>;
        const auto found = jobs_.find(m.key.job);
        if (found == jobs_.end()) {
          return send(from, ErrorReply{m.key, {}, ErrorCode::kUnknownJob, "the job is not open here"});
        }
        ShardCore& core = *found->second.core;
        if (packet.place.link != 0 && m.key.view == core.job().view) {
          if (Status bound = told_->bind(from, m.key, packet.place); !bound) world_.broken(bound.error().message);
        }
        if constexpr (std::is_same_v<M, Push>) {
          push(from, core, m, packet);
        } else if constexpr (std::is_same_v<M, Init>) {
          core.on_init(from, m, packet.payload());
        } else if constexpr (std::is_same_v<M, Pull>) {
          core.on_pull(from, m);
        } else if constexpr (std::is_same_v<M, Query>) {
          const bool current = m.key.view == core.job().view && core.initialised();
          core.on_query(from, m);
          if (current) world_.judge.query_handled(core, m);
        } else {
          world_.broken("a server got a message that only servers send");
        }
        check_bounds(core);
      },
      message);
}

void ServerLaneSim::push(PeerId from, ShardCore& core, Push message, const Packet& packet) {
  const bool current = message.key.view == core.job().view;
  if (!current) return core.on_push(from, message, {});
  const Push sent = message;
  world_.plant(core, message);
  if (core.initialised()) world_.judge.push_arrives(core, sent, packet.payload());
  core.on_push(from, message, Payload(std::shared_ptr(packet.copied), *packet.copied));
  if (core.initialised()) world_.judge.push_handled(core, sent);
}

void ServerLaneSim::check_bounds(const ShardCore& core) {
  const std::uint64_t bound = std::uint64_t{core.chunks()} * core.job().nodes;
  if (core.stats().held_frames > bound) world_.broken("more frames are held than nodes x chunks");
  if (core.stats().withheld > bound) world_.broken("more answers are withheld than nodes x chunks");
}

ServerLaneSim::Link ServerLaneSim::link(JobId job, ViewId view, NodeRank node) {
  const auto found = jobs_.find(job);
  if (found == jobs_.end() || found->second.core->job().view != view) return {};
  const auto number = told_->open(job, view, node, *found->second.pool, found->second.core->chunks());
  if (!number) return {};
  return {*number, told_, found->second.pool};
}

// What is told instead of `values`: a block that nobody shares, so that the next of them finds it free. Empty: no bug
// is planted there.
BufferRef ServerLaneSim::planted(const DataMessage& message, const ChunkKey& key, const BufferRef& values) {
  const auto* answer = std::get_if<Answer>(&message);
  if (world_.mutation != Mutation::kUnsharedPrevious || !answer || answer->encoding == EncodingId::kFp32) return {};
  Job& entry = jobs_.at(key.job);
  if (!entry.core->job().recovers || answer->version >= entry.core->version(key.chunk)) return {};
  if (!entry.planted) entry.planted = entry.pool->acquire(entry.pool->block_bytes());
  if (!entry.planted) return {};
  std::ranges::copy(values.bytes(), entry.planted.data());
  return entry.planted;
}

void ServerLaneSim::send_values(PeerId to, const DataMessage& message, const ChunkKey& key, const BufferRef& values) {
  const BufferRef unshared = planted(message, key, values);
  const BufferRef& told = unshared ? unshared : values;
  const std::optional<PayloadPlace> place = told_->tell(to, key, told);
  if (!place) return;
  if (place->bytes == 0) return send(to, message, values);
  const auto bytes = values.bytes();
  Packet packet{message, {}, std::make_shared<const std::vector<std::byte>>(bytes.begin(), bytes.end()), *place};
  packet.told = told.bytes().first(values.size());
  listener_->send(to, std::move(packet));
  if (unshared && !told_->bind(to, key, *place)) world_.broken("a place that was just told is not known");
}

void ServerLaneSim::answer(PeerId to, const Answer& header, const BufferRef& payload) {
  world_.judge.answers(header, payload.bytes());
  send_values(to, header, header.key, payload);
}

void ServerLaneSim::residual(PeerId to, const Residual& header, const BufferRef& values) {
  send_values(to, header, header.key, values);
}

void ServerLaneSim::captured(ChunkSnapshot snapshot) {
  world_.judge.captured(snapshot);
  server_.captured(std::move(snapshot));
}

}  // namespace tributary::sim
