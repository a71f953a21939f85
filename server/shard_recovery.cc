// ShardCore's part in recovery: state out of the store, state that outlives its view, and parameters at the round that
// a view begins with.
#include <algorithm>
#include <new>
#include <utility>

#include "common/assert.h"
#include "server/shard_core.h"

namespace tributary {

// Arrays with a place for each node of the view.
void ShardCore::size_for_nodes() {
  for (Chunk& chunk : chunks_) {
    chunk.contributions.resize(job_.nodes);
    chunk.waiting_pulls.resize(job_.nodes);
  }
  frames_.resize(job_.nodes);
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
  const auto expected_slots = static_cast<std::size_t>(job_.optimizer->slots());
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
  if (job_.clocks) {
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
  if (job_.gate && gate.known()) {
    chunk.gate = gate;
    note_decision(Round(version.value), gate);
  }
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
  if (!job_.recovers || push_->keeps_residual()) return no("it was not kept to go on from");
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

// A block for what this round will have depended on; false, and the chunk waits for one, if there is none, or if the
// log need not have room for that round before there is a snapshot. (Else some chunks would be past the round that is
// named for it while others waited for room, and it could never be taken.)
bool ShardCore::begin_log(Chunk& chunk, LoggedStep& log) {
  if (!holds_back(chunk)) log.block = log_pool_->acquire(redo_block_bytes(chunk.elements));
  if (log.block) return true;
  if (!std::exchange(chunk.stalled, true)) stalled_.push_back(local_[chunk.index.value]);
  return false;
}

// The open round has been applied, or is void; its version is still to come.
void ShardCore::end_log(const Chunk& chunk, LoggedStep log, bool applied) {
  log.job = job_.job;
  log.view = job_.view;
  log.chunk = chunk.index;
  log.version = chunk.version.next();
  log.step = chunk.step;
  log.elements = applied ? chunk.elements : 0;
  output_.logged(std::move(log));
}

// Outside of a push, whose author asks again, nobody else would try it once more.
void ShardCore::complete_or_stall(Chunk& chunk) {
  try {
    complete(chunk);  // or is stalled
  } catch (const std::bad_alloc&) {
    ++stats_.starved;
    if (!std::exchange(chunk.stalled, true)) stalled_.push_back(local_[chunk.index.value]);
  }
}

std::optional<ShardCore::Held> ShardCore::held() const {
  const auto at = std::ranges::find_if(stalled_, [&](std::uint32_t position) { return holds_back(chunks_[position]); });
  if (at == stalled_.end()) return {};
  return Held{Round(chunks_[*at].version.value + 1), covered()};
}

void ShardCore::retry() {
  std::vector<std::uint32_t> waiting;
  waiting.swap(stalled_);
  for (const std::uint32_t position : waiting) {
    Chunk& chunk = chunks_[position];
    chunk.stalled = false;
    if (chunk.arrived == job_.nodes) complete_or_stall(chunk);
  }
}

Status ShardCore::replay(const LoggedStep& step, std::span<const float> sum) {
  if (step.chunk.value >= local_.size() || local_[step.chunk.value] == kNotOurs) {
    return fail(ErrorCode::kStore, "the redo log has chunk " + std::to_string(step.chunk.value) +
                                       ", which does not belong to server " + std::to_string(job_.shard.value) +
                                       " lane " + std::to_string(job_.lane.value));
  }
  Chunk& chunk = chunks_[local_[step.chunk.value]];
  const bool applied = step.step != chunk.step;
  if (!chunk.initialised || step.version != chunk.version.next() || sum.size() != (applied ? chunk.elements : 0) ||
      (applied && step.step != chunk.step + 1)) {
    return fail(ErrorCode::kStore, "the redo log has version " + std::to_string(step.version.value) + ", step " +
                                       std::to_string(step.step) + ", of chunk " + std::to_string(step.chunk.value) +
                                       " with a sum of " + std::to_string(sum.size()) +
                                       " values, which does not follow its " + std::to_string(chunk.elements) +
                                       " values at version " + std::to_string(chunk.version.value) + ", step " +
                                       std::to_string(chunk.step));
  }
  const PushFrame frame{std::as_bytes(sum).data()};
  Step again{{&frame, 1}};
  again.encoding = &encoding_for(EncodingId::kFp32);
  again.scale = step.scale;
  again.lr = step.lr;
  if (applied ? !apply(chunk, again) : !answer_no_change(chunk)) {
    return fail(ErrorCode::kLimit, "no buffer left to take version " + std::to_string(step.version.value) +
                                       " of chunk " + std::to_string(step.chunk.value) +
                                       " again; attach again in a moment");
  }
  chunk.version = step.version;
  max_version_ = std::max(max_version_, chunk.version);
  if (step.gate.known()) {
    chunk.gate_before = chunk.gate;
    chunk.gate = step.gate;
    note_decision(Round(chunk.version.value), step.gate);
  }
  return {};
}

void ShardCore::answer_pulls(Chunk& chunk) {
  for (std::uint32_t node = 0; node < job_.nodes; ++node) {
    WaitingPull& pull = chunk.waiting_pulls[node];
    if (pull.from == PeerId{} || (!job_.clocks && pull.version > chunk.version)) continue;
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
  chunk.previous = chunk.params;
  chunk.previous_encoded.reset();
}

void ShardCore::answer_previous(PeerId to, Chunk& chunk, NodeRank node) {
  const ChunkKey key{job_.job, job_.view, node, chunk.index};
  Answer header{key, Version(chunk.version.value - 1), Version(durable_.value), pull_->id()};
  header.gate = chunk.gate_before;
  const BufferRef* payload = &chunk.previous;
  if (pull_->id() != EncodingId::kFp32) {
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
