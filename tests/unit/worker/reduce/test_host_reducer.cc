#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>

#include "kernels/tree_sum.h"
#include "tests/unit/required.h"
#include "tests/unit/worker/reduce/numbered_reducer.h"
#include "worker/reduce/host_reducer.h"
#include "worker/reduce/redo_ring.h"

namespace tributary::host_reducer_test {

namespace {

struct Collected final : ReduceListener {
  void reduced(LaneChunk& c) override {
    chunk = c.index, round = c.gradient.round, weight = c.gradient.weight, frame = c.gradient.frame;
    ++calls;
  }
  void delivered(LaneChunk& c, Version v) override { deliveries.emplace_back(c.index, v); }
  void reducer_failed(Error) override { ++failures; }
  ChunkIndex chunk;
  Round round;
  std::uint64_t weight = 0;
  std::span<const std::byte> frame;
  int calls = 0, failures = 0;
  std::vector<std::pair<ChunkIndex, Version>> deliveries;
};

struct Node {
  Node(std::uint32_t ranks, std::vector<std::uint64_t> sizes) {
    std::vector<TensorSpec> tensors;
    for (std::size_t i = 0; i < sizes.size(); ++i)
      tensors.push_back({std::string("t").append(std::to_string(i)), {sizes[i]}});
    const ShardSlots one{};
    auto made = required(Layout::make(tensors, 4096, {&one, 1}));
    layout = std::make_shared<const Layout>(std::move(made));
    for (std::uint32_t c = 0; c < layout->chunks(); ++c) chunks.push_back(ChunkIndex(c));
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    memory.resize(ranks);
    parameters.resize(layout->flat_elements());
    for (auto& gradient : memory) {
      gradient.resize(layout->flat_elements());
      for (float& value : gradient) value = normal(random) * 1e3f;
      pointers.push_back(gradient.data());
    }
  }
  std::vector<float> sum(ChunkRange range) const {
    std::vector<const float*> at;
    for (const float* pointer : pointers) at.push_back(pointer + range.begin);
    std::vector<float> out(range.elements);
    kernels::tree_sum(at, range.elements, out.data());
    return out;
  }
  std::shared_ptr<const Layout> layout;
  std::vector<ChunkIndex> chunks;
  std::vector<std::vector<float>> memory;
  std::vector<const float*> pointers;
  std::vector<float> parameters;
};

struct Reducer {
  Reducer(Node& node, EncodingSpec push, EncodingSpec pull, ReduceListener& out, std::shared_ptr<RedoRing> ring = {},
          Round start = {})
      : Reducer(node, node.pointers, push, pull, out, std::move(ring), start) {}
  Reducer(Node& node, std::vector<const float*> gradients, EncodingSpec push, EncodingSpec pull, ReduceListener& out,
          std::shared_ptr<RedoRing> ring = {}, Round start = {})
      : chunks(node.layout, start),
        host(chunks, std::move(gradients), node.parameters.data(), push, pull, out, std::move(ring)) {}
  const testing::NumberedReducer* operator->() const { return &by_number; }

  LaneChunks chunks;
  HostReducer host;
  const testing::NumberedReducer by_number{chunks, host};
};

}  // namespace

TEST_CASE("one rank with fp32 lends the trainer's own memory") {
  Node node(1, {5000, 77});
  Collected out;
  Reducer reducer(node, EncodingId::kFp32, EncodingId::kFp32, out);
  CHECK(reducer.host.frame_bytes() == 0);
  CHECK(HostReducer::frame_bytes_for(*node.layout, 1, EncodingId::kFp32) == 0);
  reducer->reduce(ChunkIndex(1), Round(3), 12, false);
  CHECK(out.calls == 1);
  CHECK(out.chunk == ChunkIndex(1));
  CHECK(out.round == Round(3));
  CHECK(out.weight == 12);
  const ChunkRange range = node.layout->chunk(ChunkIndex(1));
  CHECK(static_cast<const void*>(out.frame.data()) == node.pointers[0] + range.begin);
  CHECK(out.frame.size() == range.elements * sizeof(float));
  CHECK_FALSE(reducer.host.poll());
}

TEST_CASE("one rank with fp32 lends its memory also where pushes are kept, and the ring has a copy") {
  Node node(1, {5000, 77});
  Collected out;
  const auto ring = required(RedoRing::create(JobId(5), NodeRank(0), *node.layout, EncodingId::kFp32, 4));
  Reducer reducer(node, EncodingId::kFp32, EncodingId::kFp32, out, ring);
  CHECK(reducer.host.lends_gradients());
  CHECK((reducer.host.frames() == std::vector<const SharedMemory*>{&ring->memory()}));
  reducer->reduce(ChunkIndex(1), Round(3), 12, false);
  const ChunkRange range = node.layout->chunk(ChunkIndex(1));
  CHECK(static_cast<const void*>(out.frame.data()) == node.pointers[0] + range.begin);
  const auto kept = required(ring->find(ChunkIndex(1), Round(3)));
  CHECK(kept.weight == 12);
  REQUIRE(kept.bytes.size() == range.elements * sizeof(float));
  CHECK(std::memcmp(kept.bytes.data(), node.pointers[0] + range.begin, kept.bytes.size()) == 0);
}

TEST_CASE("what one rank with fp32 writes into the ring is sent from there, and kept as it is") {
  Node node(1, {5000, 77});
  Collected out;
  const auto ring = required(RedoRing::create(JobId(5), NodeRank(0), *node.layout, EncodingId::kFp32, 4));
  Reducer reducer(node, {nullptr}, EncodingId::kFp32, EncodingId::kFp32, out, ring);
  CHECK_FALSE(reducer.host.lends_gradients());
  CHECK((reducer.host.frames() == std::vector<const SharedMemory*>{&ring->memory()}));
  CHECK(reducer.host.frame_bytes() == 0);
  for (const std::uint64_t round : {3, 4, 5, 6, 7, 8}) {
    auto* flat = reinterpret_cast<float*>(ring->memory().data() + ring->slot_offset(Round(round)));
    const ChunkRange range = node.layout->chunk(ChunkIndex(1));
    std::fill_n(flat + range.begin, range.elements, static_cast<float>(round));
    reducer->reduce(ChunkIndex(1), Round(round), 12, false);
    CHECK(static_cast<const void*>(out.frame.data()) == flat + range.begin);
    CHECK(out.frame.size() == range.elements * sizeof(float));
    CHECK(out.round == Round(round));
    reducer->release(ChunkIndex(1));
    const auto kept = required(ring->find(ChunkIndex(1), Round(round)));
    CHECK(kept.weight == 12);
    CHECK(kept.bytes.data() == out.frame.data());
  }
  CHECK(ring->find(ChunkIndex(1), Round(5)));
  CHECK_FALSE(ring->find(ChunkIndex(1), Round(4)));
}

TEST_CASE("several ranks are summed in tree order and encoded, whatever the encoding") {
  for (const std::uint32_t ranks : {1u, 2u, 3u, 5u}) {
    for (const EncodingId id : {EncodingId::kFp32, EncodingId::kBf16, EncodingId::kFp16}) {
      if (ranks == 1 && id == EncodingId::kFp32) continue;
      CAPTURE(ranks);
      Node node(ranks, {5000, 77, 4096});
      Collected out;
      Reducer reducer(node, id, EncodingId::kFp32, out);
      CHECK(reducer.host.frame_bytes() <= HostReducer::frame_bytes_for(*node.layout, ranks, id));
      for (const ChunkIndex chunk : node.chunks) {
        const ChunkRange range = node.layout->chunk(chunk);
        reducer->reduce(chunk, Round(1), ranks, false);
        std::vector<float> sum = node.sum(range);
        const Encoding& encoding = encoding_for(id);
        std::vector<std::byte> expected(encoding.bytes(range.elements));
        kernels::scale(sum.data(), range.elements, encoding.push_scale(ranks));
        encoding.encode(sum.data(), range.elements, 0, range.elements, nullptr, expected.data());
        REQUIRE(out.frame.size() == expected.size());
        CHECK(std::memcmp(out.frame.data(), expected.data(), expected.size()) == 0);
      }
      CHECK(reducer.host.busy_ns() > 0);
    }
  }
}

TEST_CASE("a frame stays unchanged while other chunks are reduced, and is reused after its release") {
  Node node(2, {20'000});
  Collected out;
  Reducer reducer(node, EncodingId::kFp32, EncodingId::kFp32, out);
  reducer->reduce(ChunkIndex(0), Round(1), 1, false);
  const auto first = out.frame;
  const std::vector<std::byte> copy(first.begin(), first.end());
  for (std::uint32_t c = 1; c < node.layout->chunks(); ++c) reducer->reduce(ChunkIndex(c), Round(1), 1, false);
  CHECK(std::memcmp(first.data(), copy.data(), copy.size()) == 0);
  reducer->release(ChunkIndex(0));
  reducer->reduce(ChunkIndex(0), Round(2), 1, false);
  CHECK(out.frame.data() == first.data());
}

TEST_CASE("feedback encodings carry what was left of one round into the next, and put the residual behind the frame") {
  for (const char* name : {"int8", "topk:0.02", "topk:0.1", "onebit"}) {
    for (const std::uint32_t ranks : {1u, 3u}) {
      CAPTURE(name);
      CAPTURE(ranks);
      const auto encoding = make_encoding(*parse_encoding(name));
      Node node(ranks, {5000, 77, 4096});
      Collected out;
      Reducer reducer(node, encoding->spec(), EncodingId::kFp32, out);
      CHECK(reducer.host.frame_bytes() <= HostReducer::frame_bytes_for(*node.layout, ranks, encoding->spec()));
      for (const ChunkIndex chunk : node.chunks) {
        const ChunkRange range = node.layout->chunk(chunk);
        const std::vector<float> sum = node.sum(range);
        std::vector<float> residual(range.elements), before;
        std::vector<std::byte> expected(encoding->bytes(range.elements));
        std::vector<std::uint32_t> scratch(encoding->scratch_words(range.elements));
        for (std::uint64_t round = 1; round <= 3; ++round) {
          before = residual;
          encoding->encode(sum.data(), range.elements, 0, range.elements, residual.data(), expected.data());
          encoding->finish(range.elements, residual.data(), expected.data(), scratch);
          const bool with_residual = round == 2;
          reducer->reduce(chunk, Round(round), ranks, with_residual);
          REQUIRE(out.frame.size() == (with_residual ? residual_offset(expected.size()) + range.elements * sizeof(float)
                                                     : expected.size()));
          CHECK(std::memcmp(out.frame.data(), expected.data(), expected.size()) == 0);
          if (with_residual) {
            CHECK(std::memcmp(out.frame.data() + residual_offset(expected.size()), residual.data(),
                              range.elements * sizeof(float)) == 0);
          }
          // An open round may never be completed: what counts is the residual before it.
          CHECK(std::memcmp(reducer->residual(chunk).data(), before.data(), range.elements * sizeof(float)) == 0);
          reducer->release(chunk);
          CHECK(std::memcmp(reducer->residual(chunk).data(), residual.data(), range.elements * sizeof(float)) == 0);
        }
      }
    }
  }
}

TEST_CASE("feedback encodings go on from a ring where another process stopped, in the same bits") {
  for (const char* name : {"int8", "topk:0.1", "onebit"}) {
    CAPTURE(name);
    const EncodingSpec spec = *parse_encoding(name);
    Node node(2, {5000, 77});
    Collected calm, out;
    Reducer undisturbed(node, spec, {}, calm);
    const auto ring = required(RedoRing::create(JobId(5), NodeRank(0), *node.layout, spec, 4));
    std::unique_ptr<Reducer> reducer;
    const auto begin = [&](std::uint64_t start) {
      ring->forget_after(Round(start));
      reducer = std::make_unique<Reducer>(node, spec, EncodingSpec{}, out, ring, Round(start));
      CHECK(reducer->host.frame_bytes() == 0);
    };
    const auto reduce = [&](std::uint64_t round, bool with_residual) {
      for (const ChunkIndex chunk : node.chunks) {
        (*reducer)->reduce(chunk, Round(round), 2, with_residual);
        (*reducer)->release(chunk);
      }
    };
    begin(0);
    for (std::uint64_t round = 1; round <= 3; ++round) reduce(round, false);
    SUBCASE("at the last round") {
      begin(3);
    }
    SUBCASE("at the one before: that round is made again") {
      begin(2);
      reduce(3, false);
    }
    for (std::uint64_t round = 1; round <= 5; ++round) {
      for (const ChunkIndex chunk : node.chunks) {
        const bool with_residual = round == 4;
        undisturbed->reduce(chunk, Round(round), 2, with_residual);
        undisturbed->release(chunk);
        const auto kept = ring->find(chunk, Round(round));
        if (round <= 3) {
          REQUIRE(kept);
          CHECK(std::ranges::equal(kept->bytes, calm.frame));
          continue;
        }
        (*reducer)->reduce(chunk, Round(round), 2, with_residual);
        CHECK(std::ranges::equal(out.frame, calm.frame));
        (*reducer)->release(chunk);
        CHECK(std::ranges::equal((*reducer)->residual(chunk), undisturbed->residual(chunk)));
      }
    }
  }
}

TEST_CASE("a restored residual is added to the first round's sum") {
  Node node(1, {1024});
  const auto encoding = make_encoding(EncodingId::kInt8);
  std::vector<float> residual(1024, 0.375f);
  Collected out;
  Reducer reducer(node, EncodingId::kInt8, EncodingId::kFp32, out, {}, Round(7));
  reducer->restore_residual(ChunkIndex(0), std::as_bytes(std::span(residual)));
  reducer->reduce(ChunkIndex(0), Round(8), 1, false);
  const std::size_t elements = node.layout->chunk(ChunkIndex(0)).elements;
  REQUIRE(elements == residual.size());
  std::vector<std::byte> expected(encoding->bytes(elements));
  encoding->encode(node.pointers[0], elements, 0, elements, residual.data(), expected.data());
  CHECK(std::memcmp(out.frame.data(), expected.data(), expected.size()) == 0);
}

TEST_CASE("answers are delivered whole, decoded, or added, and said to be there") {
  Node node(1, {4096});
  const auto delta = make_encoding(EncodingId::kInt8Delta);
  Collected out;
  Reducer reducer(node, EncodingId::kFp32, EncodingId::kInt8Delta, out);
  const std::vector<float> start(4096, 2.0f), target(4096, 2.5f);
  reducer->deliver(ChunkIndex(0), Version(0), true, std::as_bytes(std::span(start)));
  CHECK(node.parameters == start);
  std::vector<float> estimate = start;
  std::vector<std::byte> frame(delta->bytes(4096));
  delta->encode_update(target.data(), 4096, 0, 4096, estimate.data(), frame.data());
  reducer->deliver(ChunkIndex(0), Version(1), false, frame);
  CHECK(node.parameters == estimate);
  CHECK(out.deliveries ==
        std::vector<std::pair<ChunkIndex, Version>>{{ChunkIndex(0), Version(0)}, {ChunkIndex(0), Version(1)}});
}

}  // namespace tributary::host_reducer_test
