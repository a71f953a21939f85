#include "tests/sim/judge/checkpoints_judge.h"

#include <cstring>

#include "server/chunk/chunk_record.h"
#include "tests/sim/judge/cluster_judge.h"
#include "tests/sim/judge/judge.h"

namespace tributary::sim {

void CheckpointsJudge::saved(const CheckpointStatus& status, const CheckpointFiles& files) const {
  const CheckpointFiles::Directory* directory = files.whole(status.path);
  if (!directory) return broken_("a save is done, and '" + status.path + "' is no checkpoint");
  const Result<Manifest> manifest = manifest_from_json(directory->manifest);
  if (!manifest) return broken_("a checkpoint's manifest: " + manifest.error().message);
  if (manifest->round != status.round) broken_("'" + status.path + "' is of another round");
  for (std::uint32_t c = 0; c < manifest->chunk_shards.size(); ++c) check_chunk(*manifest, *directory, ChunkIndex(c));
  for (const auto& [key, state] : manifest->rank_states) {
    std::uint64_t words[3] = {};
    const std::span<const std::byte> body = StateHead::body(state);
    if (body.size() == sizeof words) std::memcpy(words, body.data(), sizeof words);
    if (words[0] != key.node * scenario_.ranks + key.local_rank || words[1] != manifest->round.value) {
      broken_("'" + status.path + "' has what rank " + std::to_string(words[0]) + " kept after round " +
              std::to_string(words[1]));
    }
    const LargePart large = StateHead::of(state).large;
    if (!large) continue;
    const auto part = directory->large_parts.find(large);
    if (part == directory->large_parts.end() ||
        part->second != ClusterJudge::large_of(static_cast<std::uint32_t>(words[0]), manifest->round)) {
      broken_("'" + status.path + "' has not the large part that rank " + std::to_string(words[0]) + " kept");
    }
  }
}

void CheckpointsJudge::check_chunk(const Manifest& manifest, const CheckpointFiles::Directory& directory,
                                   ChunkIndex chunk) const {
  const std::string who =
      "chunk " + std::to_string(chunk.value) + " in a checkpoint of round " + std::to_string(manifest.round.value);
  const auto file = directory.files.find(shard_file_name(manifest.chunk_shards[chunk.value]));
  if (file == directory.files.end() || !file->second.chunks.contains(chunk.value)) return broken_(who + " is missing");
  const StoredChunk stored = file->second.chunks.at(chunk.value).stored(chunk);
  const auto header = records::unseal_chunk(stored.entries.front().value, who);
  if (!header) return broken_(header.error().message);
  if (const Status whole = records::check_arrays(*header, stored); !whole) {
    return broken_(who + " is damaged: " + whole.error().message);
  }
  if (header->round != manifest.round) return broken_(who + " is of round " + std::to_string(header->round.value));
  const auto right = right_(manifest.view, chunk, manifest.round);
  if (right && !same_bits(records::state_of(*header, stored).params.floats(), *right)) {
    broken_(who + " has not the reference's bits");
  }
}

}  // namespace tributary::sim
