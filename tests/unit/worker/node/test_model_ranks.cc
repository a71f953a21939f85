// Parts of a model: their holders, from the declaration to the sum (docs/model-parallel.md).
#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>

#include "common/base/model_ranks.h"
#include "tests/unit/expect.h"
#include "tests/unit/required.h"
#include "tests/unit/server/shard/core_fixture.h"
#include "worker/node/job.h"
#include "worker/reduce/host_reducer.h"
#include "worker/reduce/node_gather.h"

namespace tributary::model_ranks_test {
namespace {

using namespace testing;

constexpr std::uint64_t kSmallest = kMinChunkBytes / sizeof(float);

// Two stages that share the first tensor.
std::vector<TensorSpec> two_stages() {
  return {{"tied", {100}, 0, {0, 1}},
          {"first.weight", {1500}, 0, {0}},
          {"first.bias", {20}, 0, {0}},
          {"second.weight", {2500}, 0, {1}},
          {"step", {}, 0, {}}};
}

Layout layout_of(const std::vector<TensorSpec>& tensors) {
  return required(Layout::unowned(tensors, kSmallest));
}

std::string refusal(const Result<ModelRanks>& made) {
  return made ? "(accepted)" : made.error().message;
}

TEST_CASE("all of a chunk has the same holders, and chunks follow each other without a gap") {
  const Layout layout = layout_of(two_stages());
  CHECK(layout.chunks() == 1 + 2 + 3 + 1);
  std::uint64_t end = 0;
  for (std::uint32_t c = 0; c < layout.chunks(); ++c) {
    const ChunkRange range = layout.chunk(ChunkIndex(c));
    CHECK(range.begin == end);
    end = range.begin + range.elements;
    const auto [first, last] = layout.tensors_of(ChunkIndex(c));
    for (std::size_t t = first; t < last; ++t) {
      CHECK(layout.tensors()[t].holders == layout.tensors()[first].holders);
      const auto [begin, past] = layout.chunks_of(t);
      CHECK(begin <= c);
      CHECK(c < past);
    }
  }
  CHECK(end == layout.flat_elements());
  CHECK(layout.chunk(ChunkIndex(2)).elements == 1504 + 32 - kSmallest);  // both tensors of the first stage
}

TEST_CASE("a part has its tensors and chunks, in the same pieces, and knows their numbers in the whole") {
  const Layout whole = layout_of(two_stages());
  const std::uint32_t second[] = {1};
  const auto part = required(whole.part(second));
  CHECK(part.is_part());
  CHECK(part.tensors().size() == 3);
  CHECK(part.parameters() == 100 + 2500 + 1);
  CHECK(part.chunks() == 5);
  CHECK(part.hash() != whole.hash());
  for (std::uint32_t c = 0; c < part.chunks(); ++c) {
    const ChunkIndex there = part.in_whole(ChunkIndex(c));
    CHECK(part.in_part(there) == ChunkIndex(c));
    CHECK(part.chunk(ChunkIndex(c)).elements == whole.chunk(there).elements);
    CHECK(part.owner(ChunkIndex(c)) == whole.owner(there));
  }
  CHECK(part.in_whole(ChunkIndex(1)) == ChunkIndex(3));
  CHECK_FALSE(part.in_part(ChunkIndex(1)));
  CHECK_FALSE(part.in_part(ChunkIndex(99)));
  CHECK(part.tensor_in_part(3) == 1);
  CHECK(part.tensor_in_whole(1) == 3);
  CHECK_FALSE(part.tensor_in_part(1));
  CHECK(part.chunks_of(1) == std::pair<std::uint32_t, std::uint32_t>(1, 4));
}

TEST_CASE("who holds everything has the whole layout, and who holds nothing none") {
  const Layout whole = layout_of(two_stages());
  const std::uint32_t both[] = {0, 1};
  CHECK_FALSE(whole.part(both)->is_part());
  CHECK_FALSE(whole.part({})->is_part());
  const Layout first = layout_of({{"a", {100}, 0, {0}}});
  const std::uint32_t other[] = {1};
  CHECK_FALSE(first.part(other));
}

TEST_CASE("holders count for a layout's identity, and are told in a difference") {
  const std::vector<TensorSpec> plain = {{"a", {100}}}, held = {{"a", {100}, 0, {0, 2}}};
  CHECK(layout_of(plain).hash() != layout_of(held).hash());
  CHECK(contains(describe_difference(plain, held), "of model ranks [0, 2]"));
}

TEST_CASE("holders are ascending, each once, and within their bound") {
  for (const std::vector<std::uint32_t>& holders : {std::vector<std::uint32_t>{1, 0}, {1, 1}, {kMaxModelRanks}}) {
    const auto made = failure_of(Layout::unowned({{"a", {100}, 0, holders}}));
    CHECK(contains(made.message, "ascending order"));
  }
}

TEST_CASE("of each tensor it is known which nodes have it, who gives its values, and how many count its samples") {
  const std::vector<TensorSpec> tensors = two_stages();
  // Two replicas of two stages: a node a stage, and then a node a replica.
  const auto stages = ModelRanks::of({0, 0, 1, 1}, 2, tensors), replicas = ModelRanks::of({0, 1, 0, 1}, 2, tensors);
  REQUIRE(stages);
  REQUIRE(replicas);
  CHECK(stages->nodes_with(tensors[1], 2) == std::vector{NodeRank(0)});
  CHECK(stages->nodes_with(tensors[3], 2) == std::vector{NodeRank(1)});
  CHECK(stages->nodes_with(tensors[0], 2) == std::vector{NodeRank(0), NodeRank(1)});
  CHECK(replicas->nodes_with(tensors[1], 2) == std::vector{NodeRank(0), NodeRank(1)});
  CHECK(stages->first_with(tensors[3]) == 2);
  CHECK(stages->first_node_with(tensors[3], 2) == NodeRank(1));
  CHECK(replicas->first_node_with(tensors[3], 2) == NodeRank(0));
  CHECK(replicas->first_with(tensors[3]) == 1);
  CHECK(stages->copies(tensors[0]) == 2);
  CHECK(stages->copies(tensors[1]) == 1);
  CHECK(stages->copies(tensors[4]) == 2);  // all hold it
  CHECK(std::ranges::equal(stages->of_node(NodeRank(1), 2), std::vector<std::uint32_t>{1, 1}));
}

TEST_CASE("where all ranks have model rank 0 everything is as without model parallelism") {
  const std::vector<TensorSpec> tensors = {{"a", {100}}, {"b", {100}, 0, {0}}};
  for (const std::vector<std::uint32_t>& ranks : {std::vector<std::uint32_t>{}, {0, 0, 0, 0}}) {
    const auto made = required(ModelRanks::of(ranks, 2, tensors));
    CHECK(made.whole());
    CHECK(made.by_rank().empty());
    CHECK(made.nodes_with(tensors[1], 2).size() == 2);
    CHECK(made.first_with(tensors[1]) == 0);
    CHECK(made.first_node_with(tensors[1], 2) == NodeRank(0));
    CHECK(made.of_node(NodeRank(1), 2).empty());
    CHECK(made.copies(tensors[0]) == 1);
  }
}

TEST_CASE("parts that make no whole replicas are refused with the reason") {
  const std::vector<TensorSpec> tensors = two_stages();
  CHECK(contains(refusal(ModelRanks::of({0, 0, 0, 1}, 2, tensors)), "every replica of the model needs each part"));
  CHECK(contains(refusal(ModelRanks::of({1, 1}, 2, tensors)), "0 have model rank 0"));
  CHECK(contains(refusal(ModelRanks::of({0, 1, 0}, 2, tensors)), "2 nodes with the same number of ranks"));
  CHECK(contains(refusal(ModelRanks::of({0, 0}, 2, tensors)), "'tied' is held by model rank 1"));
  CHECK(contains(refusal(ModelRanks::of({0, 1, 2}, 3, {{tensors[0], tensors[1]}})), "model rank 2 holds no tensor"));
  CHECK(contains(refusal(ModelRanks::of({0, kMaxModelRanks}, 2, tensors)), "count from 0"));
}

TEST_CASE("a node's chunk is complete when those of its ranks that hold it are ready") {
  const auto layout = std::make_shared<const Layout>(layout_of(two_stages()));
  LaneChunks chunks(layout, Round(0));
  const std::uint32_t ranks[] = {0, 1};
  NodeGather gather(chunks, 2, ranks);
  for (LaneChunk& chunk : chunks) NodeGather::answered(chunk);
  std::vector<LaneChunk*> done;
  REQUIRE(gather.on_tensor(0, 1, Round(1), 4, {}, done));
  CHECK(done.size() == 1);  // the chunk that only this tensor is in
  REQUIRE(gather.on_tensor(0, 2, Round(1), 4, {}, done));
  REQUIRE(done.size() == 2);
  CHECK(done[1]->gradient.weight == 4);
  REQUIRE(gather.on_tensor(1, 0, Round(1), 4, {}, done));
  CHECK(done.size() == 2);
  REQUIRE(gather.on_tensor(0, 0, Round(1), 4, {}, done));
  REQUIRE(done.size() == 3);
  CHECK(done[2]->gradient.weight == 8);  // of both
  const auto foreign = failure_of(gather.on_tensor(1, 1, Round(1), 4, {}, done));
  CHECK(contains(foreign.message, "does not hold it"));
}

struct Frames final : ReduceListener {
  void reduced(LaneChunk& chunk) override {
    const auto* first = reinterpret_cast<const float*>(chunk.gradient.frame.data());
    values.assign(first, first + chunk.gradient.frame.size() / sizeof(float));
  }
  void delivered(LaneChunk&, Version) override {}
  void reducer_failed(Error) override {}
  std::vector<float> values;
};

TEST_CASE("a node adds the gradients of the ranks that hold a chunk, and nobody else's") {
  const auto layout = std::make_shared<const Layout>(layout_of(two_stages()));
  LaneChunks chunks(layout, Round(0));
  const std::vector<float> one(layout->flat_elements(), 1.0f), two(layout->flat_elements(), 2.0f);
  std::vector<float> parameters(layout->flat_elements());
  const std::uint32_t ranks[] = {0, 1};
  Frames frames;
  HostReducer reducer(chunks, {one.data(), two.data()}, parameters.data(), {}, {}, frames, {}, ranks);
  for (const auto& [chunk, sum] : {std::pair(0u, 3.0f), {1u, 1.0f}, {3u, 2.0f}}) {
    reducer.reduce(chunks[chunk], false);
    CHECK(frames.values == std::vector<float>(layout->chunk(ChunkIndex(chunk)).elements, sum));
  }
}

// A server with the whole of two_stages(), whose nodes have a stage each.
struct Stages {
  Stages()
      : layout(std::make_shared<const Layout>(layout_of(two_stages()))),
        pool(kSmallest * sizeof(float), 64),
        core(job(), pool, out) {}

  ShardJob job() const {
    JobConfig config;
    config.optimizer.lr = 1.0;
    auto view = std::make_shared<ViewPlan>(*view_of(config, layout, {.nodes = 2}));
    view->model_ranks = *ModelRanks::of({0, 1}, 2, layout->tensors());
    ShardJob job;
    job.view = view;
    return job;
  }
  std::size_t elements(std::uint32_t chunk) const { return layout->chunk(ChunkIndex(chunk)).elements; }
  void init(std::uint32_t node, std::uint32_t chunk) {
    core.on_init(peer_of(node), Init{Shard::key(node, chunk)}, frame_of(elements(chunk), 0.0f));
  }
  void push(std::uint32_t node, std::uint32_t chunk, float gradient, std::uint64_t weight) {
    core.on_push(peer_of(node), Push{Shard::key(node, chunk), Round(1), weight, EncodingId::kFp32},
                 payload_of(frame_of(elements(chunk), gradient, EncodingId::kFp32, weight)));
  }
  std::shared_ptr<const Layout> layout;
  BufferPool pool;
  ShardRecorder out;
  ShardCore core;
};

TEST_CASE("a round is complete with the nodes that hold the chunk, and a shared tensor's samples count once") {
  Stages stages;
  for (const std::uint32_t chunk : {0u, 1u}) stages.init(0, chunk);
  stages.init(1, 3);
  CHECK(stages.out.errors.empty());
  stages.push(0, 1, 8.0f, 4);
  CHECK(all_equal(stages.core.params(ChunkIndex(1)), -2.0f));
  stages.push(0, 0, 8.0f, 4);
  CHECK(stages.core.version(ChunkIndex(0)) == Version(0));
  stages.push(1, 0, 12.0f, 4);
  CHECK(all_equal(stages.core.params(ChunkIndex(0)), -5.0f));  // (8 + 12) / 4
  CHECK(stages.out.errors.empty());
}

TEST_CASE("a node may say nothing of a chunk that it does not hold, nor give values that another one gives") {
  Stages stages;
  stages.init(1, 0);
  REQUIRE(stages.out.errors.size() == 1);
  CHECK(contains(stages.out.errors[0].second.message, "only node 0"));
  stages.init(0, 0);
  stages.push(0, 3, 1.0f, 1);
  REQUIRE(stages.out.errors.size() == 2);
  CHECK(contains(stages.out.errors[1].second.message, "is not held by node 0"));
}

TEST_CASE("ranks of a replica that count different samples are told so") {
  Stages stages;
  stages.init(0, 0);
  stages.push(0, 0, 1.0f, 4);
  stages.push(1, 0, 1.0f, 3);
  REQUIRE(stages.out.errors.size() == 1);
  CHECK(contains(stages.out.errors[0].second.message, "tensor 'tied' count 7 samples"));
  CHECK(stages.core.version(ChunkIndex(0)) == Version(0));
}

TEST_CASE("ranks that hold a part each need memory for the gradients of their parts alone") {
  constexpr std::uint64_t kLarge = 1u << 16;
  const Layout layout = layout_of({{"first", {kLarge}, 0, {0}}, {"second", {kLarge}, 0, {1}}});
  const std::uint32_t parts[] = {0, 1};
  const std::uint64_t all = NodeJob::bytes_needed(layout, 2, {}, EncodingSpec{});
  const std::uint64_t own = NodeJob::bytes_needed(layout, 2, parts, EncodingSpec{});
  CHECK(all - own > 2 * kLarge * sizeof(float) - 4 * 65536);  // each lacks the other's, but for pages
  CHECK(all - own <= 2 * kLarge * sizeof(float));
}

}  // namespace
}  // namespace tributary::model_ranks_test
