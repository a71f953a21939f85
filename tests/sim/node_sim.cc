#include <algorithm>

#include "tests/sim/reference.h"
#include "tests/sim/world.h"

namespace tributary::sim {

NodeSim::NodeSim(World& world, std::uint32_t node) : world_(world), node_(node) {
  const Scenario& scenario = world.scenario();
  ClientJob job;
  job.job = kJob;
  job.view = world.view;
  job.node = NodeRank(node);
  job.layout = world.layout;
  for (std::uint32_t c = 0; c < world.layout->chunks(); ++c) {
    const ChunkOwner owner = world.layout->owner(ChunkIndex(c));
    job.chunks.push_back(ChunkIndex(c));
    job.connections.push_back(
        ConnectionIndex(static_cast<std::uint16_t>(owner.shard.value * scenario.lanes + owner.lane.value)));
  }
  job.start = Version(world.start.value);
  job.push = world.setup.push;
  job.pull = world.setup.pull;
  job.init = node == 0 && !world.saved;
  gather_ = std::make_unique<NodeGather>(world.layout, job.chunks, scenario.ranks_per_node, world.start);
  ClientOptions options;
  options.window_cap_bytes = scenario.window_bytes;
  client_ =
      std::make_unique<ClientCore>(job, static_cast<std::uint16_t>(scenario.shards * scenario.lanes), options, *this);
  params_.resize(world.layout->flat_elements());
  frames_.resize(world.layout->chunks());
  versions_.resize(world.layout->chunks(), world.start.value);
  ranks_.resize(scenario.ranks_per_node);
  for (RankSim& rank : ranks_) {
    rank.gradient.resize(params_.size());
    rank.tensor_round.resize(world.layout->tensors().size(), world.start.value);
  }
  std::vector<const float*> gradients;
  for (const RankSim& rank : ranks_) gradients.push_back(rank.gradient.data());
  reducer_ = std::make_unique<HostReducer>(world.layout, job.chunks, gradients, params_.data(), world.setup.push,
                                           world.setup.pull, static_cast<ReduceListener&>(*this));
  keeps_residual_ = make_encoding(world.setup.push)->keeps_residual();
}

void NodeSim::start() {
  client_->start(world_.network.now_ns());
  if (node_ != 0 || world_.saved) return;
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
  const bool last = round.value == world_.scenario().rounds;
  client_->gradient_ready(chunk, round, weight, world_.network.now_ns(), last);
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
  if (answer.gate.known()) scales_[answer.version.value + 1] = answer.gate.loss_scale;
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
  world_.judge->delivered(node_, chunk, version, part(params_, *world_.layout, chunk));
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
  world_.network.after(work * world_.scenario().slowness(node_),
                       [this, local, tensor, now_round = round] { compute_tensor(local, tensor, now_round); });
}

void NodeSim::compute_tensor(std::uint32_t local, std::size_t tensor, std::uint64_t round) {
  const std::uint32_t rank = node_ * world_.scenario().ranks_per_node + local;
  const std::uint64_t begin = world_.layout->tensor_offset(tensor);
  // Padding up to the next tensor belongs to nobody; the reference trains it too, which makes the comparison simpler.
  const std::uint64_t end = tensor + 1 < world_.layout->tensors().size() ? world_.layout->tensor_offset(tensor + 1)
                                                                         : world_.layout->flat_elements();
  const float scale = world_.setup.gate ? scales_.at(round) : 1.0f;
  for (std::uint64_t e = begin; e < end; ++e) {
    ranks_[local].gradient[e] = gradient_value(world_.scenario().seed, rank, round, e, params_[e]) * scale;
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

}  // namespace tributary::sim
