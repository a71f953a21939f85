#include "server/shard/shard_chunks.h"

#include "common/base/assert.h"

namespace tributary {

ShardChunks::ShardChunks(ShardJob job, BufferPool& pool, ShardOutput& output, ShardStats& stats)
    : job_(std::move(job)), pool_(pool), output_(output), stats_(stats), local_(job_.view->layout->chunks(), kNotOurs) {
  const std::vector<ChunkIndex> owned = job_.view->layout->chunks_owned_by(job_.shard, job_.lane);
  chunks_.resize(owned.size());
  for (std::size_t i = 0; i < owned.size(); ++i) {
    chunks_[i].index = owned[i];
    chunks_[i].position = i;
    chunks_[i].elements = job_.view->layout->chunk(owned[i]).elements;
    chunks_[i].groups = job_.view->layout->groups_of(owned[i]).size();
    local_[owned[i].value] = static_cast<std::uint32_t>(i);
  }
  begin_view();
}

void ShardChunks::begin_view() {
  for (ShardChunk& chunk : chunks_) {
    chunk.state.nodes = job_.view->nodes;
    chunk.nodes = job_.view->nodes_with(chunk.index);
    chunk.copies = job_.view->copies(chunk.index);
  }
}

void ShardChunks::reopen(ShardJob job) {
  job_ = std::move(job);
  begin_view();
}

ShardChunk* ShardChunks::find(ChunkIndex chunk) {
  if (chunk.value >= local_.size() || local_[chunk.value] == kNotOurs) return nullptr;
  return &chunks_[local_[chunk.value]];
}

const ShardChunk& ShardChunks::at(ChunkIndex chunk) const {
  TRIB_ASSERT(chunk.value < local_.size() && local_[chunk.value] != kNotOurs);
  return chunks_[local_[chunk.value]];
}

ShardChunk* ShardChunks::find(PeerId from, const ChunkKey& key, Round round) {
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
  ShardChunk* chunk = find(key.chunk);
  if (!chunk) {
    reject(from, key, round, ErrorCode::kUnknownChunk,
           "chunk " + std::to_string(key.chunk.value) + " does not belong to server " +
               std::to_string(job_.shard.value) + " lane " + std::to_string(job_.lane.value) + " (the job has " +
               std::to_string(local_.size()) + " chunks); attach again to get the current layout");
  } else if (!chunk->held_by(key.node)) {
    reject(from, key, round, ErrorCode::kTopology,
           "chunk " + std::to_string(key.chunk.value) + " is not held by node " + std::to_string(key.node.value) +
               ": none of its ranks has tensor '" + job_.view->tensor_in(key.chunk).name + "'");
    return nullptr;
  }
  return chunk;
}

void ShardChunks::reject(PeerId from, const ChunkKey& key, Round round, ErrorCode code, std::string message) {
  ++stats_.rejected;
  output_.send(from, ErrorReply{key, round, code, std::move(message)}, {});
}

bool ShardChunks::sound(PeerId from, const ShardChunk& chunk, const Push& push, const Payload& frame) {
  const Encoding& encoding = *job_.plan().push;
  if (encoding.valid(frame.bytes().data(), chunk.elements)) return true;
  reject(from, push.key, push.round, ErrorCode::kMalformed,
         "push of chunk " + std::to_string(push.key.chunk.value) + ": its " + encoding.name() +
             " frame contradicts itself; the sender has a bug or the frame was damaged");
  return false;
}

void ShardChunks::answer(PeerId to, const Answer& header, const BufferRef& payload) {
  ++stats_.answers;
  stats_.answer_bytes += payload.size();
  output_.send(to, header, payload);
}

void ShardChunks::hold(std::size_t bytes) {
  ++stats_.held_frames;
  stats_.held_bytes += bytes;
  stats_.max_held_bytes = std::max(stats_.max_held_bytes, stats_.held_bytes);
}

void ShardChunks::let_go(std::size_t bytes) {
  if (bytes != 0) --stats_.held_frames;
  stats_.held_bytes -= bytes;
}

void ShardChunks::shorten(std::size_t bytes) {
  stats_.held_bytes -= bytes;
}

BufferRef ShardChunks::acquire(std::size_t bytes) {
  BufferRef fresh = pool_.acquire(bytes);
  if (!fresh) ++stats_.starved;
  return fresh;
}

BufferRef ShardChunks::writable(const BufferRef& buffer) {
  if (buffer.unique()) return buffer;
  return acquire(buffer.size());
}

Error ShardChunks::no_buffer(const ShardChunk& chunk) const {
  return {ErrorCode::kLimit, "no buffer left for chunk " + std::to_string(chunk.index.value) +
                                 "; buffers of the job's last view are still in use, attach again in a moment"};
}

bool ShardChunks::allocate(ShardChunk& chunk) {
  const std::size_t bytes = chunk.array_bytes();
  ChunkState fresh;
  BufferRef encoded;
  bool complete = true;
  const auto get = [&](BufferRef& buffer, std::size_t size) { complete = (buffer = pool_.acquire(size)) && complete; };
  get(fresh.params, bytes);
  for (int s = 0; s < job_.plan().optimizer->slots(); ++s) get(fresh.slots[s], bytes);
  if (pull().id() != EncodingId::kFp32) get(encoded, pull().bytes(chunk.elements));
  if (pull().is_delta()) get(fresh.estimate, bytes);
  if (!complete) {
    ++stats_.starved;
    return false;
  }
  for (std::size_t i = 0; BufferRef * array : chunk.state.arrays()) *array = std::move(*fresh.arrays()[i++]);
  chunk.encoded = std::move(encoded);
  return true;
}

void ShardChunks::initialise(ShardChunk& chunk) {
  chunk.initialised = true;
  ++initialised_;
  // A delta encoding has no delta yet: its first answers are the estimate itself.
  if (chunk.encoded && !pull().is_delta()) {
    pull().encode_update(chunk.state.params.floats().data(), chunk.elements, 0, chunk.elements, nullptr,
                         chunk.encoded.data());
  }
}

bool ShardChunks::step(ShardChunk& chunk, const ShardStep& step) {
  constexpr std::size_t kEstimate = ChunkState::kArrays - 1, kEncoded = ChunkState::kArrays;
  const kernels::Optimizer& optimizer = *job_.plan().optimizer;
  ChunkState& state = chunk.state;
  BufferRef* current[kEncoded + 1];
  std::ranges::copy(state.arrays(), current);
  current[kEncoded] = &chunk.encoded;
  BufferRef next[kEncoded + 1];
  std::uint64_t shared = 0;
  for (std::size_t i = 0; i <= kEncoded; ++i) {
    if (!*current[i]) continue;
    const bool kept = job_.recovers && current[i] == &state.held_by_nodes();
    if (!kept && !current[i]->unique()) ++shared;
    // Readers of the values before the last round had their answer two rounds ago.
    const bool spare = kept && chunk.previous && chunk.previous.unique();
    next[i] = spare ? chunk.previous : kept ? acquire(chunk.array_bytes()) : writable(*current[i]);
    if (!next[i]) return false;
  }
  FusedArgs args;
  args.elements = chunk.elements;
  args.frames = step.frames;
  args.push = step.encoding ? step.encoding : &push();
  args.scale = step.scale.value_or(static_cast<float>(1.0 / static_cast<double>(step.weight)));
  args.param_in = state.params.floats().data();
  args.param_out = next[0].floats().data();
  for (int s = 0; s < optimizer.slots(); ++s) {
    args.state_in[s] = state.slots[s].floats().data();
    args.state_out[s] = next[1 + s].floats().data();
  }
  if (chunk.encoded) {
    args.pull = &pull();
    args.answer = next[kEncoded].data();
  }
  if (state.estimate) {
    args.estimate_in = state.estimate.floats().data();
    args.estimate_out = next[kEstimate].floats().data();
  }
  const auto runs =
      runs_.of(job_.plan(), *job_.view->layout, chunk.index, state.step + 1, step.position, step.settings);
  fused_step(optimizer, runs, args);  // from here on nothing throws
  ++state.step;
  keep_previous(chunk, state.held_by_nodes());
  for (std::size_t i = 0; i <= kEncoded; ++i) {
    if (next[i]) *current[i] = std::move(next[i]);
  }
  ++stats_.steps;
  stats_.shared_buffers += shared;
  if (shared != 0) ++stats_.out_of_place_steps;
  return true;
}

bool ShardChunks::leave(ShardChunk& chunk) {
  if (pull().is_delta()) {
    BufferRef next = writable(chunk.encoded);
    if (!next) return false;
    chunk.encoded = std::move(next);
    std::ranges::fill(chunk.encoded.bytes(), std::byte{0});  // scales of 0
  }
  keep_previous(chunk, chunk.state.held_by_nodes());
  return true;
}

void ShardChunks::keep_previous(ShardChunk& chunk, BufferRef before) {
  if (!job_.recovers) return;
  chunk.previous = std::move(before);
  chunk.previous_encoded.reset();
}

}  // namespace tributary
