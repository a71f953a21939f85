#include <doctest/doctest.h>

#include <string>

#include "server/checkpoint/safetensors.h"
#include "tests/unit/expect.h"
#include "tests/unit/required.h"

namespace tributary::safetensors_test {
namespace {

using testing::contains;

std::string refusal(const std::string& json, std::uint64_t data_bytes) {
  const auto parsed = failure_of(parse_safetensors(json, data_bytes));
  CHECK(parsed.code == ErrorCode::kMalformed);
  return parsed.message;
}

SafetensorsHeader sample() {
  SafetensorsHeader header;
  header.tensors = {{"layer0.weight", SafetensorsType::kF32, {2, 3}, 0, 24},
                    {"scale", SafetensorsType::kF32, {}, 24, 28},
                    {"half", SafetensorsType::kBf16, {3}, 28, 34}};
  header.metadata = {{"format", "pt"}};
  return header;
}

TEST_CASE("what is written is the format, byte for byte") {
  SafetensorsHeader header;
  header.tensors = {{"w", SafetensorsType::kF32, {2, 1}, 0, 8}};
  const std::string json = R"({"w":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]}})";
  const std::string prefix = safetensors_prefix(header);
  REQUIRE(prefix.size() % 8 == 0);
  const std::size_t padded = (json.size() + 7) / 8 * 8;
  CHECK(prefix == std::string(1, static_cast<char>(padded)) + std::string(7, '\0') + json +
                      std::string(padded - json.size(), ' '));
}

TEST_CASE("a header that was written reads back, whatever the order in the text") {
  const std::string prefix = safetensors_prefix(sample());
  unsigned char length[kSafetensorsPrefix];
  for (std::size_t i = 0; i < sizeof length; ++i) length[i] = static_cast<unsigned char>(prefix[i]);
  const auto bytes = required(safetensors_json_bytes(length, prefix.size() + 34));
  CHECK(bytes == prefix.size() - kSafetensorsPrefix);
  const auto parsed = required(parse_safetensors(prefix.substr(kSafetensorsPrefix), 34));
  REQUIRE(parsed.tensors.size() == 3);
  CHECK(parsed.tensors[0].name == "layer0.weight");
  CHECK(parsed.tensors[0].shape == std::vector<std::uint64_t>{2, 3});
  CHECK(parsed.tensors[1].shape.empty());
  CHECK(parsed.tensors[1].elements() == 1);
  CHECK(parsed.tensors[2].type == SafetensorsType::kBf16);
  CHECK(parsed.tensors[2].elements() == 3);
  CHECK(parsed.metadata.at("format") == "pt");

  const auto sorted = required(parse_safetensors(
      R"({"b":{"dtype":"F16","shape":[2],"data_offsets":[4,8]},"a":{"shape":[1],"dtype":"F32","data_offsets":[0,4]}})",
      8));
  CHECK(sorted.tensors[0].name == "a");
  CHECK(sorted.tensors[1].type == SafetensorsType::kF16);
}

TEST_CASE("what is no safetensors file is refused with what is wrong") {
  CHECK(contains(refusal("[]", 0), "no JSON object"));
  CHECK(contains(refusal("{", 0), "no JSON object"));
  CHECK(contains(refusal(R"({"a":3})", 0), "tensor 'a' is 3, no object"));
  CHECK(contains(refusal(R"({"a":{"dtype":"F64","shape":[1],"data_offsets":[0,8]}})", 8),
                 "tensor 'a' has dtype \"F64\"; F32, F16 and BF16 can be read"));
  CHECK(contains(refusal(R"({"a":{"shape":[1],"data_offsets":[0,8]}})", 8), "has dtype null"));
  CHECK(contains(refusal(R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4), "lacks a shape"));
  CHECK(contains(refusal(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0]}})", 4), "lacks a shape or its"));
  CHECK(contains(refusal(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4),
                 "shape [2] of \"F32\", which does not take 4 bytes"));
  CHECK(contains(refusal(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 4), "lies at bytes 4 to 8 of 4"));
  CHECK(contains(refusal(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[8,4]}})", 16), "lies at bytes 8 to 4"));
  // Dimensions whose product wraps around to what fits.
  CHECK(contains(refusal(R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0),
                 "which does not take 0 bytes"));
  const std::string one = R"("a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]})";
  CHECK(contains(refusal("{" + one + R"(,"b":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}})", 12),
                 "tensor 'b' begins at byte 8, away from the end of the one before it at 4"));
  CHECK(contains(refusal("{" + one + R"(,"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4),
                 "tensor 'b' begins at byte 0, within the end of the one before it at 4"));
  CHECK(contains(refusal("{" + one + "}", 8), "its tensors take 4 bytes, the file has 8"));
  CHECK(contains(refusal("{" + one + "," + one + "}", 4), "names 'a' twice"));
  CHECK(contains(refusal("{" + one + R"(,"__metadata__":{"k":1}})", 4), "which is no text"));
  CHECK(contains(refusal("{" + one + R"(,"__metadata__":7})", 4), "__metadata__ is no object"));
  CHECK(contains(refusal(R"({"a":{"b":{"c":{"d":{}}}}})", 4), "no JSON object"));

  unsigned char large[kSafetensorsPrefix] = {1, 225, 245, 5, 0, 0, 0, 0};  // 100 000 001
  CHECK_FALSE(safetensors_json_bytes(large, 1ull << 40).has_value());
  large[0] = 0;
  CHECK(safetensors_json_bytes(large, 1ull << 40).has_value());
  CHECK_FALSE(safetensors_json_bytes(large, 100).has_value());
  unsigned char none[kSafetensorsPrefix] = {};
  CHECK(safetensors_json_bytes(none, 8).value() == 0);
  CHECK_FALSE(safetensors_json_bytes(none, 7).has_value());
}

}  // namespace
}  // namespace tributary::safetensors_test
