// The safetensors format, in and out: tensors by name in one file that many programs read.
//
//   u64 length of the JSON (little-endian) | JSON, padded with spaces | the tensors' bytes, without gaps
//   JSON: {"NAME": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ..., "__metadata__": {"key": "text"}}
//
// Offsets count from the end of the JSON. Pure: headers as text; callers read and write the files.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"

namespace tributary {

inline constexpr std::size_t kMaxSafetensorsHeader = 100'000'000;  // bytes, as the format's own reader has it
inline constexpr std::size_t kSafetensorsPrefix = 8;               // bytes before the JSON

// The types that become fp32 without loss.
enum class SafetensorsType : std::uint8_t { kF32, kF16, kBf16 };
std::size_t bytes_of(SafetensorsType type);  // of an element

struct SafetensorsEntry {
  std::string name;
  SafetensorsType type = SafetensorsType::kF32;
  std::vector<std::uint64_t> shape;  // empty: a scalar
  std::uint64_t begin = 0, end = 0;  // bytes, from the end of the JSON

  std::uint64_t elements() const { return (end - begin) / bytes_of(type); }
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> tensors;  // by offset
  std::map<std::string, std::string> metadata;
};

// The beginning of a file: length and JSON, padded so that the data is aligned to 8 bytes. REQUIRES: distinct names,
// offsets without gaps.
std::string safetensors_prefix(const SafetensorsHeader& header);

// The length of the JSON, out of the file's first 8 bytes. file_bytes: of the whole file. kMalformed.
Result<std::uint64_t> safetensors_json_bytes(std::span<const unsigned char, kSafetensorsPrefix> prefix,
                                             std::uint64_t file_bytes);
// data_bytes: number of bytes behind the JSON. Never trusts its input: kMalformed names the tensor and its flaw;
// another element type, an overlap, a gap or bytes that no tensor has are refused.
Result<SafetensorsHeader> parse_safetensors(std::string_view json, std::uint64_t data_bytes);

}  // namespace tributary
