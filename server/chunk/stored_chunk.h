// A chunk as it lies on disk, in a store or in a checkpoint: entries of key and value in the order of their keys.
//
// Keys are u32 chunk (big endian, so that byte order is chunk order), u8 part: part 0 is the sealed ChunkHeader, part 1
// the parameters, part 2+k state array k, part 8 the estimate of a delta encoding, part 9 followed by u16 node (big
// endian) that node's residual. Arrays are fp32, little-endian, and entries of their own, so that they go to the disk
// straight from the chunk's buffers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/ids.h"
#include "kernels/step/optimizer.h"

namespace tributary {

enum ChunkPart : std::uint8_t {
  kHeaderPart = 0,
  kParamsPart = 1,
  kSlotsPart = 2,
  kEstimatePart = 8,
  kResidualPart = 9
};
static_assert(kSlotsPart + kernels::kMaxSlots <= kEstimatePart);

inline constexpr std::size_t kMinChunkKey = 5, kMaxChunkKey = 16;  // bytes

struct StoredEntry {
  std::string key;
  std::string_view value;
};
struct StoredChunk {
  ChunkIndex chunk;
  std::vector<StoredEntry> entries;  // the header first
};

inline std::uint64_t bytes_of(const StoredChunk& chunk) {  // of its entries
  std::uint64_t bytes = 0;
  for (const StoredEntry& entry : chunk.entries) bytes += entry.value.size();
  return bytes;
}

inline std::string chunk_key(ChunkIndex chunk, std::uint8_t part) {
  return {static_cast<char>(chunk.value >> 24), static_cast<char>(chunk.value >> 16),
          static_cast<char>(chunk.value >> 8), static_cast<char>(chunk.value), static_cast<char>(part)};
}

inline std::string residual_key(ChunkIndex chunk, std::uint32_t node) {
  return chunk_key(chunk, kResidualPart) + static_cast<char>(node >> 8) + static_cast<char>(node);
}

// REQUIRES: a key of at least kMinChunkKey bytes.
inline ChunkIndex chunk_of_key(std::string_view key) {
  const auto byte = [&](std::size_t i) { return std::uint32_t{static_cast<std::uint8_t>(key[i])}; };
  return ChunkIndex(byte(0) << 24 | byte(1) << 16 | byte(2) << 8 | byte(3));
}
inline std::uint8_t part_of_key(std::string_view key) {
  return static_cast<std::uint8_t>(key[4]);
}

// "its parameters", "its state array 1", "the residual of node 3".
inline std::string part_in_words(std::string_view key) {
  const std::uint8_t part = part_of_key(key);
  if (part == kHeaderPart) return "its header";
  if (part == kParamsPart) return "its parameters";
  if (part < kEstimatePart) return "its state array " + std::to_string(part - kSlotsPart);
  if (part == kEstimatePart) return "its estimate";
  if (part == kResidualPart && key.size() == kMinChunkKey + 2) {
    return "the residual of node " +
           std::to_string(static_cast<std::uint8_t>(key[5]) << 8 | static_cast<std::uint8_t>(key[6]));
  }
  return "its part " + std::to_string(part);
}

}  // namespace tributary
