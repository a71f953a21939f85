#include "common/gate_rules.h"
#include "tests/sim/world.h"

namespace tributary::sim {

LaneSim::LaneSim(World& world, std::uint16_t shard, std::uint16_t lane)
    : world_(world), connection_(static_cast<std::uint16_t>(shard * world.scenario().lanes + lane)) {
  ShardJob job;
  job.job = kJob;
  job.view = world.view;
  job.nodes = world.scenario().nodes;
  job.layout = world.layout;
  job.shard = ShardIndex(shard);
  job.lane = LaneIndex(lane);
  job.optimizer = world.setup.optimizer;
  job.lr = world.setup.lr;
  job.schedule = world.setup.schedule;
  job.push = world.setup.push;
  job.pull = world.setup.pull;
  job.clocks = world.setup.clocks;
  job.start = world.start;
  job.gate = world.setup.gate;
  if (world.mutation == Mutation::kLooseBound && job.clocks) ++job.clocks->staleness;
  const std::size_t chunks = world.layout->chunks_owned_by(job.shard, job.lane).size();
  pool_ =
      std::make_unique<BufferPool>(world.layout->chunk_elements() * sizeof(float),
                                   ShardCore::pool_blocks(chunks, job.optimizer->slots(), job.pull, job.push, job.nodes,
                                                          false, job.clocks.has_value(), job.gate.has_value()));
  core_ = std::make_unique<ShardCore>(job, *pool_, *this);
  if (!world.saved) return;
  for (const ChunkIndex chunk : world.layout->chunks_owned_by(job.shard, job.lane)) {
    const SavedChunk& saved = (*world.saved)[chunk.value];
    const std::vector<std::span<const float>> slots(saved.slots.begin(), saved.slots.end());
    const std::vector<std::uint64_t> none;
    const auto& clocks = world.mutation == Mutation::kForgetClocks ? none : saved.clocks;
    const Status restored = core_->restore(chunk, saved.version, saved.step, saved.params, slots,
                                           {.estimate = {}, .nodes = job.nodes, .residuals = {}}, clocks);
    if (!restored) world.broken("a chunk cannot be restored: " + restored.error().message);
  }
}

void LaneSim::receive(std::uint32_t node, const Bytes& header, const std::shared_ptr<const Bytes>& payload) {
  Result<DataMessage> message = decode_data(header);
  if (!message) return world_.broken("server cannot decode: " + message.error().message);
  const PeerId from(node + 1);
  if (auto* push = std::get_if<Push>(&*message)) {
    const Push sent = *push;
    world_.judge->push_arrives(*core_, sent, *payload);
    if (world_.mutation == Mutation::kApplyTwice && last_rounds_[push->key] == push->round.value) {
      push->round = push->round.next();
    }
    last_rounds_[sent.key] = sent.round.value;
    if (world_.mutation == Mutation::kForgetDuplicates && core_->stats().pushes > 0 && world_.random.chance(0.05)) {
      push->key.node = NodeRank((push->key.node.value + 1) % world_.scenario().nodes);
    }
    const std::uint64_t waiting = core_->stats().withheld;
    core_->on_push(from, *push, Payload(std::shared_ptr<const Bytes>(payload), *payload));
    world_.judge->push_handled();
    if (core_->stats().withheld > waiting) ++world_.withheld;
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
  if (stats.withheld > bound) world_.broken("more answers withheld than nodes x chunks");
}

void LaneSim::reply(PeerId to, const DataMessage& message) {
  world_.network.send(
      [this, node = to.value - 1, header = encoded(message)] { world_.nodes[node]->receive(connection_, header, {}); });
}

void LaneSim::answer(PeerId to, const Answer& header, const BufferRef& payload) {
  world_.judge->answers(header, payload.bytes());
  world_.network.send([this, node = to.value - 1, bytes = encoded(header), payload] {
    world_.nodes[node]->receive(connection_, bytes, payload.bytes());
  });
}

void LaneSim::residual(PeerId, const Residual&, const BufferRef&) {
  world_.broken("a server sent a residual in a fresh job");
}

void LaneSim::facts(const RoundFacts& facts) {
  if (world_.mutation == Mutation::kBeforeTheGate) {
    std::vector<GateFacts> own;
    for (const ChunkFacts& chunk : facts.chunks) own.push_back(chunk.facts);
    const RoundDecision decision{facts.job, facts.view, facts.round,
                                 decide_gate(*world_.setup.gate, facts.before, own)};
    return world_.network.after(0, [this, decision] { core_->decide(decision); });
  }
  undecided_ = facts;
  ask_gate();
}

void LaneSim::ask_gate() {
  if (!undecided_) return;
  world_.network.send([this, facts = *undecided_] { world_.gate_hears(*this, facts); });
}

void LaneSim::decide(const RoundDecision& decision) {
  if (undecided_ && undecided_->round == decision.round) undecided_.reset();
  core_->decide(decision);
}

void LaneSim::captured(ChunkSnapshot snapshot) {
  const std::uint64_t read_at = world_.network.now_ns() + world_.random.between(1, 60) * 1'000'000;
  const std::span<const float> params = snapshot.params.floats();
  world_.judge->captured(snapshot);
  world_.keep_for_restart(snapshot);
  if (world_.mutation == Mutation::kWriteInPlace) snapshot.params.reset();
  world_.kept.push_back({std::move(snapshot), params, read_at});
}

}  // namespace tributary::sim
