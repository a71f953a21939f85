#include "server/shard/shard_previous.h"

namespace tributary {

BufferRef ShardPrevious::target(const ShardChunk& chunk) {
  const BufferRef& values = kept_[chunk.position].values;
  return values && values.unique() ? values : chunks_.acquire(chunk.array_bytes());
}

void ShardPrevious::answer(PeerId to, const ShardChunk& chunk, const Pull& pull, const GateDecision& gate,
                           ShardDigests& digests) {
  Kept& kept = kept_[chunk.position];
  const Encoding& encoding = chunks_.pull();
  // To a node that lost what it had a change says nothing.
  const EncodingId id = encoding.is_delta() ? EncodingId::kFp32 : encoding.id();
  Answer header{chunks_.key(chunk, pull.key.node), Version(chunk.state.version.value - 1), id};
  header.gate = gate;
  if (id != EncodingId::kFp32 && !kept.encoded) {  // one for all nodes: their readers may keep it for long
    kept.encoded = chunks_.acquire(encoding.bytes(chunk.elements));
    if (!kept.encoded) return;  // who asks asks again
    encoding.encode_update(kept.values.floats().data(), chunk.elements, 0, chunk.elements, nullptr,
                           kept.encoded.data());
  }
  digests.answer(to, chunk, pull, header, id == EncodingId::kFp32 ? kept.values : kept.encoded);
}

}  // namespace tributary
