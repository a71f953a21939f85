// Checkpoints to safetensors and back.
#include <doctest/doctest.h>

#include <cstring>
#include <filesystem>
#include <iterator>

#include "kernels/cast.h"
#include "server/checkpoint/checkpoint_convert.h"
#include "server/checkpoint/safetensors.h"
#include "tests/unit/expect.h"
#include "tests/unit/required.h"
#include "tests/unit/server/checkpoint/checkpoint_samples.h"

namespace tributary::testing::checkpoint_convert_test {
namespace {

namespace fs = std::filesystem;

std::string bytes_of_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

struct Parsed {
  SafetensorsHeader header;
  std::string data;
};
Parsed parsed(const std::string& path) {
  const std::string all = bytes_of_file(path);
  unsigned char length[kSafetensorsPrefix];
  std::memcpy(length, all.data(), sizeof length);
  const std::uint64_t json = safetensors_json_bytes(length, all.size()).value();
  const std::string data = all.substr(kSafetensorsPrefix + json);
  auto header = required(parse_safetensors(all.substr(kSafetensorsPrefix, json), data.size()));
  return {std::move(header), data};
}

float value_at(const Parsed& file, const std::string& name, std::uint64_t element) {
  for (const SafetensorsEntry& tensor : file.header.tensors) {
    if (tensor.name != name) continue;
    float value = 0;
    std::memcpy(&value, file.data.data() + tensor.begin + element * sizeof value, sizeof value);
    return value;
  }
  FAIL("no tensor " << name);
  return 0;
}

ImportOptions options_for(const TempDir& dir, const std::string& optimizer = "adamw") {
  ImportOptions options;
  options.job.name = "new";
  options.job.chunk_bytes = 4096;
  options.job.optimizer = default_optimizer(optimizer);
  options.directory = dir / "in";
  options.created = "2030-01-02T03:04:05Z";
  return options;
}

TEST_CASE("an export has every tensor with its values, without the padding, and the state if it is wanted") {
  const TempDir dir;
  const std::string path = write_sample(dir / "all"), file = dir / "model.safetensors";
  const auto plain = required(export_safetensors(path, file, false));
  CHECK(plain.tensors == 3);
  CHECK(plain.parameters == 4001);
  CHECK(plain.bytes == fs::file_size(file));
  const Parsed model = parsed(file);
  REQUIRE(model.header.tensors.size() == 3);
  CHECK(model.data.size() == 4001 * sizeof(float));
  CHECK(model.header.tensors[1].shape == std::vector<std::uint64_t>{10, 300});
  CHECK(model.header.metadata.at("tributary.round") == "7");
  // "b" begins at element 1008 of the flat space and runs through chunks of both shards.
  for (const std::uint64_t i : {0ull, 15ull, 16ull, 1039ull, 1040ull, 2999ull}) {
    CHECK(value_at(model, "b", i) == flat_value(0, 1008 + i));
  }
  CHECK(value_at(model, "a", 999) == flat_value(0, 999));
  CHECK(value_at(model, "c", 0) == flat_value(0, 4016 - 4016 % 16));

  REQUIRE(export_safetensors(path, file, true));
  const Parsed whole = parsed(file);
  CHECK(whole.header.tensors.size() == 9);
  CHECK(value_at(whole, "b.exp_avg", 1040) == flat_value(1, 1008 + 1040));
  CHECK(value_at(whole, "a.exp_avg_sq", 3) == flat_value(2, 3));
}

TEST_CASE("an export that cannot be made leaves no file") {
  const TempDir dir;
  const std::string path = write_sample(dir / "all"), file = dir / "model.safetensors";
  flip_bit(path + "/shard-1.bin", 5000);
  const auto damaged = failure_of(export_safetensors(path, file, false));
  CHECK(contains(damaged.message, "shard-1.bin"));
  CHECK_FALSE(fs::exists(file));
  CHECK_FALSE(fs::exists(file + ".partial"));
  CHECK_FALSE(export_safetensors(path, "/proc/none/model.safetensors", false).has_value());
  CHECK_FALSE(export_safetensors(dir / "none", file, false).has_value());
}

TEST_CASE("a shard's file of another checkpoint is not exported") {
  const TempDir dir;
  const std::string path = write_sample(dir / "all"), file = dir / "model.safetensors";
  SUBCASE("of the same round") {}
  SUBCASE("of another round") {
    write_sample(dir / "other", sample_manifest(8), 1);
    fs::rename(dir / "other/mlp-round-8", dir / "other/mlp-round-7");
  }
  if (!fs::exists(dir / "other")) write_sample(dir / "other", sample_manifest(), 1);
  fs::copy_file(dir / "other/mlp-round-7/shard-1.bin", path + "/shard-1.bin", fs::copy_options::overwrite_existing);
  REQUIRE_FALSE(verify_checkpoint(path).findings.empty());
  const auto refused = failure_of(export_safetensors(path, file, false));
  CHECK(contains(refused.message, verify_checkpoint(path).findings.front()));
  CHECK_FALSE(fs::exists(file));
  CHECK_FALSE(fs::exists(file + ".partial"));
}

TEST_CASE("what was exported imports as a checkpoint of round 0 with the same parameters and fresh state") {
  const TempDir dir;
  const std::string path = write_sample(dir / "all"), file = dir / "model.safetensors", back = dir / "back.safetensors";
  REQUIRE(export_safetensors(path, file, true));  // its state arrays stay out: the order names the tensors
  const auto imported = required(import_safetensors(file, options_for(dir)));
  CHECK(imported.path == dir / "in" + "/new-round-0");
  CHECK(verify_checkpoint(imported.path).findings.empty());
  const auto manifest = required(open_checkpoint(imported.path));
  CHECK(manifest.round == Round(0));
  CHECK(manifest.tensors == sample_manifest().tensors);
  REQUIRE(export_safetensors(imported.path, back, true));
  const Parsed before = parsed(file), after = parsed(back);
  CHECK(before.data.substr(0, 4001 * 4) == after.data.substr(0, 4001 * 4));
  CHECK(after.data.substr(4001 * 4) == std::string(2 * 4001 * 4, '\0'));
  // Again: the same state, so nothing to write; another one is not overwritten.
  CHECK(import_safetensors(file, options_for(dir)).has_value());
  flip_bit(file, fs::file_size(file) - 3 * 4001 * 4 + 8);
  CHECK_FALSE(import_safetensors(file, options_for(dir)).has_value());
}

TEST_CASE("half precision becomes fp32, and adagrad's accumulator its initial value") {
  const TempDir dir;
  const float values[] = {1.0f, -2.5f, 0.125f, 3.0f};
  std::uint16_t half[4], brain[4];
  kernels::fp32_to_fp16(values, 4, half);
  kernels::fp32_to_bf16(values, 4, brain);
  SafetensorsHeader header;
  header.tensors = {{"layer1.weight", SafetensorsType::kF16, {4}, 0, 8},
                    {"layer0.bias", SafetensorsType::kF32, {4}, 8, 24},
                    {"layer0.weight", SafetensorsType::kBf16, {2, 2}, 24, 32}};
  const auto raw = [](const auto& array) { return std::string(reinterpret_cast<const char*>(array), sizeof array); };
  const std::string file = dir / "half.safetensors", out = dir / "out.safetensors";
  write_file(file, safetensors_prefix(header) + raw(half) + raw(values) + raw(brain));
  ImportOptions options = options_for(dir, "adagrad");
  options.job.optimizer["initial_accumulator"] = 0.5;
  const auto imported = required(import_safetensors(file, options));
  // Names of the built-in trainer: its order.
  CHECK(open_checkpoint(imported.path)->tensors ==
        std::vector<TensorSpec>{{"layer0.weight", {2, 2}}, {"layer0.bias", {4}}, {"layer1.weight", {4}}});
  REQUIRE(export_safetensors(imported.path, out, true));
  const Parsed model = parsed(out);
  for (std::uint64_t i = 0; i < 4; ++i) {
    CHECK(value_at(model, "layer0.weight", i) == values[i]);
    CHECK(value_at(model, "layer0.bias", i) == values[i]);
    CHECK(value_at(model, "layer1.weight", i) == values[i]);
    CHECK(value_at(model, "layer0.bias.sum", i) == 0.5f);
  }
  options.job.name = "ordered";
  options.order = {"layer1.weight", "layer0.weight"};
  CHECK(open_checkpoint(import_safetensors(file, options)->path)->tensors.size() == 2);
  options.order = {"layer2.weight"};
  const auto missing = failure_of(import_safetensors(file, options));
  CHECK(contains(missing.message, "has no tensor 'layer2.weight'"));
}

TEST_CASE("files that are none are refused, and nothing is left") {
  const TempDir dir;
  const std::string file = dir / "bad.safetensors";
  for (const std::string& bytes : {std::string(), std::string(4, '\0'), std::string(8, '\xff'),
                                   std::string(8, '\0') + "x", std::string("\x02\0\0\0\0\0\0\0{}", 10)}) {
    write_file(file, bytes);
    CHECK_FALSE(import_safetensors(file, options_for(dir)).has_value());
  }
  SafetensorsHeader header;
  header.tensors = {{"w", SafetensorsType::kF32, {0}, 0, 0}};
  write_file(file, safetensors_prefix(header));
  const auto empty = failure_of(import_safetensors(file, options_for(dir)));
  CHECK(contains(empty.message, "dimension of 0"));
  CHECK_FALSE(import_safetensors(dir / "none", options_for(dir)).has_value());
  CHECK_FALSE(fs::exists(dir / "in"));
}

}  // namespace
}  // namespace tributary::testing::checkpoint_convert_test
