#include "tests/sim/simulation.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "common/codec.h"
#include "server/shard_core.h"
#include "tests/sim/network.h"
#include "tests/sim/reference.h"
#include "worker/client_core.h"
#include "worker/host_reducer.h"
#include "worker/node_gather.h"

namespace tributary::sim {
namespace {

constexpr JobId kJob{77};
constexpr ViewId kView{3};
constexpr std::uint64_t kTickNs = 100'000'000;
constexpr std::uint64_t kMaxVirtualNs = 3'600'000'000'000;  // an hour: far beyond what any seed needs

using Bytes = std::vector<std::byte>;

Bytes encoded(const DataMessage& message) {
  alignas(8) std::byte buffer[kMaxErrorHeader];
  const std::span<const std::byte> bytes = encode_data(message, buffer);
  return Bytes(bytes.begin(), bytes.end());
}

ScheduleConfig schedule_of(std::uint64_t rounds) {
  ScheduleConfig schedule;
  schedule.name = "cosine";
  schedule.warmup_rounds = 2;
  schedule.total_rounds = rounds;
  return schedule;
}

std::shared_ptr<const kernels::Optimizer> optimizer_of(const Scenario& scenario) {
  kernels::OptimizerOptions options;
  options.weight_decay = 0.01;
  if (scenario.optimizer == "sgd") {
    options.momentum = 0.9;
    options.nesterov = true;
  }
  return kernels::make_optimizer(scenario.optimizer, options);
}

class World;

// One lane of one server: a real ShardCore.
class LaneSim : public ShardOutput {
 public:
  LaneSim(World& world, std::uint16_t shard, std::uint16_t lane);
  void receive(std::uint32_t node, const Bytes& header, const std::shared_ptr<const Bytes>& payload);
  void answer(PeerId to, const Answer& header, const BufferRef& payload) override;
  void residual(PeerId to, const Residual&, std::span<const std::byte>) override;
  void receipt(PeerId to, const Receipt& header) override { reply(to, header); }
  void resend(PeerId to, const Resend& header) override { reply(to, header); }
  void error(PeerId to, const ErrorReply& header) override { reply(to, header); }
  void captured(ChunkSnapshot snapshot) override;

  ShardCore& core() { return *core_; }

 private:
  void reply(PeerId to, const DataMessage& message);
  World& world_;
  ConnectionIndex connection_;
  std::unique_ptr<BufferPool> pool_;
  std::unique_ptr<ShardCore> core_;
};

// One node: real ClientCore, NodeGather and HostReducer, simulated trainers.
class NodeSim : public ClientOutput, private ReduceListener {
 public:
  NodeSim(World& world, std::uint32_t node);
  void start();
  void receive(ConnectionIndex from, const Bytes& header, std::span<const std::byte> payload);
  void tick();
  bool done() const;
  // The last round is over: what snapshots need of this node goes to the servers.
  void leave();
  bool left() const { return !keeps_residual_ || client_->residuals_kept(); }

  void send_push(ConnectionIndex connection, const Push& push) override;
  void send_init(ConnectionIndex connection, const Init& init) override;
  void send_pull(ConnectionIndex connection, const Pull& pull) override;
  void send_query(ConnectionIndex connection, const Query& query) override;
  std::uint64_t kept_weight(ChunkIndex, Round) override { return 0; }
  void answered(const Answer& answer, bool whole, std::span<const std::byte> payload) override;
  void residual_restored(ChunkIndex chunk, std::span<const std::byte> values) override;
  void refused(const ErrorReply& error) override;

  const ClientCore& client() const { return *client_; }

 private:
  struct RankSim {
    std::vector<float> gradient;
    std::vector<std::uint64_t> tensor_round;  // last round computed or being computed
  };
  void reduced(ChunkIndex chunk, Round round, std::uint64_t weight, std::span<const std::byte> payload) override;
  void delivered(ChunkIndex chunk, Version version) override;
  void reducer_failed(Error error) override;
  void send(ConnectionIndex connection, const DataMessage& message, std::shared_ptr<const Bytes> payload);
  void start_tensor_if_current(std::uint32_t local, std::size_t tensor);
  void compute_tensor(std::uint32_t local, std::size_t tensor, std::uint64_t round);

  World& world_;
  const std::uint32_t node_;
  std::unique_ptr<ClientCore> client_;
  std::unique_ptr<NodeGather> gather_;
  std::unique_ptr<HostReducer> reducer_;
  std::vector<std::shared_ptr<const Bytes>> frames_;  // by chunk: payload of the open push
  bool keeps_residual_ = false;
  std::vector<NodeGather::Complete> complete_;
  std::vector<RankSim> ranks_;
  std::vector<float> params_;
  std::vector<std::uint64_t> versions_;  // by chunk, + 1; 0: nothing delivered
};

class World {
 public:
  World(const Scenario& scenario, Mutation mutation_in)
      : scenario_(scenario),
        mutation(mutation_in),
        random(scenario.seed ^ 0x5eedull),
        network({.duplicate = scenario.duplicate, .lose = scenario.lose}, scenario.seed ^ 0xbadc0deull) {
    std::vector<TensorSpec> tensors;
    std::uint64_t left = scenario.parameters;
    while (left > 0) {
      const std::uint64_t elements = std::min<std::uint64_t>(left, random.between(1, scenario.parameters / 3 + 1));
      std::string name(1, 't');
      name += std::to_string(tensors.size());
      tensors.push_back({std::move(name), {elements}});
      left -= elements;
    }
    const std::vector<ShardSlots> slots(scenario.shards, ShardSlots{static_cast<std::uint16_t>(scenario.lanes), 1.0});
    layout = std::make_shared<const Layout>(*Layout::make(tensors, scenario.chunk_elements, slots));
    push = *parse_encoding(scenario.push);
    pull = *parse_encoding(scenario.pull);
    ReferenceOptions options;
    options.seed = scenario.seed;
    options.nodes = scenario.nodes;
    options.ranks_per_node = scenario.ranks_per_node;
    options.elements = layout->flat_elements();
    options.rounds = scenario.rounds;
    options.layout = layout;
    options.push = push;
    options.pull = pull;
    options.schedule = schedule_of(scenario.rounds);
    options.optimizer = optimizer_of(scenario);
    options.reverse_nodes = mutation == Mutation::kArrivalOrderSum;
    reference = std::make_unique<Reference>(options);
    for (std::uint16_t shard = 0; shard < scenario.shards; ++shard) {
      for (std::uint16_t lane = 0; lane < scenario.lanes; ++lane) {
        lanes.push_back(std::make_unique<LaneSim>(*this, shard, lane));
      }
    }
    for (std::uint32_t node = 0; node < scenario.nodes; ++node) nodes.push_back(std::make_unique<NodeSim>(*this, node));
  }

  void broken(const std::string& what) {
    if (failure.empty()) failure = what + " (virtual time " + std::to_string(network.now_ns()) + " ns)";
  }
  const Scenario& scenario() const { return scenario_; }
  LaneSim& lane(ConnectionIndex connection) { return *lanes[connection.value]; }

  void snapshot_sometimes();
  void check_snapshots(bool all);
  void check_final_state();

 private:
  const Scenario scenario_;

 public:
  const Mutation mutation;
  Random random;
  std::shared_ptr<const Layout> layout;
  EncodingSpec push, pull;
  std::unique_ptr<Reference> reference;
  std::string failure;
  std::uint64_t resends = 0, snapshots_checked = 0;
  // Destroyed in reverse: events and snapshots hold buffers of the lanes' pools.
  std::vector<std::unique_ptr<LaneSim>> lanes;
  std::vector<std::unique_ptr<NodeSim>> nodes;
  struct Kept {
    ChunkSnapshot snapshot;
    std::span<const float> params;
    std::uint64_t read_at_ns;
  };
  std::vector<Kept> kept;
  Network network;
};

bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

std::span<const float> part(const std::vector<float>& flat, const Layout& layout, ChunkIndex chunk) {
  const ChunkRange range = layout.chunk(chunk);
  return std::span<const float>(flat).subspan(range.begin, range.elements);
}

// ---- LaneSim ----

LaneSim::LaneSim(World& world, std::uint16_t shard, std::uint16_t lane)
    : world_(world), connection_(static_cast<std::uint16_t>(shard * world.scenario().lanes + lane)) {
  ShardJob job;
  job.job = kJob;
  job.view = kView;
  job.nodes = world.scenario().nodes;
  job.layout = world.layout;
  job.shard = ShardIndex(shard);
  job.lane = LaneIndex(lane);
  job.optimizer = optimizer_of(world.scenario());
  job.lr = 0.1;
  job.schedule = schedule_of(world.scenario().rounds);
  job.push = world.push;
  job.pull = world.pull;
  const std::size_t chunks = world.layout->chunks_owned_by(job.shard, job.lane).size();
  pool_ = std::make_unique<BufferPool>(
      world.layout->chunk_elements() * sizeof(float),
      ShardCore::pool_blocks(chunks, job.optimizer->slots(), job.pull, job.push, job.nodes));
  core_ = std::make_unique<ShardCore>(job, *pool_, *this);
}

void LaneSim::receive(std::uint32_t node, const Bytes& header, const std::shared_ptr<const Bytes>& payload) {
  Result<DataMessage> message = decode_data(header);
  if (!message) return world_.broken("server cannot decode: " + message.error().message);
  const PeerId from(node + 1);
  if (auto* push = std::get_if<Push>(&*message)) {
    if (world_.mutation == Mutation::kForgetDuplicates && core_->stats().pushes > 0 && world_.random.chance(0.05)) {
      push->key.node = NodeRank((push->key.node.value + 1) % world_.scenario().nodes);
    }
    core_->on_push(from, *push, Payload(std::shared_ptr<const Bytes>(payload), *payload));
  } else if (const auto* init = std::get_if<Init>(&*message)) {
    core_->on_init(from, *init, *payload);
  } else if (const auto* pull = std::get_if<Pull>(&*message)) {
    core_->on_pull(from, *pull);
  } else if (const auto* query = std::get_if<Query>(&*message)) {
    core_->on_query(from, *query);
  } else {
    world_.broken("server got a message that only servers send");
  }
  const ShardStats& stats = core_->stats();
  const std::uint64_t bound = std::uint64_t{core_->chunks()} * world_.scenario().nodes;
  if (stats.held_frames > bound) world_.broken("more frames held than nodes x chunks");
}

void LaneSim::reply(PeerId to, const DataMessage& message) {
  world_.network.send(
      [this, node = to.value - 1, header = encoded(message)] { world_.nodes[node]->receive(connection_, header, {}); });
}

void LaneSim::answer(PeerId to, const Answer& header, const BufferRef& payload) {
  world_.network.send([this, node = to.value - 1, bytes = encoded(header), payload] {
    world_.nodes[node]->receive(connection_, bytes, payload.bytes());
  });
}

void LaneSim::residual(PeerId, const Residual&, std::span<const std::byte>) {
  world_.broken("a server sent a residual in a fresh job");
}

void LaneSim::captured(ChunkSnapshot snapshot) {
  const std::uint64_t read_at = world_.network.now_ns() + world_.random.between(1, 60) * 1'000'000;
  const std::span<const float> params = snapshot.params.floats();
  if (world_.mutation == Mutation::kWriteInPlace) snapshot.params.reset();
  world_.kept.push_back({std::move(snapshot), params, read_at});
}

// ---- NodeSim ----

NodeSim::NodeSim(World& world, std::uint32_t node) : world_(world), node_(node) {
  const Scenario& scenario = world.scenario();
  ClientJob job;
  job.job = kJob;
  job.view = kView;
  job.node = NodeRank(node);
  job.layout = world.layout;
  for (std::uint32_t c = 0; c < world.layout->chunks(); ++c) {
    const ChunkOwner owner = world.layout->owner(ChunkIndex(c));
    job.chunks.push_back(ChunkIndex(c));
    job.connections.push_back(
        ConnectionIndex(static_cast<std::uint16_t>(owner.shard.value * scenario.lanes + owner.lane.value)));
  }
  job.push = world.push;
  job.pull = world.pull;
  job.init = node == 0;
  gather_ = std::make_unique<NodeGather>(world.layout, job.chunks, scenario.ranks_per_node, Round(0));
  ClientOptions options;
  options.window_cap_bytes = scenario.window_bytes;
  client_ =
      std::make_unique<ClientCore>(job, static_cast<std::uint16_t>(scenario.shards * scenario.lanes), options, *this);
  params_.resize(world.layout->flat_elements());
  frames_.resize(world.layout->chunks());
  versions_.resize(world.layout->chunks());
  ranks_.resize(scenario.ranks_per_node);
  for (RankSim& rank : ranks_) {
    rank.gradient.resize(params_.size());
    rank.tensor_round.resize(world.layout->tensors().size());
  }
  std::vector<const float*> gradients;
  for (const RankSim& rank : ranks_) gradients.push_back(rank.gradient.data());
  reducer_ = std::make_unique<HostReducer>(world.layout, job.chunks, gradients, params_.data(), world.push, world.pull,
                                           static_cast<ReduceListener&>(*this));
  keeps_residual_ = make_encoding(world.push)->keeps_residual();
}

void NodeSim::start() {
  client_->start(world_.network.now_ns());
  if (node_ != 0) return;
  for (std::uint64_t e = 0; e < params_.size(); ++e) params_[e] = initial_value(world_.scenario().seed, e);
  client_->initial_values_ready(world_.network.now_ns());
}

void NodeSim::tick() {
  client_->tick(world_.network.now_ns());
  const std::uint64_t unit = world_.layout->chunk_elements() * sizeof(float);
  // One payload may always be under way: a frame of up to a chunk, and its residual.
  const std::uint64_t allowed = std::max(world_.scenario().window_bytes, residual_offset(unit) + unit);
  if (client_->in_flight_bytes() > allowed) world_.broken("more bytes in flight than the window allows");
}

bool NodeSim::done() const {
  for (const std::uint64_t version : versions_) {
    if (version != world_.scenario().rounds + 1) return false;
  }
  return true;
}

void NodeSim::send(ConnectionIndex connection, const DataMessage& message, std::shared_ptr<const Bytes> payload) {
  world_.network.send([this, connection, header = encoded(message), payload = std::move(payload)] {
    world_.lane(connection).receive(node_, header, payload);
  });
}

void NodeSim::reduced(ChunkIndex chunk, Round round, std::uint64_t weight, std::span<const std::byte> payload) {
  frames_[chunk.value] = std::make_shared<const Bytes>(payload.begin(), payload.end());
  client_->gradient_ready(chunk, round, weight, world_.network.now_ns());
}

void NodeSim::reducer_failed(Error error) {
  world_.broken("a reducer failed: " + error.message);
}

void NodeSim::leave() {
  if (keeps_residual_) client_->keep_residuals(world_.network.now_ns());
}

void NodeSim::send_push(ConnectionIndex connection, const Push& push) {
  const ChunkIndex chunk = push.key.chunk;
  if (push.residual != ResidualUse::kAlone) return send(connection, push, frames_[chunk.value]);
  const std::span<const std::byte> values = reducer_->residual(chunk);
  send(connection, push, std::make_shared<const Bytes>(values.begin(), values.end()));
}

void NodeSim::send_init(ConnectionIndex connection, const Init& init) {
  const auto values = std::as_bytes(part(params_, *world_.layout, init.key.chunk));
  send(connection, init, std::make_shared<Bytes>(values.begin(), values.end()));
}

void NodeSim::send_pull(ConnectionIndex connection, const Pull& pull) {
  send(connection, pull, nullptr);
}
void NodeSim::send_query(ConnectionIndex connection, const Query& query) {
  send(connection, query, nullptr);
}
void NodeSim::refused(const ErrorReply& error) {
  world_.broken("a server refused a message: " + error.message);
}

void NodeSim::receive(ConnectionIndex from, const Bytes& header, std::span<const std::byte> payload) {
  Result<DataMessage> message = decode_data(header);
  if (!message) return world_.broken("node cannot decode: " + message.error().message);
  const std::uint64_t now = world_.network.now_ns();
  if (const auto* receipt = std::get_if<Receipt>(&*message)) {
    client_->on_receipt(from, *receipt, now);
  } else if (const auto* answer = std::get_if<Answer>(&*message)) {
    client_->on_answer(from, *answer, payload, now);
  } else if (const auto* resend = std::get_if<Resend>(&*message)) {
    ++world_.resends;
    client_->on_resend(from, *resend, now);
  } else if (const auto* error = std::get_if<ErrorReply>(&*message)) {
    client_->on_error(from, *error);
  } else {
    world_.broken("node got a message that only nodes send");
  }
}

void NodeSim::answered(const Answer& answer, bool whole, std::span<const std::byte> payload) {
  const ChunkIndex chunk = answer.key.chunk;
  if (frames_[chunk.value]) {
    reducer_->release(chunk);
    frames_[chunk.value].reset();
  }
  reducer_->deliver(chunk, answer.version, whole, payload);
}

void NodeSim::residual_restored(ChunkIndex, std::span<const std::byte>) {
  world_.broken("a node got a residual in a fresh job");
}

void NodeSim::delivered(ChunkIndex chunk, Version version) {
  const std::string where = "node " + std::to_string(node_) + " chunk " + std::to_string(chunk.value) + " version " +
                            std::to_string(version.value);
  if (version.value != versions_[chunk.value]) {  // versions_ is one ahead: 0 before the first delivery
    return world_.broken(where + ": delivered after version " + std::to_string(versions_[chunk.value]) + " - 1");
  }
  versions_[chunk.value] = version.value + 1;
  if (!same_bits(part(params_, *world_.layout, chunk),
                 part(world_.reference->visible(version.value), *world_.layout, chunk))) {
    world_.broken(where + ": parameters are not the reference's");
  }
  gather_->answered(chunk);
  const auto [first, last] = world_.layout->tensors_of(chunk);
  for (std::uint32_t local = 0; local < ranks_.size(); ++local) {
    for (std::size_t tensor = first; tensor < last; ++tensor) start_tensor_if_current(local, tensor);
  }
}

// A trainer's wait(tensor) is over when all its chunks have the version of its last round; then the next round's work
// begins.
void NodeSim::start_tensor_if_current(std::uint32_t local, std::size_t tensor) {
  std::uint64_t& round = ranks_[local].tensor_round[tensor];
  if (round == world_.scenario().rounds) return;
  const auto [first, last] = world_.layout->chunks_of(tensor);
  for (std::uint32_t c = first; c < last; ++c) {
    if (versions_[c] != round + 1) return;
  }
  ++round;
  const std::uint64_t work = world_.random.between(10'000, world_.random.chance(0.05) ? 50'000'000 : 1'000'000);
  world_.network.after(work, [this, local, tensor, now_round = round] { compute_tensor(local, tensor, now_round); });
}

void NodeSim::compute_tensor(std::uint32_t local, std::size_t tensor, std::uint64_t round) {
  const std::uint32_t rank = node_ * world_.scenario().ranks_per_node + local;
  const std::uint64_t begin = world_.layout->tensor_offset(tensor);
  // Padding up to the next tensor belongs to nobody; the reference trains it too, which makes the comparison simpler.
  const std::uint64_t end = tensor + 1 < world_.layout->tensors().size() ? world_.layout->tensor_offset(tensor + 1)
                                                                         : world_.layout->flat_elements();
  for (std::uint64_t e = begin; e < end; ++e) {
    ranks_[local].gradient[e] = gradient_value(world_.scenario().seed, rank, round, e, params_[e]);
  }
  const std::uint64_t weight = sample_weight(world_.scenario().seed, rank, round);
  complete_.clear();
  if (const Status taken = gather_->on_tensor(local, tensor, Round(round), weight, complete_); !taken) {
    return world_.broken("gather refused a tensor: " + taken.error().message);
  }
  for (const NodeGather::Complete& chunk : complete_) {
    reducer_->reduce(chunk.chunk, chunk.round, chunk.weight, client_->wants_residual(chunk.chunk));
  }
}

// ---- World ----

void World::snapshot_sometimes() {
  for (auto& lane : lanes) lane->core().snapshot_at(Round(lane->core().max_version().value + random.below(6)));
}

void World::check_snapshots(bool all) {
  std::erase_if(kept, [&](const Kept& k) {
    if (!all && k.read_at_ns > network.now_ns()) return false;
    ++snapshots_checked;
    if (!same_bits(k.params, part(reference->master(k.snapshot.version.value), *layout, k.snapshot.chunk)) ||
        k.snapshot.step != reference->step(k.snapshot.version.value) ||
        k.snapshot.round.value != k.snapshot.version.value) {
      broken("snapshot of chunk " + std::to_string(k.snapshot.chunk.value) + " is not the reference's round " +
             std::to_string(k.snapshot.round.value));
    }
    for (const HeldResidual& held : k.snapshot.residuals) {
      const auto expected = part(reference->residual(k.snapshot.version.value, held.node), *layout, k.snapshot.chunk);
      if (!std::ranges::equal(held.values, std::as_bytes(expected))) {
        broken("the residual of node " + std::to_string(held.node) + " in the snapshot of chunk " +
               std::to_string(k.snapshot.chunk.value) + " is not the reference's");
      }
    }
    const std::size_t expected = make_encoding(push)->keeps_residual() ? nodes.size() : 0;
    if (k.snapshot.residuals.size() != expected) broken("a snapshot has not every node's residual");
    if (make_encoding(pull)->is_delta() &&
        !same_bits(k.snapshot.estimate.floats(),
                   part(reference->visible(k.snapshot.version.value), *layout, k.snapshot.chunk))) {
      broken("the estimate in a snapshot is not what the nodes see");
    }
    return true;
  });
}

void World::check_final_state() {
  for (auto& lane : lanes) {
    if (lane->core().keeping()) broken("a shard waits for residuals that all nodes have sent");
  }
  check_snapshots(true);
}

}  // namespace

Outcome run(std::uint64_t seed, Mutation mutation) {
  Outcome outcome;
  outcome.scenario = scenario_of(seed);
  World world(outcome.scenario, mutation);
  for (auto& node : world.nodes) node->start();
  std::function<void()> tick = [&] {
    for (auto& node : world.nodes) node->tick();
    world.network.after(kTickNs, tick);
  };
  tick();
  std::function<void()> snapshots = [&] {
    world.snapshot_sometimes();
    world.check_snapshots(false);
    world.network.after(5'000'000, snapshots);
  };
  snapshots();
  const auto all_done = [&] {
    for (const auto& node : world.nodes) {
      if (!node->done()) return false;
    }
    return true;
  };
  while (world.failure.empty() && !all_done()) {
    if (!world.network.step()) world.broken("nothing is left to happen, but the nodes are not done");
    if (world.network.now_ns() > kMaxVirtualNs) world.broken("no end within an hour of virtual time");
    ++outcome.events;
  }
  // Everybody leaves while the shards stop; either may be first.
  const auto all_left = [&] { return std::ranges::all_of(world.nodes, [](const auto& node) { return node->left(); }); };
  const auto stop_shards = [&] {
    for (auto& lane : world.lanes) {
      if (!lane->core().stop(true, Round(outcome.scenario.rounds))) {
        world.broken("a shard is not at the last round when it stops");
      }
    }
  };
  const bool shards_first = world.random.chance(0.5);
  if (world.failure.empty() && shards_first) stop_shards();
  for (auto& node : world.nodes) node->leave();
  while (world.failure.empty() && !all_left()) {
    if (!world.network.step()) world.broken("nothing is left to happen, but the nodes have not left");
    if (world.network.now_ns() > kMaxVirtualNs) world.broken("nodes do not leave within an hour of virtual time");
    ++outcome.events;
  }
  if (world.failure.empty() && !shards_first) stop_shards();
  if (world.failure.empty()) world.check_final_state();
  world.kept.clear();
  outcome.ok = world.failure.empty();
  outcome.failure = world.failure;
  outcome.virtual_ns = world.network.now_ns();
  outcome.messages = world.network.stats().sent;
  outcome.resends = world.resends;
  outcome.snapshots = world.snapshots_checked;
  return outcome;
}

}  // namespace tributary::sim
