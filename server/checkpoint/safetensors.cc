#include "server/checkpoint/safetensors.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

namespace tributary {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kMetadata[] = "__metadata__";
constexpr std::pair<SafetensorsType, std::string_view> kTypes[] = {
    {SafetensorsType::kF32, "F32"}, {SafetensorsType::kF16, "F16"}, {SafetensorsType::kBf16, "BF16"}};

std::string shown(const Json& value) {
  const std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  return text.size() <= 80 ? text : text.substr(0, 80) + "...";
}

tl::unexpected<Error> malformed(const std::string& what) {
  return fail(ErrorCode::kMalformed, what + "; it is no whole safetensors file");
}

// A list of non-negative numbers, or nothing.
std::optional<std::vector<std::uint64_t>> numbers(const Json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_array()) return std::nullopt;
  std::vector<std::uint64_t> list;
  for (const Json& value : *found) {
    if (!value.is_number_unsigned()) return std::nullopt;
    list.push_back(value.get<std::uint64_t>());
  }
  return list;
}

Result<SafetensorsEntry> read_entry(const std::string& name, const Json& object, std::uint64_t data_bytes) {
  const std::string what = "tensor '" + name + "'";
  if (!object.is_object()) return malformed(what + " is " + shown(object) + ", no object");
  SafetensorsEntry entry;
  entry.name = name;
  const auto type = object.find("dtype");
  const auto known = std::ranges::find_if(kTypes, [&](const auto& t) {
    return type != object.end() && type->is_string() && t.second == type->get<std::string>();
  });
  if (known == std::end(kTypes)) {
    return fail(ErrorCode::kMalformed, what + " has dtype " + (type == object.end() ? "null" : shown(*type)) +
                                           "; F32, F16 and BF16 can be read: convert it first");
  }
  entry.type = known->first;
  auto shape = numbers(object, "shape");
  const auto offsets = numbers(object, "data_offsets");
  if (!shape || !offsets || offsets->size() != 2) return malformed(what + " lacks a shape or its data_offsets");
  entry.shape = std::move(*shape);
  entry.begin = offsets->front();
  entry.end = offsets->back();
  if (entry.begin > entry.end || entry.end > data_bytes) {
    return malformed(what + " lies at bytes " + std::to_string(entry.begin) + " to " + std::to_string(entry.end) +
                     " of " + std::to_string(data_bytes));
  }
  // No product of dimensions is larger than the bytes that are there, or it is wrong.
  std::uint64_t elements = 1;
  bool fits = true;
  for (const std::uint64_t dimension : entry.shape) {
    fits = fits && (dimension == 0 || elements <= data_bytes / dimension);
    elements = fits ? elements * dimension : 0;
  }
  if (!fits || elements * bytes_of(entry.type) != entry.end - entry.begin) {
    return malformed(what + " has shape " + shown(object.at("shape")) + " of " + shown(*type) +
                     ", which does not take " + std::to_string(entry.end - entry.begin) + " bytes");
  }
  return entry;
}

}  // namespace

std::size_t bytes_of(SafetensorsType type) {
  return type == SafetensorsType::kF32 ? 4 : 2;
}

std::string safetensors_prefix(const SafetensorsHeader& header) {
  Json root = Json::object();
  if (!header.metadata.empty()) root[kMetadata] = header.metadata;
  for (const SafetensorsEntry& entry : header.tensors) {
    root[entry.name] = {{"dtype", kTypes[static_cast<std::size_t>(entry.type)].second},
                        {"shape", entry.shape},
                        {"data_offsets", {entry.begin, entry.end}}};
  }
  std::string json = root.dump(-1, ' ', false, Json::error_handler_t::replace);
  json.resize((json.size() + 7) / 8 * 8, ' ');
  std::string out;
  for (int shift = 0; shift < 64; shift += 8) out += static_cast<char>(std::uint64_t{json.size()} >> shift);
  return out + json;
}

Result<std::uint64_t> safetensors_json_bytes(std::span<const unsigned char, kSafetensorsPrefix> prefix,
                                             std::uint64_t file_bytes) {
  std::uint64_t bytes = 0;
  for (int i = 7; i >= 0; --i) bytes = bytes << 8 | prefix[static_cast<std::size_t>(i)];
  if (bytes > kMaxSafetensorsHeader) {
    return malformed("its header has " + std::to_string(bytes) + " bytes; at most " +
                     std::to_string(kMaxSafetensorsHeader) + " are possible");
  }
  if (file_bytes < kSafetensorsPrefix || bytes > file_bytes - kSafetensorsPrefix) {
    return malformed("its header has " + std::to_string(bytes) + " bytes, the file only " + std::to_string(file_bytes));
  }
  return bytes;
}

Result<SafetensorsHeader> parse_safetensors(std::string_view json, std::uint64_t data_bytes) {
  constexpr int kMaxDepth = 3;
  bool too_deep = false;
  std::set<std::string> names;
  std::string repeated;
  const auto watch = [&](int depth, Json::parse_event_t event, Json& parsed) {
    too_deep = too_deep || depth > kMaxDepth;
    if (event == Json::parse_event_t::key && depth == 1 && !names.insert(parsed.get<std::string>()).second) {
      repeated = parsed.get<std::string>();
    }
    return !too_deep;
  };
  const Json root = Json::parse(json, watch, /*allow_exceptions=*/false);
  if (too_deep || !root.is_object()) return malformed("its header is no JSON object");
  if (!repeated.empty()) return malformed("its header names '" + repeated + "' twice");
  SafetensorsHeader header;
  for (const auto& [name, value] : root.items()) {
    if (name == kMetadata) {
      if (!value.is_object()) return malformed("its __metadata__ is no object");
      for (const auto& [key, text] : value.items()) {
        if (!text.is_string()) return malformed("its __metadata__ has '" + key + "', which is no text");
        header.metadata[key] = text.get<std::string>();
      }
      continue;
    }
    Result<SafetensorsEntry> entry = read_entry(name, value, data_bytes);
    if (!entry) return tl::unexpected(entry.error());
    header.tensors.push_back(std::move(*entry));
  }
  std::ranges::sort(header.tensors, [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  std::uint64_t at = 0;
  for (const SafetensorsEntry& entry : header.tensors) {
    if (entry.begin != at) {
      return malformed("tensor '" + entry.name + "' begins at byte " + std::to_string(entry.begin) + ", " +
                       (entry.begin < at ? "within" : "away from") + " the end of the one before it at " +
                       std::to_string(at));
    }
    at = entry.end;
  }
  if (at != data_bytes) {
    return malformed("its tensors take " + std::to_string(at) + " bytes, the file has " + std::to_string(data_bytes));
  }
  return header;
}

}  // namespace tributary
