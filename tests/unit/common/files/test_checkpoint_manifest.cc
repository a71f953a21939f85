#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "common/config/job_json.h"
#include "common/files/checkpoint_manifest.h"
#include "tests/unit/expect.h"
#include "tests/unit/required.h"

namespace tributary::checkpoint_manifest_test {
namespace {

using testing::contains;

using Json = nlohmann::ordered_json;

Manifest sample() {
  JobConfig job{.name = "mlp", .optimizer = default_optimizer("adamw")};
  Manifest manifest{.created = "2030-01-02T03:04:05Z",
                    .job_json = to_canonical_json(job),
                    .round = Round(40),
                    .view = ViewId(3),
                    .nodes = 2,
                    .world_size = 4,
                    .tensors = {{"a", {1000}}, {"b", {10, 300}}, {"c", {}}},
                    .chunk_elements = 1024,
                    .chunk_shards = {ShardIndex(0), ShardIndex(2), ShardIndex(0), ShardIndex(2)}};
  manifest.shards = {{"shard-0.bin", ShardIndex(0), 2, 123, std::string(32, 'a')},
                     {"shard-2.bin", ShardIndex(2), 2, 456, std::string(32, 'b')}};
  manifest.computed_with = {"A", "B"};
  manifest.rank_states[{1, 3}] = {std::byte{0x00}, std::byte{0xaf}, std::byte{0xff}};
  return manifest;
}

// Returns the error for the sample's manifest after `change`.
std::string flaw(const std::function<void(Json&)>& change, ErrorCode code = ErrorCode::kStore) {
  Json json = Json::parse(to_json(sample()));
  change(json);
  const auto read = failure_of(manifest_from_json(json.dump()));
  CHECK_MESSAGE(read.code == code, read.message);
  return read.message;
}

TEST_CASE("a manifest reads back as it was written") {
  const Manifest manifest = sample();
  const auto read = required(manifest_from_json(to_json(manifest)));
  CHECK(read.created == manifest.created);
  CHECK(read.job_json == manifest.job_json);
  CHECK(read.round == manifest.round);
  CHECK(read.view == manifest.view);
  CHECK(read.nodes == manifest.nodes);
  CHECK(read.rank_states == manifest.rank_states);
  CHECK(read.computed_with == manifest.computed_with);
  CHECK(read.world_size == manifest.world_size);
  CHECK(read.tensors == manifest.tensors);
  CHECK(read.chunk_elements == manifest.chunk_elements);
  CHECK(read.chunk_shards == manifest.chunk_shards);
  CHECK(read.shards == manifest.shards);
  CHECK(bytes_of(read) == 579);
  CHECK(layout_of(read).owner(ChunkIndex(1)).shard == ShardIndex(2));
  CHECK(job_of(read).optimizer.name == "adamw");
}

TEST_CASE("tensors of parts of a model have their holders") {
  Manifest manifest = sample();
  manifest.tensors = {{"a", {1000}, 0, {0, 2}}, {"b", {10, 300}, 0, {1}}, {"c", {}}};
  // A tensor with other holders begins a chunk of its own.
  manifest.chunk_shards.resize(Layout::unowned(manifest.tensors, 1024)->chunks(), ShardIndex(2));
  manifest.shards[1].chunks = static_cast<std::uint32_t>(std::ranges::count(manifest.chunk_shards, ShardIndex(2)));
  const auto read = required(manifest_from_json(to_json(manifest)));
  CHECK(read.tensors == manifest.tensors);
  CHECK(layout_of(read).hash() == layout_of(manifest).hash());
  Json json = Json::parse(to_json(manifest));
  json["layout"]["tensors"][1]["holders"] = {-1};
  CHECK(contains(manifest_from_json(json.dump()).error().message, "the holders of tensor 'b' is [-1]"));
}

TEST_CASE("it says where each tensor lies and how the trainers' samples go on") {
  const Json json = Json::parse(to_json(sample()));
  CHECK(json.at("layout").at("tensors").at(1).at("offset") == 1008);
  CHECK(json.at("optimizer").at("state") == Json({"exp_avg", "exp_avg_sq"}));
  CHECK(json.at("sampler").at("rounds_done") == 40);
  CHECK(json.at("sampler").at("seed") == 1);
}

TEST_CASE("a manifest that contradicts itself is refused, and says where") {
  CHECK(contains(flaw([](Json& m) { m["layout"]["tensors"][1]["offset"] = 1024; }),
                 "tensor 'b' has offset 1024, but by the shapes before it, it begins at 1008"));
  CHECK(contains(flaw([](Json& m) { m["layout"]["flat_elements"] = 1; }), "layout.flat_elements is 1, but"));
  CHECK(contains(flaw([](Json& m) { m["layout"]["tensors"][0]["name"] = "z"; }), "layout.hash is"));
  CHECK(contains(flaw([](Json& m) { m["layout"]["chunk_shards"].push_back(0); }), "its layout is impossible"));
  CHECK(contains(flaw([](Json& m) { m["layout"]["chunk_shards"][0] = 2; }), "'shard-0.bin' has 2 chunks"));
  CHECK(contains(flaw([](Json& m) { m["shards"].erase(1); }), "2 chunks are in shard 2, which has no file"));
  CHECK(contains(flaw([](Json& m) { m["shards"][1]["file"] = "../x"; }), "is named '../x', not 'shard-2.bin'"));
  CHECK(contains(flaw([](Json& m) { m["shards"][1] = m["shards"][0]; }), "not in order: 0 comes after 0"));
  CHECK(contains(flaw([](Json& m) { m["name"] = "other"; }), "its name is 'other', but that of its job is 'mlp'"));
  CHECK(contains(flaw([](Json& m) { m["optimizer"]["state"] = {"exp_avg"}; }), "its optimizer is"));
}

TEST_CASE("what ranks keep may be missing, as in older manifests, but not damaged") {
  Json json = Json::parse(to_json(sample()));
  json.erase("rank_states");
  json.erase("computed_with");
  const auto read = required(manifest_from_json(json.dump()));
  CHECK(read.rank_states.empty());
  CHECK(read.computed_with.empty());
  CHECK(contains(flaw([](Json& j) { j["computed_with"][0] = 7; }, ErrorCode::kMalformed),
                 "computed_with has an entry 7"));
  for (const std::string state : {"0", "0g", "XY"}) {
    CHECK(contains(flaw([&](Json& j) { j["rank_states"][0]["state"] = state; }, ErrorCode::kMalformed), "hexadecimal"));
  }
  CHECK(contains(flaw([](Json& j) { j["rank_states"].push_back(j["rank_states"][0]); }), "twice"));
}

TEST_CASE("what is no manifest is refused") {
  const ErrorCode malformed = ErrorCode::kMalformed;
  CHECK(contains(flaw([](Json& m) { m.erase("round"); }, malformed), "round is missing"));
  CHECK(contains(flaw([](Json& m) { m["round"] = -1; }, malformed), "round is -1"));
  CHECK(contains(flaw([](Json& m) { m["shards"][0]["bytes"] = "many"; }, malformed), "shards[0].bytes is \"many\""));
  CHECK(contains(flaw([](Json& m) { m["layout"] = 3; }, malformed), "layout is no object"));
  CHECK(
      contains(flaw([](Json& m) { m["layout"]["tensors"] = Json::object(); }, malformed), "layout.tensors is no list"));
  CHECK(contains(flaw([](Json& m) { m["layout"]["tensors"][0]["shape"] = {1.5}; }, malformed), "shape of tensor 'a'"));
  CHECK(contains(flaw([](Json& m) { m["layout"]["chunk_shards"][0] = 70000; }, malformed), "an entry 70000"));
  CHECK(contains(flaw([](Json& m) { m["job"]["optimizer"]["lr"] = -1.0; }, ErrorCode::kConfig), "optimizer.lr"));
  CHECK(contains(flaw([](Json& m) { m["format"] = 2; }, ErrorCode::kStoreFormat), "it has format 2"));
  for (const char* text : {"", "{", "[]", "7", "{\"format\":1}"}) CHECK_FALSE(manifest_from_json(text).has_value());
  std::string deep;
  for (int i = 0; i < 100; ++i) deep += "{\"a\":";
  CHECK_FALSE(manifest_from_json(deep).has_value());
}

TEST_CASE("names of state arrays follow the optimizer") {
  OptimizerConfig config;
  CHECK(state_names(config).empty());  // plain SGD
  config["momentum"] = 0.9;
  CHECK(state_names(config) == std::vector<std::string>{"momentum_buffer"});
  config = default_optimizer("adagrad");
  CHECK(state_names(config) == std::vector<std::string>{"sum"});
  config = default_optimizer("lion");
  CHECK(state_names(config) == std::vector<std::string>{"exp_avg"});
  CHECK(checkpoint_name("a.b-c_9", Round(7)) == "a.b-c_9-round-7");
  const std::string changed = checkpoint_name("../x", Round(0));
  CHECK(changed.starts_with("_._x-"));
  CHECK(changed.ends_with("-round-0"));
  CHECK(changed.find('/') == std::string::npos);
  for (const char* other : {"_._x", "_/_x", "..-x", ".._x"}) {
    CHECK(checkpoint_name(other, Round(0)) != changed);
  }
}

}  // namespace
}  // namespace tributary::checkpoint_manifest_test
