#include "server/shard_core.h"

#include <algorithm>
#include <cstring>

#include "common/assert.h"
#include "common/fused_step.h"
#include "common/gate_rules.h"
#include "common/schedule.h"

namespace tributary {
ShardCore::ShardCore(ShardJob job, BufferPool& pool, ShardOutput& output)
    : job_(std::move(job)),
      pool_(pool),
      output_(output),
      push_(job_.plan().push),
      pull_(job_.plan().pull),
      local_(job_.view->layout->chunks(), kNotOurs) {
  TRIB_ASSERT(!job_.recovers || !job_.plan().has_clocks());
  TRIB_ASSERT(!job_.plan().has_gate() || (!job_.plan().has_clocks() && !push_->keeps_residual()));
  const std::vector<ChunkIndex> owned = job_.view->layout->chunks_owned_by(job_.shard, job_.lane);
  chunks_.resize(owned.size());
  for (std::size_t i = 0; i < owned.size(); ++i) {
    Chunk& chunk = chunks_[i];
    chunk.index = owned[i];
    chunk.elements = job_.view->layout->chunk(owned[i]).elements;
    if (job_.plan().has_gate()) chunk.gate = first_gate_state(job_.plan().config.gate);
    if (job_.plan().has_clocks()) {
      chunk.slowest = job_.view->start.value;
      chunk.clocks.resize(job_.view->nodes);
      for (NodeClock& clock : chunk.clocks) clock.applied = clock.asked = job_.view->start.value;
    }
    local_[owned[i].value] = static_cast<std::uint32_t>(i);
  }
  size_for_nodes();
}

std::size_t ShardCore::steady_blocks(std::size_t chunks, int slots, EncodingSpec pull, bool recovers,
                                     std::uint32_t clocks, bool gate) {
  const std::size_t encoded = pull == EncodingId::kFp32 ? 0 : 1;
  const std::size_t estimate = pull == EncodingId::kInt8Delta ? 1 : 0;
  const std::size_t previous = recovers ? 1 : 0;
  return chunks * (1 + static_cast<std::size_t>(slots) + encoded + estimate + previous + clocks + (gate ? 1 : 0));
}

std::size_t ShardCore::pool_blocks(std::size_t chunks, int slots, EncodingSpec pull, EncodingSpec push,
                                   std::uint32_t nodes, bool recovers, bool clocks, bool gate) {
  // One copy for what runs, one for what a snapshot still holds, and of what answers carry one more that is being sent
  // (with `recovers` that one is kept anyway).
  const std::size_t residuals = make_encoding(push)->keeps_residual() ? chunks * nodes : 0;
  return steady_blocks(chunks, slots, pull, recovers, clocks ? nodes : 0, gate) +
         steady_blocks(chunks, slots, pull, recovers) + chunks + residuals;
}

ShardCore::Chunk* ShardCore::find(PeerId from, const ChunkKey& key, Round round) {
  if (key.view != job_.view->view) {
    reject(from, key, round, ErrorCode::kStaleView,
           "message for view " + std::to_string(key.view.value) + ", but job " + std::to_string(job_.view->job.value) +
               " is at view " + std::to_string(job_.view->view.value) + "; attach again");
    return nullptr;
  }
  if (key.node.value >= job_.view->nodes) {
    reject(from, key, round, ErrorCode::kTopology,
           "node rank " + std::to_string(key.node.value) + ", but the view has " + std::to_string(job_.view->nodes) +
               " nodes");
    return nullptr;
  }
  if (key.chunk.value >= local_.size() || local_[key.chunk.value] == kNotOurs) {
    reject(from, key, round, ErrorCode::kUnknownChunk,
           "chunk " + std::to_string(key.chunk.value) + " does not belong to server " +
               std::to_string(job_.shard.value) + " lane " + std::to_string(job_.lane.value) + " (the job has " +
               std::to_string(local_.size()) + " chunks); attach again to get the current layout");
    return nullptr;
  }
  return &chunks_[local_[key.chunk.value]];
}

void ShardCore::reject(PeerId from, const ChunkKey& key, Round round, ErrorCode code, std::string message) {
  ++stats_.rejected;
  output_.error(from, ErrorReply{key, round, code, std::move(message)});
}

// Gives a new chunk its buffers: all of them, or none (false).
bool ShardCore::allocate(Chunk& chunk) {
  const std::size_t bytes = chunk.elements * sizeof(float);
  BufferRef params = pool_.acquire(bytes);
  bool complete = static_cast<bool>(params);
  BufferRef slots[kernels::kMaxSlots];
  for (int s = 0; s < job_.plan().optimizer->slots(); ++s) complete = (slots[s] = pool_.acquire(bytes)) && complete;
  BufferRef encoded;
  if (pull_->id() != EncodingId::kFp32) complete = (encoded = pool_.acquire(pull_->bytes(chunk.elements))) && complete;
  BufferRef estimate;
  if (pull_->is_delta()) complete = (estimate = pool_.acquire(bytes)) && complete;
  if (!complete) {
    ++stats_.starved;
    return false;
  }
  chunk.params = std::move(params);
  std::ranges::move(slots, chunk.slots);
  chunk.encoded = std::move(encoded);
  chunk.estimate = std::move(estimate);
  return true;
}

void ShardCore::initialise(Chunk& chunk) {
  chunk.initialised = true;
  ++initialised_;
  // A delta encoding has nothing to say yet: its first answers are the estimate itself.
  if (chunk.encoded && !pull_->is_delta()) {
    pull_->encode_update(chunk.params.floats().data(), chunk.elements, 0, chunk.elements, nullptr,
                         chunk.encoded.data());
  }
  answer_pulls(chunk);
}

void ShardCore::on_push(PeerId from, const Push& push, Payload frame) {
  Chunk* chunk = find(from, push.key, push.round);
  if (!chunk) return;
  if (push.residual != ResidualUse::kNone && !push_->keeps_residual()) {
    return reject(from, push.key, push.round, ErrorCode::kConfigMismatch,
                  "push with a residual, but the job's push encoding " + push_->name() + " keeps none");
  }
  const std::size_t frame_bytes = push_->bytes(chunk->elements);
  const std::size_t residual_bytes = chunk->elements * sizeof(float);
  const std::size_t expected = push.residual == ResidualUse::kNone     ? frame_bytes
                               : push.residual == ResidualUse::kBehind ? residual_offset(frame_bytes) + residual_bytes
                                                                       : residual_bytes;
  if (push.encoding != push_->id()) {
    return reject(from, push.key, push.round, ErrorCode::kConfigMismatch,
                  "push encoded as " + std::string(encoding_name(push.encoding)) + ", but the job's push encoding is " +
                      push_->name());
  }
  if (frame.bytes().size() != expected) {
    return reject(from, push.key, push.round, ErrorCode::kWrongLength,
                  "push of chunk " + std::to_string(push.key.chunk.value) + " has " +
                      std::to_string(frame.bytes().size()) + " bytes, but " + std::to_string(chunk->elements) + " " +
                      push_->name() + " values " + (push.residual == ResidualUse::kNone ? "" : "and their residual ") +
                      "take " + std::to_string(expected));
  }
  if (push.weight > kMaxWeight) {
    return reject(from, push.key, push.round, ErrorCode::kInvalidArgument,
                  "weight " + std::to_string(push.weight) + " exceeds the bound of " + std::to_string(kMaxWeight));
  }
  if (job_.plan().has_clocks()) return on_clock_push(from, *chunk, push, std::move(frame));
  if (push.residual == ResidualUse::kAlone) return take_residual(*chunk, from, push, std::move(frame));
  if (snapshot_round_ == push.round && push_->keeps_residual() && push.residual == ResidualUse::kNone) {
    return reject(from, push.key, push.round, ErrorCode::kMalformed,
                  "push of chunk " + std::to_string(push.key.chunk.value) + " for round " +
                      std::to_string(push.round.value) +
                      " lacks the residual that the last answer asked for; worker and server must be of the same "
                      "release");
  }
  if (!chunk->initialised || push.round.value > chunk->version.value + 1) {
    return reject(from, push.key, push.round, ErrorCode::kWrongRound,
                  "push for round " + std::to_string(push.round.value) + " of chunk " +
                      std::to_string(push.key.chunk.value) + ", which is " +
                      (chunk->initialised ? "at version " + std::to_string(chunk->version.value) : "not initialised") +
                      "; pull first");
  }
  if (push.round.value <= chunk->version.value) {
    ++stats_.duplicates;
    if (push.redo) return output_.receipt(from, Receipt{push.key, push.round, false, true});
    // Older than the last round: its sender has long had that answer; a late copy from the network.
    if (push.round.value == chunk->version.value) send_answer(from, *chunk, push.key.node, Reply::kRound);
    return;
  }
  if (push.redo && job_.plan().has_gate() && !push.gate.known()) {
    return reject(from, push.key, push.round, ErrorCode::kMalformed,
                  "push of chunk " + std::to_string(push.key.chunk.value) + " for round " +
                      std::to_string(push.round.value) +
                      " once more, without what was decided about it; worker and server must be of the same release");
  }
  Contribution& mine = chunk->contributions[push.key.node.value];
  mine.from = from;  // a resend after a reconnection comes from another connection: answer to the newest
  if (mine.present) {
    ++stats_.duplicates;
    return settle(from, *chunk, push.key, push.round);
  }
  // Not before: of a second copy nothing is looked at. Its author may be writing the next frame there.
  if (!push_->valid(frame.bytes().data(), chunk->elements)) {
    return reject(from, push.key, push.round, ErrorCode::kMalformed,
                  "push of chunk " + std::to_string(push.key.chunk.value) + ": its " + push_->name() +
                      " frame contradicts itself; the sender has a bug or the frame was damaged");
  }
  mine.present = true;
  mine.redo = push.redo;
  mine.gate = push.gate;
  mine.weight = push.weight;
  mine.frame = std::move(frame);
  ++stats_.pushes;
  stats_.push_bytes += expected;
  ++stats_.held_frames;
  stats_.held_bytes += expected;
  stats_.max_held_bytes = std::max(stats_.max_held_bytes, stats_.held_bytes);
  ++chunk->arrived;
  settle(from, *chunk, push.key, push.round);
}

// After a push that is held. The sender of the last one missing gets a receipt like all others, although its answer
// follows at once: an answer is large and queues behind the other nodes', so that acknowledgements by answers alone
// would slow down just the node that is last, and it would stay last (docs/data-path.md).
void ShardCore::settle(PeerId from, Chunk& chunk, const ChunkKey& key, Round round) {
  const bool alone = job_.view->nodes == 1;
  if (!alone) output_.receipt(from, Receipt{key, round});
  const bool done = chunk.arrived == job_.view->nodes && complete(chunk);
  if (alone && !done) output_.receipt(from, Receipt{key, round});
}

// False, and the round is as it was, if the pool has no buffer for the new state, or if the gate has not opened.
bool ShardCore::complete(Chunk& chunk) {
  if (job_.plan().has_gate()) return pass_gate(chunk);
  std::uint64_t weight = 0;
  for (std::uint32_t node = 0; node < job_.view->nodes; ++node) {
    weight += chunk.contributions[node].weight;
    frames_[node] = frame_of(chunk.contributions[node]);
  }
  const Step step{frames_, weight, chunk.step + 1};
  // A round without samples changes nothing but the version.
  if (weight != 0 ? !apply(chunk, step) : !answer_no_change(chunk)) return false;
  finish_round(chunk);
  return true;
}

PushFrame ShardCore::frame_of(const Contribution& contribution) {
  return {contribution.frame.bytes().data(), contribution.weight};
}

// The open round has been applied, or changes nothing.
void ShardCore::finish_round(Chunk& chunk) {
  chunk.version = chunk.version.next();
  max_version_ = std::max(max_version_, chunk.version);
  chunk.arrived = 0;
  const bool captures = snapshot_round_ && !chunk.captured && chunk.version.value == snapshot_round_->value;
  for (std::uint32_t node = 0; node < job_.view->nodes; ++node) {
    Contribution& contribution = chunk.contributions[node];
    if (!chunk.residuals.empty()) chunk.residuals[node] = {};  // of an older version
    stats_.held_bytes -= contribution.frame.bytes().size();
    stats_.held_frames -= contribution.frame.bytes().empty() ? 0 : 1;
    if (captures && push_->keeps_residual()) {
      const std::span<const std::byte> bytes = contribution.frame.bytes();
      hold_residual(chunk, node, std::move(contribution.frame), bytes.last(chunk.elements * sizeof(float)));
    }
    contribution.frame.reset();
    contribution.present = false;
    if (contribution.redo) {
      const ChunkKey key{job_.view->job, job_.view->view, NodeRank(node), chunk.index};
      output_.receipt(contribution.from, Receipt{key, Round(chunk.version.value), false, true});
    } else {
      send_answer(contribution.from, chunk, NodeRank(node), Reply::kRound);
    }
  }
  answer_pulls(chunk);
  if (captures) capture(chunk, *snapshot_round_);
}

// The buffer itself if nobody else reads it, else a fresh one of its size; empty (and counted) if the pool has none.
BufferRef ShardCore::writable(const BufferRef& buffer) {
  if (buffer.unique()) return buffer;
  BufferRef fresh = pool_.acquire(buffer.size());
  if (!fresh) ++stats_.starved;
  return fresh;
}

// What answers carry is the change of this round, where it is not the parameters: none.
bool ShardCore::answer_no_change(Chunk& chunk) {
  if (job_.recovers) keep_previous(chunk);
  if (!pull_->is_delta()) return true;
  BufferRef next = writable(chunk.encoded);
  if (!next) return false;
  chunk.encoded = std::move(next);
  std::ranges::fill(chunk.encoded.bytes(), std::byte{0});  // scales of 0
  return true;
}

// Sum and optimizer step. Buffers that nobody else reads are written in place; for the others (sent answers and
// snapshots never change under their readers) the step writes into fresh ones. All of those are there before anything
// changes: false, or an exception for want of memory, leaves the chunk as it was.
bool ShardCore::apply(Chunk& chunk, const Step& step) {
  const kernels::Optimizer& optimizer = *job_.plan().optimizer;
  BufferRef* current[kernels::kMaxSlots + 3] = {&chunk.params};
  std::size_t count = 1;
  for (int s = 0; s < optimizer.slots(); ++s) current[count++] = &chunk.slots[s];
  const std::size_t encoded = count;
  if (chunk.encoded) current[count++] = &chunk.encoded;
  const std::size_t estimate = count;
  if (chunk.estimate) current[count++] = &chunk.estimate;
  BufferRef next[kernels::kMaxSlots + 3];
  std::uint64_t shared = 0;
  for (std::size_t i = 0; i < count; ++i) {
    // What nodes hold stays as it was, and the step writes where it was before that.
    const bool kept = job_.recovers && current[i] == &(chunk.estimate ? chunk.estimate : chunk.params);
    if (!kept && !current[i]->unique()) ++shared;
    if (!(next[i] = kept ? before_previous(chunk) : writable(*current[i]))) return false;
  }
  FusedArgs args;
  args.elements = chunk.elements;
  args.frames = step.frames;
  args.push = step.encoding ? step.encoding : push_.get();
  args.scale = step.scale.value_or(static_cast<float>(1.0 / static_cast<double>(step.weight)));
  args.param_in = chunk.params.floats().data();
  args.param_out = next[0].floats().data();
  for (int s = 0; s < optimizer.slots(); ++s) {
    args.state_in[s] = chunk.slots[s].floats().data();
    args.state_out[s] = next[1 + s].floats().data();
  }
  if (chunk.encoded) {
    args.pull = pull_.get();
    args.answer = next[encoded].data();
  }
  if (chunk.estimate) {
    args.estimate_in = chunk.estimate.floats().data();
    args.estimate_out = next[estimate].floats().data();
  }
  ++chunk.step;
  const double lr = scheduled_lr(job_.plan().schedule, job_.plan().config.optimizer.lr, step.position);
  fused_step(optimizer, optimizer.scalars(chunk.step, lr), args);
  if (job_.recovers) keep_previous(chunk);
  for (std::size_t i = 0; i < count; ++i) *current[i] = std::move(next[i]);
  ++stats_.steps;
  stats_.shared_buffers += shared;
  if (shared != 0) ++stats_.out_of_place_steps;
  return true;
}

void ShardCore::send_answer(PeerId to, const Chunk& chunk, NodeRank node, Reply reply) {
  const ChunkKey key{job_.view->job, job_.view->view, node, chunk.index};
  Answer header{key, chunk.version, pull_->id()};
  const BufferRef* payload = chunk.encoded ? &chunk.encoded : &chunk.params;
  if (reply == Reply::kWhole && chunk.estimate) {
    header.encoding = EncodingId::kFp32;
    payload = &chunk.estimate;
  }
  header.slowest = Round(chunk.version.value);
  header.gate = chunk.gate;
  if (snapshot_round_ && push_->keeps_residual()) header.snapshot_round = *snapshot_round_;
  if (reply == Reply::kWhole && !chunk.residuals.empty() && chunk.residuals[node.value].restored) {
    header.residual_sent = true;
    output_.residual(to, Residual{key, chunk.version}, chunk.residuals[node.value].restored);
  }
  ++stats_.answers;
  stats_.answer_bytes += payload->size();
  output_.answer(to, header, *payload);
}

void ShardCore::on_init(PeerId from, const Init& init, std::span<const std::byte> values) {
  Chunk* chunk = find(from, init.key, Round(0));
  if (!chunk) return;
  if (init.key.node.value != 0) {
    return reject(from, init.key, Round(0), ErrorCode::kTopology,
                  "initial values from node " + std::to_string(init.key.node.value) + "; only node 0 sends them");
  }
  if (job_.view->resumes) {
    return reject(from, init.key, Round(0), ErrorCode::kWrongRound,
                  "initial values of chunk " + std::to_string(init.key.chunk.value) +
                      ", but the view resumes at round " + std::to_string(job_.view->start.value) +
                      " and has the values of that round; pull them");
  }
  const std::size_t bytes = chunk->elements * sizeof(float);
  if (values.size() != bytes) {
    return reject(from, init.key, Round(0), ErrorCode::kWrongLength,
                  "initial values of chunk " + std::to_string(init.key.chunk.value) + " have " +
                      std::to_string(values.size()) + " bytes instead of " + std::to_string(bytes));
  }
  if (chunk->initialised) {
    ++stats_.duplicates;
    return;
  }
  if (!allocate(*chunk)) return;  // its sender hears nothing and sends it again
  std::memcpy(chunk->params.data(), values.data(), bytes);
  if (chunk->estimate) std::memcpy(chunk->estimate.data(), values.data(), bytes);
  for (int s = 0; s < job_.plan().optimizer->slots(); ++s) {
    std::ranges::fill(chunk->slots[s].floats(), job_.plan().optimizer->initial_state(s));
  }
  initialise(*chunk);
}

void ShardCore::on_pull(PeerId from, const Pull& pull) {
  Chunk* chunk = find(from, pull.key, Round(0));
  if (!chunk) return;
  if (chunk->initialised && job_.plan().has_clocks()) {
    answer_clock_pull(from, *chunk, pull.key.node);
  } else if (!chunk->initialised || pull.version > chunk->version) {
    chunk->waiting_pulls[pull.key.node.value] = {from, pull.version};
  } else if (pull.version < chunk->version && chunk->previous) {
    answer_previous(from, *chunk, pull.key.node);
  } else {
    // At a later version only if the answer was lost and others went on: what it is now is as good for who asks.
    send_answer(from, *chunk, pull.key.node, Reply::kWhole);
  }
}

void ShardCore::on_query(PeerId from, const Query& query) {
  Chunk* chunk = find(from, query.key, query.round);
  if (!chunk) return;
  if (job_.plan().has_clocks()) return on_clock_query(from, *chunk, query);
  if (chunk->initialised && query.round.value <= chunk->version.value) {
    if (query.redo) return output_.receipt(from, Receipt{query.key, query.round, false, true});
    return send_answer(from, *chunk, query.key.node, Reply::kRound);
  }
  Contribution& mine = chunk->contributions[query.key.node.value];
  if (mine.present && query.round.value == chunk->version.value + 1) {
    mine.from = from;
    settle(from, *chunk, query.key, query.round);
  } else {
    output_.resend(from, Resend{query.key, query.round});
  }
}

void ShardCore::capture(Chunk& chunk, Round round) {
  chunk.captured = true;
  ChunkSnapshot snapshot;
  snapshot.job = job_.view->job;
  snapshot.view = job_.view->view;
  snapshot.round = round;
  snapshot.chunk = chunk.index;
  snapshot.version = chunk.version;
  snapshot.step = chunk.step;
  snapshot.params = chunk.params;
  for (int s = 0; s < job_.plan().optimizer->slots(); ++s) snapshot.slots[s] = chunk.slots[s];
  snapshot.estimate = chunk.estimate;
  snapshot.nodes = job_.view->nodes;
  for (HeldResidual& held : chunk.residuals) {
    if (!held.owner.empty()) snapshot.residuals.push_back(std::exchange(held, {}));
  }
  for (const NodeClock& clock : chunk.clocks) snapshot.clocks.push_back(clock.applied);
  snapshot.gate = chunk.gate;
  output_.captured(std::move(snapshot));
  if (uncaptured_ > 0 && --uncaptured_ == 0) snapshot_round_.reset();
}

bool ShardCore::snapshot_at(Round round) {
  if (!initialised() || max_version_.value > round.value) return false;
  // A nearer one takes the place of one that no chunk has reached.
  if (snapshot_round_ && (round >= *snapshot_round_ || uncaptured_ < chunks_.size())) return false;
  // The answers before that round's pushes must name it.
  if (push_->keeps_residual() && max_version_.value + 2 > round.value) return false;
  if (chunks_.empty()) return true;
  // Until it is written, the snapshot may keep a second copy of the whole state.
  if (pool_.available() < steady_blocks(chunks_.size(), job_.plan().optimizer->slots(), EncodingId::kFp32) +
                              (pull_->is_delta() ? chunks_.size() : 0)) {
    return false;
  }
  snapshot_round_ = round;
  uncaptured_ = chunks_.size();
  for (Chunk& chunk : chunks_) chunk.captured = false;
  for (Chunk& chunk : chunks_) {
    if (progress(chunk).value == round.value) capture(chunk, round);
  }
  return true;
}

bool ShardCore::stop(bool keep, Round round) {
  for (Chunk& chunk : chunks_) {
    for (Contribution& contribution : chunk.contributions) {
      contribution.frame.reset();
      contribution.present = false;
    }
    chunk.arrived = 0;
    chunk.sum = {};
    chunk.facts_of = {};
    for (NodeClock& clock : chunk.clocks) clock.withheld = false;
    std::ranges::fill(chunk.waiting_pulls, WaitingPull{});
  }
  stats_.held_frames = stats_.held_bytes = stats_.withheld = 0;
  facts_round_ = {};
  facts_there_ = 0;
  snapshot_round_.reset();
  kept_round_.reset();
  uncaptured_ = 0;
  if (!keep) return true;
  const bool consistent =
      initialised() && std::ranges::all_of(chunks_, [&](const Chunk& chunk) {
        return job_.plan().has_clocks() ? progress(chunk).value >= round.value : chunk.version.value == round.value;
      });
  if (!consistent) return false;
  if (push_->keeps_residual() && !all_residuals()) {
    kept_round_ = round;
    return true;
  }
  for (Chunk& chunk : chunks_) capture(chunk, round);
  return true;
}

Version ShardCore::min_version() const {
  if (chunks_.empty()) return max_version_;
  Version lowest = progress(chunks_.front());
  for (const Chunk& chunk : chunks_) lowest = std::min(lowest, progress(chunk));
  return lowest;
}

std::span<const float> ShardCore::params(ChunkIndex chunk) const {
  TRIB_ASSERT(chunk.value < local_.size() && local_[chunk.value] != kNotOurs);
  const Chunk& found = chunks_[local_[chunk.value]];
  TRIB_ASSERT(found.initialised);
  return found.params.floats();
}

Version ShardCore::version(ChunkIndex chunk) const {
  TRIB_ASSERT(chunk.value < local_.size() && local_[chunk.value] != kNotOurs);
  return chunks_[local_[chunk.value]].version;
}

}  // namespace tributary
