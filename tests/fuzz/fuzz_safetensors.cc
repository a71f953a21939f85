// Files of safetensors, without the tensors' bytes: of any program.
#include "server/checkpoint/safetensors.h"
#include "tests/fuzz/fuzz_target.h"

namespace tributary::fuzz::safetensors {

std::vector<Bytes> seeds() {
  const SafetensorsHeader header{{{"w", SafetensorsType::kF32, {2, 3}, 0, 24},
                                  {"b", SafetensorsType::kBf16, {3}, 24, 30},
                                  {"scale", SafetensorsType::kF16, {}, 30, 32}},
                                 {{"format", "pt"}, {"tributary.order", R"(["w","b","scale"])"}}};
  Bytes file = bytes_of(safetensors_prefix(header));
  file.resize(file.size() + 32);
  return {file, bytes_of(safetensors_prefix({}))};
}

void run(std::span<const std::byte> bytes) {
  if (bytes.size() < kSafetensorsPrefix) return;
  const std::span<const unsigned char, kSafetensorsPrefix> prefix(reinterpret_cast<const unsigned char*>(bytes.data()),
                                                                  kSafetensorsPrefix);
  const Result<std::uint64_t> json = safetensors_json_bytes(prefix, bytes.size());
  if (!json) return;
  const std::string_view file = text_of(bytes);
  const std::uint64_t data_bytes = bytes.size() - kSafetensorsPrefix - *json;
  const auto header = parse_safetensors(file.substr(kSafetensorsPrefix, *json), data_bytes);
  if (!header) return;
  const std::string written = safetensors_prefix(*header);
  const auto again = parse_safetensors(std::string_view(written).substr(kSafetensorsPrefix), data_bytes);
  require(again.has_value(), "what was read is read when it is written again");
  require(safetensors_prefix(*again) == written, "what is written again is the same");
}

Target target() {
  return {"safetensors", seeds, run};
}

}  // namespace tributary::fuzz::safetensors
