// ShardCore's part in recovery: state out of the store, state that outlives its view, and parameters at the round that
// a view begins with.
#include <algorithm>
#include <utility>

#include "common/assert.h"
#include "server/shard_core.h"

namespace tributary {

// Arrays with a place for each node of the view.
void ShardCore::size_for_nodes() {
  for (Chunk& chunk : chunks_) {
    chunk.contributions.resize(job_.view->nodes);
    chunk.waiting_pulls.resize(job_.view->nodes);
    if (push_->keeps_residual()) chunk.residuals.resize(job_.view->nodes);
  }
  frames_.resize(job_.view->nodes);
}

Status ShardCore::restore(ChunkIndex index, Version version, std::uint64_t step, std::span<const float> params,
                          std::span<const std::span<const float>> slots, const CompressionState& compression,
                          std::span<const std::uint64_t> clocks, const GateDecision& gate) {
  const bool ours = index.value < local_.size() && local_[index.value] != kNotOurs;
  if (!ours || chunks_[local_[index.value]].initialised) {
    return fail(ErrorCode::kStore, "chunk " + std::to_string(index.value) + " cannot be restored on server " +
                                       std::to_string(job_.shard.value) + " lane " + std::to_string(job_.lane.value) +
                                       (ours ? ": it has its values already" : ": it does not belong there"));
  }
  Chunk& chunk = chunks_[local_[index.value]];
  const auto expected_slots = static_cast<std::size_t>(job_.plan().optimizer->slots());
  const bool fits =
      params.size() == chunk.elements && slots.size() == expected_slots &&
      std::ranges::all_of(slots, [&](const auto& s) { return s.size() == chunk.elements; }) &&
      (compression.estimate.empty() || compression.estimate.size() == chunk.elements) &&
      std::ranges::all_of(compression.residuals, [&](const auto& r) { return r.values.size() == chunk.elements; });
  if (!fits) {
    return fail(ErrorCode::kWrongLength, "chunk " + std::to_string(index.value) + " in the store has " +
                                             std::to_string(params.size()) + " parameters and " +
                                             std::to_string(slots.size()) + " state arrays, but the job needs " +
                                             std::to_string(chunk.elements) + " and " + std::to_string(expected_slots));
  }
  if (job_.plan().has_clocks()) {
    if (Status fits_job = restore_clocks(chunk, clocks); !fits_job) return fits_job;
  }
  if (!allocate(chunk) || (push_->keeps_residual() && !restore_residuals(chunk, compression))) {
    return fail(ErrorCode::kLimit, "no buffer left for chunk " + std::to_string(index.value) +
                                       "; buffers of the job's last view are still in use, attach again in a moment");
  }
  std::ranges::copy(params, chunk.params.floats().data());
  for (std::size_t s = 0; s < slots.size(); ++s) std::ranges::copy(slots[s], chunk.slots[s].floats().data());
  if (chunk.estimate) {
    std::ranges::copy(compression.estimate.empty() ? params : compression.estimate, chunk.estimate.floats().data());
  }
  chunk.version = version;
  chunk.step = step;
  if (job_.plan().has_gate() && gate.known()) {
    chunk.gate = gate;
    note_decision(Round(version.value), gate);
  }
  max_version_ = std::max(max_version_, progress(chunk));
  initialise(chunk);
  return {};
}

Status ShardCore::reopen(ShardJob job) {
  TRIB_ASSERT(job.view->job == job_.view->job && stats_.held_frames == 0);
  const auto no = [&](const std::string& why) -> Status {
    return fail(ErrorCode::kTopology, "the state that server " + std::to_string(job_.shard.value) + " lane " +
                                          std::to_string(job_.lane.value) + " kept of job " +
                                          std::to_string(job_.view->job.value) + " cannot go on: " + why);
  };
  const bool same_chunks =
      job.view->layout->hash() == job_.view->layout->hash() && job.shard == job_.shard && job.lane == job_.lane &&
      std::ranges::equal(chunks_, job.view->layout->chunks_owned_by(job.shard, job.lane), {}, &Chunk::index);
  if (!same_chunks) {
    return no("the model is laid out differently now");
  }
  const JobConfig &now = job.plan().config, &before = job_.plan().config;
  if (!(now.push == before.push) || !(now.pull == before.pull)) return no("its encodings have changed");
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
  BufferRef fresh = pool_.acquire(chunk.params.size());
  if (!fresh) ++stats_.starved;
  return fresh;
}

void ShardCore::answer_pulls(Chunk& chunk) {
  for (std::uint32_t node = 0; node < job_.view->nodes; ++node) {
    WaitingPull& pull = chunk.waiting_pulls[node];
    if (pull.from == PeerId{} || (!job_.plan().has_clocks() && pull.version > chunk.version)) continue;
    const PeerId peer = std::exchange(pull, {}).from;
    if (job_.plan().has_clocks()) {
      answer_clock_pull(peer, chunk, NodeRank(node));
      continue;
    }
    send_answer(peer, chunk, NodeRank(node), Reply::kWhole);
  }
}

// What it was stays, instead of what it was before that.
void ShardCore::keep_previous(Chunk& chunk) {
  chunk.previous = held_by_nodes(chunk);
  chunk.previous_encoded.reset();
}

void ShardCore::answer_previous(PeerId to, Chunk& chunk, NodeRank node) {
  const ChunkKey key{job_.view->job, job_.view->view, node, chunk.index};
  // To a node that lost what it had a change says nothing.
  const EncodingId id = pull_->is_delta() ? EncodingId::kFp32 : pull_->id();
  Answer header{key, Version(chunk.version.value - 1), id};
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
