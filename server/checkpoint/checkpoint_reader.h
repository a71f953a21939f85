// Reading a checkpoint: its shard files, every byte of them held against the manifest. Whoever takes anything out of a
// checkpoint does it through here, so that what `verify` refuses nobody restores, exports or links.
#pragma once

#include <functional>
#include <set>
#include <string>

#include "common/base/result.h"
#include "common/files/checkpoint_manifest.h"
#include "server/chunk/stored_chunk.h"

namespace tributary {

// An error that either returns ends the reading.
struct CheckpointVisitor {
  // A chunk that is whole and says of itself what the manifest says: what a store will take. Ascending. The values are
  // valid during the call only.
  std::function<Status(const StoredChunk&)> chunk;
  // What is wrong, with the file's name. Returns success to hear of more.
  std::function<Status(std::string)> flaw;
};

// The files of those shards. A file's checksum is known when its last chunk was read, so nothing that the visitor was
// given counts before this returned without a flaw.
Status read_checkpoint(const std::string& path, const Manifest& manifest, const std::set<ShardIndex>& shards,
                       const CheckpointVisitor& visitor);

// These chunks, and besides the whole files of those shards. Each chunk is held against its own checksums. That a file
// is this checkpoint's says who reads all of it: the chunks count if somebody has done so for each file.
Status read_chunks(const std::string& path, const Manifest& manifest, const std::set<ChunkIndex>& chunks,
                   const std::set<ShardIndex>& whole, const CheckpointVisitor& visitor);

// "chunk 3 (of tensors 'a', 'b')": with the tensors that lie in it, some of them if there are many.
std::string chunk_in_words(const Layout& layout, ChunkIndex chunk);

}  // namespace tributary
