// Files of safetensors, without the tensors' bytes: of any program.
#include "common/files/safetensors.h"
#include "tests/fuzz/fuzz_target.h"

std::vector<tributary::fuzz::Bytes> tributary::fuzz::seeds() {
  const SafetensorsHeader header{{{"w", SafetensorsType::kF32, {2, 3}, 0, 24},
                                  {"b", SafetensorsType::kBf16, {3}, 24, 30},
                                  {"scale", SafetensorsType::kF16, {}, 30, 32}},
                                 {{"format", "pt"}, {"tributary.order", R"(["w","b","scale"])"}}};
  Bytes file = bytes_of(safetensors_prefix(header));
  file.resize(file.size() + 32);
  return {file, bytes_of(safetensors_prefix({}))};
}

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tributary;
  using namespace tributary::fuzz;
  if (size < kSafetensorsPrefix) return 0;
  const std::span<const unsigned char, kSafetensorsPrefix> prefix(data, kSafetensorsPrefix);
  const Result<std::uint64_t> json = safetensors_json_bytes(prefix, size);
  if (!json) return 0;
  const std::string_view file = text_of(fuzz::bytes_of(data, size));
  const std::uint64_t data_bytes = size - kSafetensorsPrefix - *json;
  const auto header = parse_safetensors(file.substr(kSafetensorsPrefix, *json), data_bytes);
  if (!header) return 0;
  const std::string written = safetensors_prefix(*header);
  const auto again = parse_safetensors(std::string_view(written).substr(kSafetensorsPrefix), data_bytes);
  require(again.has_value(), "what was read is read when it is written again");
  require(safetensors_prefix(*again) == written, "what is written again is the same");
  return 0;
}
