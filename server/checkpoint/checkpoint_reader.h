// Reads a checkpoint's shard files and checks every byte against the manifest. Every reader of a checkpoint uses these
// functions, so no part that `verify` refuses is restored, exported or linked.
#pragma once

#include <functional>
#include <set>
#include <string>

#include "common/base/result.h"
#include "common/files/checkpoint_manifest.h"
#include "server/chunk/stored_chunk.h"

namespace tributary {

// If either function returns an error, the reading ends.
struct CheckpointVisitor {
  // Takes a chunk that is whole and agrees with the manifest, so that a store will accept it. Chunks come in ascending
  // order. The values are valid during the call only.
  std::function<Status(const StoredChunk&)> chunk;
  // Takes a flaw, in words, with the file's name. Returns success to get further flaws.
  std::function<Status(std::string)> flaw;
};

// Reads the files of these shards. A file's checksum is known only after its last chunk, so the visitor's chunks count
// only if this returns without a flaw.
Status read_checkpoint(const std::string& path, const Manifest& manifest, const std::set<ShardIndex>& shards,
                       const CheckpointVisitor& visitor);

// Reads these chunks, and the whole files of the shards in `whole`. Each chunk is checked against its own checksums.
// Only reading a whole file proves that the file is this checkpoint's: chunks count if each of their files was read so.
Status read_chunks(const std::string& path, const Manifest& manifest, const std::set<ChunkIndex>& chunks,
                   const std::set<ShardIndex>& whole, const CheckpointVisitor& visitor);

// Returns "chunk 3 (of tensors 'a', 'b')": with the names of its tensors, the first ones if there are many.
std::string chunk_in_words(const Layout& layout, ChunkIndex chunk);

}  // namespace tributary
