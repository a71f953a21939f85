// ShardCore's part in recovery: state that outlives its view, and parameters at the round that a view begins with.
#include <algorithm>
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

void ShardCore::answer_pulls(Chunk& chunk) {
  for (std::uint32_t node = 0; node < job_.nodes; ++node) {
    WaitingPull& pull = chunk.waiting_pulls[node];
    if (pull.from == PeerId{} || pull.version > chunk.version) continue;
    const PeerId peer = std::exchange(pull, {}).from;
    send_answer(peer, chunk, NodeRank(node), Reply::kWhole);
  }
}

void ShardCore::answer_previous(PeerId to, const Chunk& chunk, NodeRank node) {
  const ChunkKey key{job_.job, job_.view, node, chunk.index};
  const Answer header{key, Version(chunk.version.value - 1), Version(durable_.value), pull_->id()};
  BufferRef payload = chunk.previous;
  if (pull_->id() != EncodingId::kFp32) {
    payload = pool_.acquire(pull_->bytes(chunk.elements));
    if (!payload) {
      ++stats_.starved;
      return;  // who asks asks again
    }
    pull_->encode_update(chunk.previous.floats().data(), chunk.elements, 0, chunk.elements, nullptr, payload.data());
  }
  ++stats_.answers;
  stats_.answer_bytes += payload.size();
  output_.answer(to, header, payload);
}

}  // namespace tributary
