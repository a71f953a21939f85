// A checkpoint's description: manifest.json of its directory. Pure: text in, struct out and back.
//
//   NAME-round-R/manifest.json   this
//                shard-K.bin     the chunks of shard K (server/checkpoint/checkpoint_file.h)
//                part-SUM.bin    a large part of what ranks keep (server/checkpoint/checkpoint_parts.h)
//                COMPLETE        the checksum of manifest.json, written last: without it the checkpoint is half of one
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/layout.h"
#include "common/base/result.h"
#include "common/config/config.h"
#include "common/wire/compute_kinds.h"
#include "common/wire/state_head.h"

namespace tributary {

inline constexpr std::uint32_t kManifestFormat = 1;
inline constexpr std::size_t kMaxManifestBytes = 48u << 20;  // fits a control message

inline constexpr char kManifestFile[] = "manifest.json";
inline constexpr char kCompleteFile[] = "COMPLETE";
inline constexpr char kPartialSuffix[] = ".partial";  // of a directory that is still being written

struct ManifestShard {
  std::string file;  // name within the directory
  ShardIndex shard;
  std::uint32_t chunks = 0;
  std::uint64_t bytes = 0;
  std::string checksum;  // XXH3-128 of the file, 32 hexadecimal digits
  bool operator==(const ManifestShard&) const = default;
};

// A rank of a job, by the node rank that its trainers were started with.
struct RankKey {
  std::uint32_t node = 0, local_rank = 0;
  auto operator<=>(const RankKey&) const = default;
};
// The ranks' own states, kept with the job's (Session::keep).
using RankStates = std::map<RankKey, std::vector<std::byte>>;
inline constexpr std::size_t kMaxRankStatesBytes = 16u << 20;  // of a job, all ranks together
// Returns the large parts that the states name.
inline std::set<LargePart> large_parts_of(const RankStates& states) {
  std::set<LargePart> parts;
  for (const auto& [rank, state] : states) {
    if (const LargePart large = StateHead::of(state).large) parts.insert(large);
  }
  return parts;
}

struct Manifest {
  std::string created;   // UTC, ISO 8601
  std::string job_json;  // canonical
  Round round;
  ViewId view;                   // that the state was captured in; 0: none (imported)
  std::uint32_t nodes = 0;       // of that view
  std::uint32_t world_size = 0;  // of that view
  std::vector<TensorSpec> tensors;
  std::uint64_t chunk_elements = 0;
  std::vector<ShardIndex> chunk_shards;  // whose file each chunk is in
  std::vector<ManifestShard> shards;     // by shard; only those with chunks
  RankStates rank_states;
  ComputeKinds computed_with;
};

std::string shard_file_name(ShardIndex shard);
// Returns "mlp-round-40". Characters of the job's name that do not belong in a file name become '_', and then a
// checksum of the name follows, so that names stay different.
std::string checkpoint_name(std::string_view job_name, Round round);
// Returns PyTorch's names of an optimizer's state arrays: "exp_avg", "exp_avg_sq". One for each of its slots.
std::vector<std::string> state_names(const OptimizerConfig& optimizer);

std::string to_json(const Manifest& manifest);

// Never trusts its input: kMalformed for text that is no manifest, kStoreFormat for a newer format, kStore for a
// manifest that contradicts itself. Every message names the field.
Result<Manifest> manifest_from_json(std::string_view text);

// Convert parts of a manifest to the rest of the program's types. REQUIRES: manifest_from_json() made it.
JobConfig job_of(const Manifest& manifest);
// The layout, with every chunk on lane 0 of the shard whose file has it.
Layout layout_of(const Manifest& manifest);
std::uint64_t bytes_of(const Manifest& manifest);  // of all shard files

}  // namespace tributary
