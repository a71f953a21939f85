// A small checkpoint on disk: two shards, adamw, values that follow from array and element.
#pragma once

#include <doctest/doctest.h>
#include <xxhash.h>

#include <cstdint>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include "common/config/job_json.h"
#include "server/checkpoint/checkpoint_directory.h"
#include "server/checkpoint/checkpoint_file.h"
#include "server/checkpoint/checkpoint_parts.h"
#include "server/store/records.h"
#include "tests/unit/required.h"
#include "tests/unit/temp_dir.h"

namespace tributary::testing {

// run: of another training of the same job, which has other values.
inline float flat_value(int array, std::uint64_t element, int run = 0) {
  return static_cast<float>(array) * 100000.0f + static_cast<float>(element) * 0.25f + static_cast<float>(run);
}

inline Manifest sample_manifest(std::uint64_t round = 7) {
  JobConfig job{.name = "mlp", .optimizer = default_optimizer("adamw")};
  Manifest manifest{.created = "2030-01-02T03:04:05Z",
                    .job_json = to_canonical_json(job),
                    .round = Round(round),
                    .tensors = {{"a", {1000}}, {"b", {10, 300}}, {"c", {}}},
                    .chunk_elements = 1024,
                    .chunk_shards = {ShardIndex(0), ShardIndex(1), ShardIndex(0), ShardIndex(1)}};
  return manifest;
}

// The chunk's entries. Values lie in `arrays`, the header in `sealed`.
inline StoredChunk sample_stored_chunk(const Layout& layout, ChunkIndex chunk, Round round,
                                       std::vector<std::vector<float>>& arrays, std::string& sealed, int run = 0) {
  const ChunkRange range = layout.chunk(chunk);
  records::ChunkHeader header;
  header.round = round;
  header.chunk = chunk;
  header.version = Version(round.value);
  header.step = round.value;
  header.elements = range.elements;
  header.slots = 2;
  header.optimizer = "adamw";
  StoredChunk out{chunk, {{chunk_key(chunk, kHeaderPart), {}}}};
  arrays.assign(3, {});
  std::string all;
  for (int array = 0; array < 3; ++array) {
    for (std::uint64_t i = 0; i < range.elements; ++i) {
      arrays[static_cast<std::size_t>(array)].push_back(flat_value(array, range.begin + i, run));
    }
    const auto& values = arrays[static_cast<std::size_t>(array)];
    const std::string_view bytes(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
    out.entries.push_back({chunk_key(chunk, static_cast<std::uint8_t>(kParamsPart + array)), bytes});
    all += bytes;
  }
  header.checksum = XXH3_64bits(all.data(), all.size());
  sealed = records::seal(header);
  out.entries.front().value = sealed;
  return out;
}

// Writes the shard files of `manifest` into `partial` and fills in their sizes and checksums.
inline void write_shards(const std::string& partial, Manifest& manifest, int run = 0) {
  std::filesystem::create_directories(partial);
  const Layout layout = layout_of(manifest);
  manifest.shards.clear();
  for (std::uint16_t s = 0; s < 2; ++s) {
    const ShardIndex shard(s);
    const std::string path = partial + "/" + shard_file_name(shard);
    auto writer = required(CheckpointFileWriter::create(path, {shard, manifest.round, layout.hash()}));
    std::uint32_t chunks = 0;
    for (std::uint32_t c = 0; c < layout.chunks(); ++c) {
      if (manifest.chunk_shards[c] != shard) continue;
      std::vector<std::vector<float>> arrays;
      std::string sealed;
      REQUIRE(writer->add(sample_stored_chunk(layout, ChunkIndex(c), manifest.round, arrays, sealed, run)));
      ++chunks;
    }
    REQUIRE(writer->finish());
    manifest.shards.push_back({shard_file_name(shard), shard, chunks, writer->bytes(), writer->checksum()});
  }
}

// A rank's state with a large part; and its file's pieces.
struct SampleState {
  std::string bytes;  // of the large part
  LargePart large;
  std::vector<std::byte> state;

  Result<std::vector<std::byte>> piece(std::uint64_t offset) const {
    const auto* at = reinterpret_cast<const std::byte*>(bytes.data()) + offset;
    return std::vector<std::byte>(at, at + std::min<std::size_t>(kPartBytes, bytes.size() - offset));
  }
  void write_to(const std::string& folder) const {
    REQUIRE(write_part_file(folder, large, [this](std::uint64_t offset) { return piece(offset); }));
  }
};
inline SampleState sample_state(char content, std::size_t size) {
  SampleState made;
  for (std::size_t i = 0; i < size; ++i) made.bytes += static_cast<char>(i * 31 + i / 4096 + content);
  const auto [high, low] = Checksum128().add(made.bytes.data(), size).value();
  made.large = {size, high, low};
  made.state = StateHead{made.large, true}.before(std::as_bytes(std::span("small", 5)));
  return made;
}

// Makes a complete checkpoint in `folder`; returns its path.
inline std::string write_sample(const std::string& folder, Manifest manifest = sample_manifest(), int run = 0) {
  const std::string target = folder + "/" + checkpoint_name("mlp", manifest.round);
  write_shards(target + kPartialSuffix, manifest, run);
  required(seal_checkpoint(target + kPartialSuffix, target, to_json(manifest)));
  return target;
}

inline void flip_bit(const std::string& file, std::uint64_t at) {
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekg(static_cast<std::streamoff>(at));
  const char byte = static_cast<char>(stream.get() ^ 4);
  stream.seekp(static_cast<std::streamoff>(at));
  stream.put(byte);
  REQUIRE(stream.good());
}

}  // namespace tributary::testing
