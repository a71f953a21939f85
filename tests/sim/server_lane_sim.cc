#include <algorithm>
#include <utility>

#include "tests/changed_view.h"
#include "tests/sim/cluster_world.h"
#include "tests/sim/server_sim.h"

namespace tributary::sim {
namespace {

constexpr std::uint64_t kMaxCommandNs = 300'000;
constexpr std::uint64_t kMaxPrepareNs = 500'000'000;
constexpr std::uint64_t kMaxSlowCommandNs = 30'000'000;
constexpr double kSlowCommand = 0.02;
constexpr std::size_t kMaxCommands = 256;
constexpr double kRefusedLast = 0.1;

std::string endpoint_of(const ClusterWorld& world, const ServerSim& server, LaneIndex lane) {
  const std::string place = "server-" + std::to_string(server.index()) + ":" + std::to_string(lane.value);
  return world.scenario.fixed_ports ? place : place + "@" + std::to_string(server.incarnation());
}

// A machine that has no memory to give at times, for longer than anybody waits.
class PreparingSim final : public PoolPreparing {
 public:
  PreparingSim(ClusterWorld& world, ServerSim& server) : world_(world), server_(server) {}
  void begin(BufferPool&, std::size_t, std::function<void()> done) override {
    end();
    if (world_.random.chance(0.1)) return;
    server_.after(world_.random.below(kMaxPrepareNs), [done = std::move(done), life = std::weak_ptr(life_)] {
      if (!life.expired()) done();
    });
  }
  void end() override { life_ = std::make_shared<char>(); }

 private:
  ClusterWorld& world_;
  ServerSim& server_;
  std::shared_ptr<char> life_ = std::make_shared<char>();  // of what was begun
};

}  // namespace

ServerLaneSim::ServerLaneSim(ClusterWorld& world, ServerSim& server, LaneIndex lane)
    : world_(world),
      server_(server),
      endpoint_(endpoint_of(world, server, lane)),
      jobs_({.shard = ShardIndex(server.index()), .lane = lane}, static_cast<LaneOutput&>(*this),
            static_cast<LaneListener&>(*this)),
      told_(&jobs_.told(), [](ToldPlaces*) {}) {
  listener_ = std::make_unique<Listener>(world_.wires, server_, endpoint_, world_.scenario.disorder,
                                         [this](PeerId from, Packet& packet) { receive(from, packet); });
}

ServerLaneSim::~ServerLaneSim() {
  for (auto& pool : jobs_.end()) world_.retire(std::move(pool));  // packets and snapshots may refer to their blocks
}

// ---- Commands ----

void ServerLaneSim::post(std::function<void(LaneJobs&)> command) {
  const std::uint64_t now = server_.now_ns();
  const std::uint64_t most = world_.random.chance(kSlowCommand) ? kMaxSlowCommandNs : kMaxCommandNs;
  commands_until_ns_ = std::max(commands_until_ns_ + 1, now + world_.random.below(most));
  if (++commands_ > kMaxCommands)
    world_.broken("more than " + std::to_string(kMaxCommands) + " commands wait for a lane");
  server_.after(commands_until_ns_ - now, [this, command = std::move(command)] {
    --commands_;
    command(jobs_);
  });
}

void ServerLaneSim::open(ShardJob job, std::shared_ptr<LaneJobGauges> gauges) {
  post([this, job = std::move(job), gauges = std::move(gauges)](LaneJobs& jobs) {
    begins_[job.view->job].loaded.clear();
    jobs.open(job, gauges);
  });
}

void ServerLaneSim::reopen(ShardJob job, std::shared_ptr<LaneJobGauges> gauges) {
  post([this, job = std::move(job), gauges = std::move(gauges)](LaneJobs& jobs) {
    const ShardCore* kept = jobs.parked(job.view->job);
    if (kept == nullptr) return world_.broken("a lane is to go on with what it does not have");
    ShardJob next = job;
    if (world_.mutation == Mutation::kOldNodes) {
      next = testing::changed(next, [&](ViewPlan& view, JobConfig&) { view.nodes = kept->job().view->nodes; });
    }
    jobs.reopen(next, gauges);
    const Begin& begin = begins_[job.view->job];
    if (job.view->view == begin.goes_on) return;
    for (const auto& [chunk, state] : begin.loaded) {
      world_.job(job.view->job).judge.restores(*jobs.core(job.view->job), chunk, state);
    }
  });
}

void ServerLaneSim::restore(JobId job, ViewId view, ChunkIndex chunk, ChunkState saved) {
  post([this, job, view, chunk, state = std::move(saved)](LaneJobs& jobs) mutable {
    const ShardCore* core = jobs.core(job);
    if (core != nullptr && core->job().view->view == view) {
      world_.job(job).judge.restores(*core, chunk, state);
      begins_[job].loaded.insert_or_assign(chunk, state);
      const bool others = state.nodes != core->job().view->nodes;
      if (world_.mutation == Mutation::kLostResiduals && others) state.residuals.clear();
    }
    jobs.restore(job, view, chunk, std::move(state));
  });
}

void ServerLaneSim::decide(const RoundDecision& decision) {
  post([this, decision](LaneJobs& jobs) {
    jobs.decide(decision);
    if (const ShardCore* core = jobs.core(decision.job)) world_.job(decision.job).judge.decided(*core);
  });
}

// ---- What the lane says ----

void ServerLaneSim::lane_opened(LaneIndex, JobId job, ViewId view, const Status& status) {
  server_.lane_says([=](ControlJobs& jobs) { jobs.lane_opened(job, view, status); });
}

void ServerLaneSim::lane_snapshot(LaneIndex lane, JobId job, ViewId view, Round round, bool started) {
  if (!started) server_.lane_says([=](ControlJobs& jobs) { jobs.lane_snapshot(lane, job, view, round, started); });
}

void ServerLaneSim::lane_parked(LaneIndex, JobId job, ViewId view, bool any, Version min, Version max) {
  server_.lane_says([=](ControlJobs& jobs) { jobs.lane_parked(job, view, any, min, max); });
}

void ServerLaneSim::lane_stopped(LaneIndex, JobId job, ViewId view, Round round, bool kept) {
  if (!kept) server_.lane_says([=](ControlJobs& jobs) { jobs.lane_stopped(job, view, round, kept); });
}

void ServerLaneSim::lane_captured(ChunkSnapshot snapshot) {
  world_.job(snapshot.job).judge.captured(snapshot);
  server_.captured(std::move(snapshot));
}

void ServerLaneSim::lane_facts(LaneIndex lane, RoundFacts facts) {
  server_.lane_says([=](ControlJobs& jobs) { jobs.lane_facts(lane, facts); });
}

std::unique_ptr<PoolPreparing> ServerLaneSim::preparing() {
  return std::make_unique<PreparingSim>(world_, server_);
}

std::uint64_t ServerLaneSim::now_ns() const {
  return server_.now_ns();
}

std::uint64_t ServerLaneSim::now_ms() const {
  return server_.now_ns() / 1'000'000;
}

std::optional<Version> ServerLaneSim::held(JobId job, ViewId view, ChunkIndex chunk) const {
  const ShardCore* core = jobs_.core(job);
  if (core == nullptr || core->job().view->view != view) return std::nullopt;
  return core->version(chunk);
}

// ---- Messages ----

void ServerLaneSim::receive(PeerId from, Packet& packet) {
  const auto& message = std::get<DataMessage>(packet.message);
  LaneJobs::Received received;
  received.place = packet.place;
  if (packet.place.link != 0) received.place.bytes = packet.lent.size();
  const bool in_memory = received.place.bytes != 0;
  received.frames = packet.lent.empty() || in_memory ? 1 : 2;
  const auto* push = std::get_if<Push>(&message);
  if (in_memory) {
    received.payload = Payload(packet.lender, packet.lent);
  } else {
    auto own = std::make_unique<std::vector<std::byte>>(packet.lent.begin(), packet.lent.end());
    const std::span<std::byte> bytes = *own;
    received.payload = Payload::alone(std::move(own), bytes);
  }
  const JobId job = std::visit([](const auto& m) { return m.key.job; }, message);
  const ViewId view = std::visit([](const auto& m) { return m.key.view; }, message);
  const ShardCore* core = jobs_.core(job);
  const bool current = core != nullptr && core->job().view->view == view;
  const bool initialised = current && core->initialised();
  if (push && initialised) world_.job(job).judge.push_arrives(*core, *push, packet.payload());
  const std::uint64_t malformed = jobs_.counters().malformed.value();
  jobs_.receive(from, message, std::move(received));
  if (jobs_.counters().malformed.value() != malformed) world_.broken("a lane refused a message of ours as malformed");
  if (core == nullptr) return;
  if (push && current && core->initialised()) world_.job(job).judge.push_handled(*core, *push);
  if (const auto* query = std::get_if<Query>(&message); query && initialised) {
    world_.job(job).judge.query_handled(*core, *query);
  }
  check_bounds(*core);
}

void ServerLaneSim::check_bounds(const ShardCore& core) {
  const std::uint64_t bound = std::uint64_t{core.chunks()} * core.job().view->nodes;
  if (core.stats().held_frames > bound) world_.broken("more frames are held than nodes x chunks");
  if (core.stats().withheld > bound) world_.broken("more answers are withheld than nodes x chunks");
}

ServerLaneSim::Link ServerLaneSim::link(JobId job, ViewId view, NodeRank node) {
  const Result<LaneJobs::Shared> shared = jobs_.shared({job, view, node});
  if (!shared) return {};
  const auto number = told_->open(job, view, node, *shared->pool, shared->chunks);
  if (!number) return {};
  return {*number, told_, shared->pool};
}

void ServerLaneSim::send(PeerId to, const DataMessage& message, const BufferRef& values, const PayloadPlace& place) {
  // (An answer without values is judged by the node's own parameters, when the node reports that it has them.)
  if (const auto* answer = std::get_if<Answer>(&message)) {
    JobWorld& job = world_.job(answer->key.job);
    if (values) job.judge.answers(*answer, values.bytes());
    const ShardCore* core = jobs_.core(answer->key.job);
    const bool of_round = core != nullptr && answer->version.value > core->job().view->start.value;
    const bool last = of_round && world_.scenario.refuses_last && job.is_last(answer->version);
    // As good as never sent, and nobody is told. Once: a node asks again after 10 s, and a stop waits for 15 s.
    const bool refused = last && world_.random.chance(kRefusedLast);
    if (refused && refused_.insert({answer->key.view, answer->key.node, answer->key.chunk}).second) return;
  }
  // Views, rounds and jobs that are not open are a matter of time; nobody of ours sends what is wrong in itself.
  if (const auto* refusal = std::get_if<ErrorReply>(&message)) {
    using enum ErrorCode;
    constexpr ErrorCode kWrong[] = {kMalformed, kWrongLength, kInvalidArgument, kConfigMismatch};
    if (std::ranges::find(kWrong, refusal->code) != std::end(kWrong)) {
      world_.broken("a server refuses a message of ours: " + refusal->message);
    }
  }
  if (place.bytes == 0) {
    listener_->send(to, Packet{message, values, {}});
    return;
  }
  const auto bytes = values.bytes();
  Packet packet{message, {}, std::make_shared<const std::vector<std::byte>>(bytes.begin(), bytes.end()), place};
  packet.told = bytes;
  listener_->send(to, std::move(packet));
}

}  // namespace tributary::sim
