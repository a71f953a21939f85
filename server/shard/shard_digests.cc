#include "server/shard/shard_digests.h"

namespace tributary {

void ShardDigests::answer(PeerId to, const ShardChunk& chunk, const Pull& pull, Answer header,
                          const BufferRef& payload) {
  header.same = pull.digest != Checksum128::Value{} && digest(chunk, header, payload) == pull.digest;
  chunks_.answer(to, header, header.same ? BufferRef() : payload);
}

const Checksum128::Value& ShardDigests::digest(const ShardChunk& chunk, const Answer& header,
                                               const BufferRef& payload) {
  Known& known = known_[chunk.position];
  if (known.digest != Checksum128::Value{} && known.version == header.version) return known.digest;
  if (header.encoding == EncodingId::kFp32) {
    known = {header.version, Checksum128::of(payload.bytes())};
    return known.digest;
  }
  decoded_.resize(chunk.elements);
  chunks_.pull().apply(payload.data(), chunk.elements, decoded_.data());
  known = {header.version, Checksum128::of(std::as_bytes(std::span(decoded_)))};
  return known.digest;
}

}  // namespace tributary
