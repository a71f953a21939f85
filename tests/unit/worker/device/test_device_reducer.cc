// The node reduction on simulated devices: values, and that no order of the devices breaks them.
#include <doctest/doctest.h>
#include <poll.h>

#include <thread>

#include "tests/unit/required.h"
#include "tests/unit/worker/device/device_fixture.h"
#include "worker/reduce/host_reducer.h"

namespace tributary::device_reducer_test {

using namespace testing;

namespace {

// Trains with the node as the server would see it: answers are the parameters minus the decoded pushes.
class Training {
 public:
  explicit Training(DeviceNode& node, const DeviceSetup& setup)
      : node_(node),
        push_(make_encoding(setup.push)),
        pull_(make_encoding(setup.pull)),
        values_(node.layout->flat_elements()),
        estimate_(values_.size()),
        residuals_(values_.size()) {
    std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
    for (float& value : values_) value = uniform(node.random());
  }

  // The first answers: parameters as they are.
  bool begin() {
    estimate_ = values_;
    for (const ChunkIndex chunk : node_.shuffled_chunks()) {
      const ChunkRange range = node_.layout->chunk(chunk);
      node_.reducer(chunk).deliver(chunk, Version(0), true,
                                   std::as_bytes(std::span(values_).subspan(range.begin, range.elements)));
      node_.turn();
    }
    return delivered(0);
  }

  // snapshot: every push brings its residual.
  bool round(std::uint64_t number, bool snapshot = false) {
    node_.forget();
    for (std::uint32_t rank = 0; rank < node_.ranks(); ++rank) node_.gradient(rank);
    for (const ChunkIndex chunk : node_.shuffled_chunks()) {
      node_.reducer(chunk).reduce(chunk, Round(number), 3, snapshot);
      node_.turn();
    }
    // Answers come as soon as pushes do, in the middle of other chunks' reduction.
    std::size_t answered = 0;
    const auto answer_new = [&] {
      while (answered < node_.reduced().size()) answer(node_.reduced()[answered++], number, snapshot);
      return node_.delivered().size() == node_.layout->chunks();
    };
    if (!node_.until(answer_new)) return false;
    return delivered(number);
  }
  const std::vector<float>& residuals() const { return residuals_; }

 private:
  void answer(const DeviceNode::Reduced& push, std::uint64_t number, bool snapshot) {
    const ChunkRange range = node_.layout->chunk(push.chunk);
    const std::size_t n = range.elements;
    CHECK(push.round == Round(number));
    CHECK(push.weight == 3);
    // The expected frame.
    std::vector<float> sum = node_.sum(push.chunk);
    kernels::scale(sum.data(), n, push_->push_scale(push.weight));
    std::vector<std::byte> expected(push_->bytes(n));
    std::vector<std::uint32_t> scratch(push_->scratch_words(n));
    float* residual = push_->keeps_residual() ? residuals_.data() + range.begin : nullptr;
    push_->encode(sum.data(), n, 0, n, residual, expected.data());
    push_->finish(n, residual, expected.data(), scratch);
    REQUIRE(push.payload.size() == (snapshot ? residual_offset(expected.size()) + n * sizeof(float) : expected.size()));
    CHECK(std::memcmp(push.payload.data(), expected.data(), expected.size()) == 0);
    if (snapshot) {
      CHECK(std::memcmp(push.payload.data() + residual_offset(expected.size()), residual, n * sizeof(float)) == 0);
    }
    // The servers' part.
    std::vector<float> decoded(n);
    decode_push(*push_, push.payload.data(), push.weight, n, 0, n, decoded.data());
    for (std::size_t i = 0; i < n; ++i) values_[range.begin + i] -= 0.125f * decoded[i];
    std::vector<std::byte> frame(pull_->bytes(n));
    pull_->encode_update(values_.data() + range.begin, n, 0, n, estimate_.data() + range.begin, frame.data());
    if (!pull_->is_delta()) pull_->decode(frame.data(), n, 0, n, estimate_.data() + range.begin);
    node_.reducer(push.chunk).release(push.chunk);
    node_.reducer(push.chunk).deliver(push.chunk, Version(number), false, frame);
  }

  bool delivered(std::uint64_t version) {
    if (!node_.until([&] { return node_.delivered().size() == node_.layout->chunks(); })) return false;
    for (const auto& [chunk, at] : node_.delivered()) CHECK(at == Version(version));
    for (std::uint32_t rank = 0; rank < node_.ranks(); ++rank) CHECK(same_bits(node_.parameters(rank), estimate_));
    return true;
  }

  DeviceNode& node_;
  const std::shared_ptr<const Encoding> push_, pull_;
  std::vector<float> values_;     // the servers'
  std::vector<float> estimate_;   // what the trainers see
  std::vector<float> residuals_;  // what the node must hold
};

const EncodingSpec kInt8(EncodingId::kInt8), kOneBit(EncodingId::kOneBit), kDelta(EncodingId::kInt8Delta);

EncodingSpec spec(const char* name) {
  return required(parse_encoding(name));
}

void train(const DeviceSetup& setup, std::uint64_t rounds) {
  CAPTURE(setup.devices);
  CAPTURE(setup.ranks_per_device);
  CAPTURE(setup.seed);
  CAPTURE(encoding_name(setup.push.id));
  DeviceNode node(setup);
  REQUIRE(node.open());
  Training training(node, setup);
  REQUIRE(training.begin());
  for (std::uint64_t round = 1; round <= rounds; ++round) REQUIRE(training.round(round));
  CHECK((node.api->collectives() > 0) == (setup.devices > 1 || setup.always_collectives));
  node.close();
}

}  // namespace

TEST_CASE("any number of devices and ranks reduces, encodes, decodes and gathers") {
  for (const std::uint32_t devices : {1u, 2u, 3u, 4u, 8u}) {
    for (const std::uint32_t ranks : {1u, 2u, 3u}) {
      for (std::uint64_t seed = 1; seed <= 3; ++seed) {
        train({.devices = devices,
               .ranks_per_device = ranks,
               .lanes = 1 + static_cast<std::uint32_t>(seed % 2),
               .elements = 13 * kDeviceChunk + 333,  // fills no group of any of these widths
               .seed = seed},
              2);
      }
    }
  }
}

TEST_CASE("every encoding, on one device and on several") {
  const std::pair<const char*, const char*> pairs[] = {
      {"bf16", "bf16"},     {"fp16", "fp16"}, {"int8", "int8-delta"}, {"onebit", "fp32"}, {"topk:0.01", "int8-delta"},
      {"topk:0.05", "bf16"}};
  for (const auto& [push, pull] : pairs) {
    for (const std::uint32_t devices : {1u, 3u}) {
      for (const std::uint32_t ranks : {1u, 2u}) {
        train({.devices = devices,
               .ranks_per_device = ranks,
               .elements = 7 * kDeviceChunk + 100,
               .seed = devices * 10 + ranks,
               .push = spec(push),
               .pull = spec(pull)},
              4);
      }
    }
  }
}

TEST_CASE("many seeds, more groups than staging: no order of the devices breaks anything") {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    train({.devices = 1 + static_cast<std::uint32_t>(seed % 4),
           .ranks_per_device = 1 + static_cast<std::uint32_t>(seed % 3 == 0),
           .lanes = 2,
           .elements = (20 + seed % 17) * kDeviceChunk + 5,
           .seed = 1000 + seed,
           .push = seed % 2 == 0 ? kInt8 : EncodingSpec(),
           .pull = seed % 2 == 0 ? kDelta : EncodingSpec()},
          2);
  }
}

TEST_CASE("a model smaller than a group, and than a chunk") {
  for (const std::uint64_t elements : {64ull, 500ull, 2500ull}) {
    train({.devices = 8, .ranks_per_device = 2, .elements = elements}, 2);
  }
}

TEST_CASE("one device uses no communicator, unless it is asked to") {
  for (const bool always : {false, true}) {
    train({.ranks_per_device = 2, .always_collectives = always}, 2);
  }
}

TEST_CASE("one device gives the bits of the host's reduction") {
  for (const char* push : {"fp32", "bf16", "int8", "onebit", "topk:0.02"}) {
    for (const std::uint32_t ranks : {2u, 3u}) {
      CAPTURE(push);
      DeviceSetup setup{.ranks_per_device = ranks, .seed = ranks, .push = spec(push)};
      DeviceNode node(setup);
      REQUIRE(node.open());
      for (std::uint32_t rank = 0; rank < ranks; ++rank) node.gradient(rank);

      struct Frames final : ReduceListener {
        void reduced(LaneChunk& chunk) override {
          frames[chunk.index.value] = {chunk.gradient.frame.begin(), chunk.gradient.frame.end()};
        }
        void delivered(LaneChunk&, Version) override {}
        void reducer_failed(Error) override {}
        std::map<std::uint32_t, std::vector<std::byte>> frames;
      } host;
      std::vector<const float*> gradients;
      for (std::uint32_t rank = 0; rank < ranks; ++rank) gradients.push_back(node.values(rank).data());
      std::vector<float> parameters(node.layout->flat_elements());
      LaneChunks chunks(node.layout, Round(0));
      HostReducer reducer(chunks, gradients, parameters.data(), setup.push, {}, host);
      const NumberedReducer on_host{chunks, reducer};
      for (const ChunkIndex chunk : node.shuffled_chunks()) {
        on_host.reduce(chunk, Round(1), 1, false);
        node.reducer(chunk).reduce(chunk, Round(1), 1, false);
      }
      REQUIRE(node.until([&] { return node.reduced().size() == node.layout->chunks(); }));
      for (const auto& push_made : node.reduced()) CHECK(push_made.payload == host.frames[push_made.chunk.value]);
      node.close();
    }
  }
}

TEST_CASE("residuals go with a push that asks, come back to a fresh node, and are kept as of the last answered round") {
  for (const std::uint32_t devices : {1u, 2u}) {
    for (std::uint64_t seed = 1; seed <= 8; ++seed) {
      CAPTURE(seed);
      DeviceSetup setup{
          .devices = devices, .elements = 5 * kDeviceChunk + 7, .seed = seed, .push = seed % 2 == 0 ? kInt8 : kOneBit};
      DeviceNode node(setup);
      REQUIRE(node.open());
      Training training(node, setup);
      REQUIRE(training.begin());
      REQUIRE(training.round(1));
      REQUIRE(training.round(2, true));
      const std::vector<float> kept = training.residuals();
      // A round begins that nobody will complete, in part.
      const std::vector<ChunkIndex> chunks = node.shuffled_chunks();
      for (std::size_t i = 0; i < chunks.size() / 2 + seed % 2; ++i) {
        node.reducer(chunks[i]).reduce(chunks[i], Round(3), 1, i % 2 == 0);
        for (std::uint64_t t = 0; t < seed * 20; ++t) node.turn();
      }
      for (const ChunkIndex chunk : node.shuffled_chunks()) {
        const ChunkRange range = node.layout->chunk(chunk);
        const auto residual = node.reducer(chunk).residual(chunk);
        CHECK(std::memcmp(residual.data(), kept.data() + range.begin, residual.size()) == 0);
        CHECK(residual.size() == range.elements * sizeof(float));
        CHECK(node.reducer(chunk).residual(chunk).data() == residual.data());
      }
      node.close();

      // A new node gets them, and goes on as the old one would have.
      DeviceNode next(setup);
      REQUIRE(next.open());
      for (const ChunkIndex chunk : next.shuffled_chunks()) {
        const ChunkRange range = next.layout->chunk(chunk);
        next.reducer(chunk).restore_residual(chunk,
                                             std::as_bytes(std::span(kept).subspan(range.begin, range.elements)));
      }
      for (std::uint32_t rank = 0; rank < next.ranks(); ++rank) next.gradient(rank);
      const auto push = make_encoding(setup.push);
      if (seed % 3 != 0) {
        for (const ChunkIndex chunk : next.shuffled_chunks()) next.reducer(chunk).reduce(chunk, Round(3), 1, true);
        REQUIRE(next.until([&] { return next.reduced().size() == next.layout->chunks(); }));
      } else {
        // It leaves at once: what it was given is what it keeps.
        for (const ChunkIndex chunk : next.shuffled_chunks()) {
          const auto residual = next.reducer(chunk).residual(chunk);
          CHECK(std::memcmp(residual.data(), kept.data() + next.layout->chunk(chunk).begin, residual.size()) == 0);
        }
      }
      for (const auto& made : next.reduced()) {
        const ChunkRange range = next.layout->chunk(made.chunk);
        const std::vector<float> sum = next.sum(made.chunk);
        std::vector<float> residual(kept.begin() + static_cast<std::ptrdiff_t>(range.begin),
                                    kept.begin() + static_cast<std::ptrdiff_t>(range.begin + range.elements));
        std::vector<std::byte> frame(push->bytes(range.elements));
        push->encode(sum.data(), range.elements, 0, range.elements, residual.data(), frame.data());
        CHECK(std::memcmp(made.payload.data(), frame.data(), frame.size()) == 0);
        CHECK(std::memcmp(made.payload.data() + residual_offset(frame.size()), residual.data(),
                          residual.size() * sizeof(float)) == 0);
      }
      next.close();
    }
  }
}

TEST_CASE("pushes are kept for lost servers, and a round that is done again has its bits") {
  for (const char* name : {"fp32", "bf16", "fp16", "int8", "onebit", "topk:0.1"}) {
    for (const std::uint32_t devices : {1u, 3u}) {
      CAPTURE(name);
      CAPTURE(devices);
      const DeviceSetup setup{.devices = devices, .ranks_per_device = 2, .push = spec(name)};
      DeviceNode node(setup);
      const auto ring = required(RedoRing::create(JobId(5), NodeRank(0), *node.layout, setup.push, 4));
      node.ring = ring;
      REQUIRE(node.open());
      Training training(node, setup);
      REQUIRE(training.begin());
      for (std::uint64_t round = 1; round <= 3; ++round) {
        REQUIRE(training.round(round));
        for (const DeviceNode::Reduced& push : node.reduced()) {
          const auto kept = required(ring->find(push.chunk, Round(round)));
          CHECK(kept.weight == push.weight);
          CHECK(std::ranges::equal(kept.bytes, push.payload));
        }
      }
      CHECK(ring->kept().first == Round(1));
      CHECK(ring->kept().last == Round(3));
      const std::vector<DeviceNode::Reduced> last = node.reduced();
      // The next view begins after round 2.
      ring->forget_after(Round(2));
      DeviceNode next(setup);
      next.ring = ring;
      next.start = Round(2);
      REQUIRE(next.open());
      for (std::uint32_t rank = 0; rank < next.ranks(); ++rank) next.gradient(rank, node.values(rank));
      for (const ChunkIndex chunk : next.shuffled_chunks()) next.reducer(chunk).reduce(chunk, Round(3), 3, false);
      REQUIRE(next.until([&] { return next.reduced().size() == last.size(); }));
      for (const DeviceNode::Reduced& push : next.reduced()) {
        const auto before = std::ranges::find(last, push.chunk, &DeviceNode::Reduced::chunk);
        REQUIRE(before != last.end());
        CHECK(std::ranges::equal(push.payload, before->payload));
        next.reducer(push.chunk).release(push.chunk);
      }
      next.close();
      node.close();
    }
  }
}

TEST_CASE("nothing is allocated on devices after the start, and poll tells when nothing is under way") {
  DeviceSetup setup;
  setup.devices = 2;
  DeviceNode node(setup);
  REQUIRE(node.open());
  const FakeDeviceApi::Live live = node.api->live();
  CHECK_FALSE(node.lanes[0]->reducer->poll());
  CHECK(node.lanes[0]->reducer->wake_fd() >= 0);
  Training training(node, setup);
  REQUIRE(training.begin());
  REQUIRE(training.round(1));
  CHECK_FALSE(node.lanes[0]->reducer->poll());
  CHECK(node.api->live() == live);
  for (std::uint32_t rank = 0; rank < node.ranks(); ++rank) node.gradient(rank);
  node.reducer(ChunkIndex(0)).reduce(ChunkIndex(0), Round(2), 1, false);
  CHECK(node.lanes[0]->reducer->poll());
  node.close();
}

TEST_CASE("with threads: the engine's own, one per lane that sleeps on its eventfd, and the devices") {
  DeviceSetup setup{.devices = 3,
                    .ranks_per_device = 2,
                    .lanes = 2,
                    .elements = 17 * kDeviceChunk + 9,
                    .push = kInt8,
                    .timeout_ms = 60'000,
                    .threaded = true};
  DeviceNode node(setup);
  const std::jthread devices([&node](const std::stop_token& over) {
    while (!over.stop_requested()) {
      if (!node.api->run_one()) std::this_thread::yield();
    }
  });
  REQUIRE(node.open());
  for (std::uint32_t rank = 0; rank < node.ranks(); ++rank) node.gradient(rank);

  // A lane and its server in one: answers what it is told at once, with ones.
  constexpr std::uint64_t kRounds = 3;
  struct Lane final : ReduceListener {
    void reduced(LaneChunk& chunk) override {
      bytes += chunk.gradient.frame.size();
      reducer->release(chunk);
      answer(chunk, Version(chunk.gradient.round.value), false);
    }
    void delivered(LaneChunk& chunk, Version version) override {
      if (version.value < kRounds) {
        chunk.gradient = {Round(version.value + 1), 1, {}, {}};
        reducer->reduce(chunk, version.value == 1);
      } else {
        ++finished;
      }
    }
    void reducer_failed(Error error) override { failure = error.message; }
    void answer(LaneChunk& chunk, Version version, bool full) const {
      const std::vector<float> ones(chunk.range.elements, 1.0f);
      reducer->deliver(chunk, version, full, std::as_bytes(std::span(ones)));
    }
    std::unique_ptr<LaneChunks> chunks;
    std::unique_ptr<DeviceReducer> reducer;
    std::size_t bytes = 0, finished = 0, residuals = 0;
    std::string failure;
  };
  Lane lanes[2];
  std::vector<std::thread> threads;
  for (std::uint16_t i = 0; i < 2; ++i) {
    threads.emplace_back([&, i] {
      Lane& lane = lanes[i];
      lane.chunks = std::make_unique<LaneChunks>(node.layout, Round(0), i, 2);
      LaneChunks& chunks = *lane.chunks;
      lane.reducer = std::move(*DeviceReducer::create(node.reduction, chunks, lane));
      for (LaneChunk& chunk : chunks) lane.answer(chunk, Version(0), true);
      while (lane.finished < chunks.size() && lane.failure.empty()) {
        pollfd item{lane.reducer->wake_fd(), POLLIN, 0};
        ::poll(&item, 1, 1000);
        lane.reducer->poll();
      }
      for (const LaneChunk& chunk : chunks) lane.residuals += lane.reducer->residual(chunk).size();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (Lane& lane : lanes) {
    CHECK(lane.failure.empty());
    CHECK(lane.reducer->busy_ns() > 0);
    CHECK(lane.residuals > 0);
    lane.reducer.reset();
  }
  for (const float value : node.parameters(5)) REQUIRE(value == 1.0f);
  node.close();
}

}  // namespace tributary::device_reducer_test
