// ShardCore's part in recovery: state out of the store, state that outlives its view, and parameters at the round that
// a view begins with.
#include <algorithm>
#include <cstring>
#include <utility>

#include "common/assert.h"
#include "server/shard_core.h"

namespace tributary {

// Arrays with a place for each node of the view.
void ShardCore::size_for_nodes() {
  for (Chunk& chunk : chunks_) {
    chunk.contributions.resize(job_.nodes);
    chunk.waiting_pulls.resize(job_.nodes);
    chunk.state.nodes = job_.nodes;
    if (push_->keeps_residual()) chunk.given_back.resize(job_.nodes);
  }
  frames_.resize(job_.nodes);
}

Status ShardCore::restore(ChunkIndex index, const ChunkState& saved) {
  const bool ours = index.value < local_.size() && local_[index.value] != kNotOurs;
  if (!ours || chunks_[local_[index.value]].initialised) {
    return fail(ErrorCode::kStore, "chunk " + std::to_string(index.value) + " cannot be restored on server " +
                                       std::to_string(job_.shard.value) + " lane " + std::to_string(job_.lane.value) +
                                       (ours ? ": it has its values already" : ": it does not belong there"));
  }
  Chunk& chunk = chunks_[local_[index.value]];
  const auto expected_slots = static_cast<std::size_t>(job_.optimizer->slots());
  const auto slots = static_cast<std::size_t>(std::ranges::count_if(saved.slots, &BufferRef::operator bool));
  const std::size_t bytes = chunk.elements * sizeof(float);
  const bool fits =
      saved.params && slots == expected_slots &&
      std::ranges::all_of(saved.arrays(), [&](const BufferRef* array) { return !*array || array->size() == bytes; }) &&
      std::ranges::all_of(saved.residuals, [&](const NodeResidual& r) { return r.bytes().size() == bytes; });
  if (!fits) {
    return fail(ErrorCode::kWrongLength, "chunk " + std::to_string(index.value) + " in the store has " +
                                             std::to_string(saved.params.size() / sizeof(float)) + " parameters and " +
                                             std::to_string(slots) + " state arrays, but the job needs " +
                                             std::to_string(chunk.elements) + " and " + std::to_string(expected_slots));
  }
  if (job_.clocks) {
    if (Status fits_job = check_clocks(index, saved.clocks); !fits_job) return fits_job;
  }
  if (!allocate(chunk) || (push_->keeps_residual() && !restore_residuals(chunk, saved))) {
    return fail(ErrorCode::kLimit, "no buffer left for chunk " + std::to_string(index.value) +
                                       "; buffers of the job's last view are still in use, attach again in a moment");
  }
  const auto from = saved.arrays();
  for (std::size_t i = 0; BufferRef* const to : chunk.state.arrays()) {
    const BufferRef& values = *from[i] ? *from[i] : saved.params;  // an estimate that was not kept
    if (*to) std::memcpy(to->data(), values.data(), bytes);
    ++i;
  }
  ChunkProgress& progress_now = chunk.state;
  const ChunkProgress fresh = std::exchange(progress_now, saved);
  progress_now.nodes = job_.nodes;
  if (!job_.clocks || saved.clocks.size() != job_.nodes) progress_now.clocks = fresh.clocks;
  if (!job_.gate || !saved.gate.known()) progress_now.gate = fresh.gate;
  if (job_.clocks) chunk.slowest = std::ranges::min(progress_now.clocks);
  if (job_.gate && saved.gate.known()) note_decision(Round(saved.version.value), saved.gate);
  max_version_ = std::max(max_version_, progress(chunk));
  initialise(chunk);
  return {};
}

Status ShardCore::reopen(ShardJob job) {
  TRIB_ASSERT(job.job == job_.job && stats_.held_frames == 0);
  const auto no = [&](const std::string& why) -> Status {
    return fail(ErrorCode::kTopology, "the state that server " + std::to_string(job_.shard.value) + " lane " +
                                          std::to_string(job_.lane.value) + " kept of job " +
                                          std::to_string(job_.job.value) + " cannot go on: " + why);
  };
  const bool same_chunks =
      job.layout->hash() == job_.layout->hash() && job.shard == job_.shard && job.lane == job_.lane &&
      std::ranges::equal(chunks_, job.layout->chunks_owned_by(job.shard, job.lane), {}, &Chunk::index);
  if (!same_chunks) {
    return no("the model is laid out differently now");
  }
  if (!(job.push == job_.push) || !(job.pull == job_.pull)) return no("its encodings have changed");
  if (!job_.recovers) return no("it was not kept to go on from");
  if (!initialised()) return no("some of its chunks never got their initial values");
  job_ = std::move(job);
  size_for_nodes();
  return {};
}

// The buffer that the next step may write parameters into; empty (and counted) if the pool has none. Whoever read it
// had its answer two rounds ago.
BufferRef ShardCore::before_previous(const Chunk& chunk) {
  if (chunk.previous && chunk.previous.unique()) return chunk.previous;
  BufferRef fresh = pool_.acquire(chunk.state.params.size());
  if (!fresh) ++stats_.starved;
  return fresh;
}

void ShardCore::answer_pulls(Chunk& chunk) {
  for (std::uint32_t node = 0; node < job_.nodes; ++node) {
    WaitingPull& pull = chunk.waiting_pulls[node];
    if (pull.from == PeerId{} || (!job_.clocks && pull.version > chunk.state.version)) continue;
    const PeerId peer = std::exchange(pull, {}).from;
    if (job_.clocks) {
      answer_clock_pull(peer, chunk, NodeRank(node));
      continue;
    }
    send_answer(peer, chunk, NodeRank(node), Reply::kWhole);
  }
}

// What it was stays, instead of what it was before that.
void ShardCore::keep_previous(Chunk& chunk) {
  chunk.previous = chunk.state.held_by_nodes();
  chunk.previous_encoded.reset();
}

void ShardCore::answer_previous(PeerId to, Chunk& chunk, NodeRank node) {
  const ChunkKey key{job_.job, job_.view, node, chunk.index};
  // To a node that lost what it had a change says nothing.
  const EncodingId id = pull_->is_delta() ? EncodingId::kFp32 : pull_->id();
  Answer header{key, Version(chunk.state.version.value - 1), id};
  header.gate = chunk.gate_before;
  const BufferRef* payload = &chunk.previous;
  if (id != EncodingId::kFp32) {
    BufferRef& encoded = chunk.previous_encoded;  // one for all nodes: their readers may keep it for long
    if (!encoded) {
      encoded = pool_.acquire(pull_->bytes(chunk.elements));
      if (!encoded) {
        ++stats_.starved;
        return;  // who asks asks again
      }
      pull_->encode_update(chunk.previous.floats().data(), chunk.elements, 0, chunk.elements, nullptr, encoded.data());
    }
    payload = &encoded;
  }
  ++stats_.answers;
  stats_.answer_bytes += payload->size();
  output_.answer(to, header, *payload);
}

}  // namespace tributary
