// A checkpoint's manifest: from a disk, or from the checkpoint's author.
#include "common/config/job_json.h"
#include "common/files/checkpoint_manifest.h"
#include "tests/fuzz/fuzz_target.h"

namespace tributary::fuzz::manifest {
namespace {

// A manifest whose tensors are not those of its hash is refused. Mutations would not find the right one: it stands in
// the refusal.
Result<Manifest> read(std::string text) {
  Result<Manifest> manifest = manifest_from_json(text);
  constexpr std::string_view kClaims = "layout.hash is ", kRight = ", but that of its tensors is ";
  if (manifest || !manifest.error().message.starts_with(kClaims)) return manifest;
  const std::string& why = manifest.error().message;
  const std::size_t end = why.find(kRight);
  if (end == std::string::npos) return manifest;  // it is no hash at all
  const std::string claimed = why.substr(kClaims.size(), end - kClaims.size()), right = why.substr(end + kRight.size());
  const std::size_t at = text.find(claimed);
  if (claimed.empty() || at == std::string::npos) return manifest;
  return manifest_from_json(text.replace(at, claimed.size(), right));
}

}  // namespace

std::vector<Bytes> seeds() {
  JobConfig job{.name = "mlp", .optimizer = default_optimizer("adamw")};
  Manifest manifest{.created = "2030-01-02T03:04:05Z",
                    .job_json = to_canonical_json(job),
                    .round = Round(40),
                    .tensors = {{"a", {1000}}, {"b", {10, 300}}, {"c", {}}},
                    .chunk_elements = 1024,
                    .chunk_shards = {ShardIndex(0), ShardIndex(2), ShardIndex(0), ShardIndex(2)}};
  manifest.shards = {{"shard-0.bin", ShardIndex(0), 2, 123, std::string(32, 'a')},
                     {"shard-2.bin", ShardIndex(2), 2, 456, std::string(32, 'b')}};
  manifest.computed_with = {"A", "B"};
  manifest.rank_states[{1, 3}] = {std::byte{0x00}, std::byte{0xaf}};
  return {bytes_of(to_json(manifest))};
}

void run(std::span<const std::byte> bytes) {
  const Result<Manifest> manifest = read(std::string(text_of(bytes)));
  if (!manifest) return;
  const std::string written = to_json(*manifest);
  const Result<Manifest> again = manifest_from_json(written);
  require(again.has_value(), "what was read is read when it is written again");
  require(to_json(*again) == written, "what is written again is the same");
  const Layout layout = layout_of(*manifest);
  require(layout.chunks() == manifest->chunk_shards.size(), "each chunk has a shard");
  (void)tributary::bytes_of(*manifest);
}

Target target() {
  return {"manifest", seeds, run};
}

}  // namespace tributary::fuzz::manifest
