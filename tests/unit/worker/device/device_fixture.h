// A node whose ranks compute on simulated devices: the real engine and front ends over tests/fake_device, stepped by
// hand, with the servers played by the test.
#pragma once

#include <doctest/doctest.h>

#include <bit>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "common/daemon/log.h"
#include "kernels/tree_sum.h"
#include "tests/fake_device/fake_device_api.h"
#include "tests/unit/required.h"
#include "tests/unit/worker/reduce/numbered_reducer.h"
#include "worker/device/device_reducer.h"

namespace tributary::testing {

struct DeviceSetup {
  std::uint32_t devices = 1, ranks_per_device = 1, lanes = 1;
  std::uint64_t elements = 5000;
  std::uint64_t seed = 1;
  EncodingSpec push, pull;
  bool always_collectives = false;
  std::uint64_t timeout_ms = 1000;
  FakeFaults faults;
  std::size_t device_bytes = 1u << 30, pinned_bytes = 1u << 30;
  bool threaded = false;  // the engine has its thread; the test runs the devices and makes the lanes
};

inline constexpr std::uint64_t kDeviceChunk = 1024;  // elements; the smallest there is

inline bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

class DeviceNode {
 public:
  // Records the events of a lane.
  struct Lane final : ReduceListener {
    explicit Lane(DeviceNode& owner, std::uint16_t index = 0)
        : node(owner), chunks(owner.layout, owner.start, index, static_cast<std::uint16_t>(owner.setup_.lanes)) {}
    void reduced(LaneChunk& chunk) override {
      const LaneChunk::Gradient& made = chunk.gradient;
      node.reduced_.push_back({chunk.index, made.round, made.weight, {made.frame.begin(), made.frame.end()}});
    }
    void delivered(LaneChunk& chunk, Version version) override { node.delivered_.emplace_back(chunk.index, version); }
    void reducer_failed(Error error) override { failures.push_back(std::move(error)); }
    DeviceNode& node;
    LaneChunks chunks;
    std::vector<Error> failures;
    std::unique_ptr<DeviceReducer> reducer;
  };
  struct Reduced {
    ChunkIndex chunk;
    Round round;
    std::uint64_t weight = 0;
    std::vector<std::byte> payload;
  };

  explicit DeviceNode(const DeviceSetup& setup) : setup_(setup), random_(setup.seed * 7919 + 1) {
    FakeDeviceOptions options{.devices = setup.devices,
                              .seed = setup.seed,
                              .device_bytes = setup.device_bytes,
                              .pinned_bytes = setup.pinned_bytes,
                              .faults = setup.faults};
    api = std::make_shared<FakeDeviceApi>(options);
    const ShardSlots slots{static_cast<std::uint16_t>(setup.lanes), 1.0};
    // Two tensors, so that there is padding between them.
    auto made = required(Layout::make({{"a", {setup.elements - 37}}, {"b", {21}}}, kDeviceChunk, {&slots, 1}));
    layout = std::make_shared<const Layout>(std::move(made));
  }
  // False if it could not be created: `refusal` has the reason.
  bool open() {
    DevicePlan plan{.layout = layout,
                    .push = make_encoding(setup_.push),
                    .pull = make_encoding(setup_.pull),
                    .always_collectives = setup_.always_collectives};
    for (std::uint32_t d = 0; d < setup_.devices; ++d) plan.devices.push_back(DeviceIndex(d));
    // Ranks that share a device are not neighbours.
    for (std::uint32_t r = 0; r < ranks(); ++r) plan.position_of_rank.push_back(r % setup_.devices);
    DeviceReductionOptions options;
    options.engine.timeout_ns = setup_.timeout_ms * 1'000'000;
    options.engine.slots = 2;
    options.engine.ahead = 4;
    if (!setup_.threaded) options.pump = [this] { turn(); };
    auto made = DeviceReduction::create(api, std::move(plan), std::move(options), logger);
    if (!made) {
      refusal = made.error();
      return false;
    }
    reduction = std::move(*made);
    for (std::uint16_t i = 0; i < setup_.lanes && !setup_.threaded; ++i) {
      auto lane = std::make_unique<Lane>(*this, i);
      auto reducer = required(DeviceReducer::create(reduction, lane->chunks, *lane, ring));
      lane->reducer = std::move(reducer);
      lanes.push_back(std::move(lane));
    }
    return true;
  }
  // Ends everything; afterwards nothing may be left on the devices.
  void close() {
    lanes.clear();
    reduction.reset();
    CHECK(api->live() == FakeDeviceApi::Live{});
    for (const std::string& violation : api->violations()) FAIL_CHECK(violation);
  }

  std::uint32_t ranks() const { return setup_.devices * setup_.ranks_per_device; }
  NumberedReducer reducer(ChunkIndex chunk) {
    Lane& lane = *lanes[layout->owner(chunk).lane.value];
    return {lane.chunks, *lane.reducer};
  }
  std::vector<ChunkIndex> shuffled_chunks() {
    std::vector<ChunkIndex> chunks;
    for (std::uint32_t c = 0; c < layout->chunks(); ++c) chunks.push_back(ChunkIndex(c));
    std::ranges::shuffle(chunks, random_);
    return chunks;
  }
  std::mt19937_64& random() { return random_; }

  // Steps one actor: the devices (mostly), the engine or a lane.
  void turn() {
    switch (random_() % 8) {
      case 0:
        step();
        break;
      case 1:
        for (auto& lane : lanes) {
          if (lane->reducer) lane->reducer->poll();
        }
        break;
      default:
        api->run_one();
    }
  }
  void step() {
    if (reduction) reduction->step(now_ns += 1000);  // not while it is being destroyed
  }
  // Takes turns until `condition`; false if many turns do not reach it.
  template <class Condition>
  bool until(Condition condition, int patience = 200'000) {
    for (; !condition(); --patience) {
      if (patience == 0) return false;
      turn();
    }
    return true;
  }
  bool failed() const {
    return std::ranges::all_of(lanes, [](const auto& lane) { return !lane->failures.empty(); });
  }

  // The trainer of `rank` writes a whole gradient and declares it final.
  std::vector<float>& gradient(std::uint32_t rank) {
    std::vector<float> values(layout->flat_elements());
    std::normal_distribution<float> normal;
    for (float& value : values) value = normal(random_);
    return gradient(rank, std::move(values));
  }
  std::vector<float>& gradient(std::uint32_t rank, std::vector<float> given) {
    std::vector<float>& values = gradients_[rank] = std::move(given);
    auto* lent = static_cast<float*>(api->opened(reduction->loan(rank).gradients));
    REQUIRE(lent);
    REQUIRE(reduction->loan(rank).bytes >= values.size() * sizeof(float));
    std::ranges::copy(values, lent);
    return values;
  }
  const std::vector<float>& values(std::uint32_t rank) { return gradients_[rank]; }
  std::span<const float> parameters(std::uint32_t rank) const {
    const auto* lent = static_cast<const float*>(api->opened(reduction->loan(rank).parameters));
    return {lent, layout->flat_elements()};
  }
  // Returns the node's sum of a chunk: tree order on a device, rank order over devices.
  std::vector<float> sum(ChunkIndex chunk) {
    const ChunkRange range = layout->chunk(chunk);
    std::vector<float> total;
    for (std::uint32_t d = 0; d < setup_.devices; ++d) {
      std::vector<const float*> inputs;
      for (std::uint32_t r = d; r < ranks(); r += setup_.devices) inputs.push_back(gradients_[r].data() + range.begin);
      std::vector<float> part(range.elements);
      kernels::tree_sum(inputs, range.elements, part.data());
      if (d == 0) {
        total = std::move(part);
      } else {
        for (std::size_t i = 0; i < total.size(); ++i) total[i] = total[i] + part[i];
      }
    }
    return total;
  }

  const std::vector<Reduced>& reduced() const { return reduced_; }
  const std::vector<std::pair<ChunkIndex, Version>>& delivered() const { return delivered_; }
  void forget() { reduced_.clear(), delivered_.clear(); }

  std::shared_ptr<FakeDeviceApi> api;
  std::shared_ptr<const Layout> layout;
  std::shared_ptr<DeviceReduction> reduction;
  std::shared_ptr<RedoRing> ring;  // before open(): keeps what is pushed
  Round start;                     // before the first round
  std::vector<std::unique_ptr<Lane>> lanes;
  Error refusal;
  std::uint64_t now_ns = 1'000'000'000;

 private:
  const DeviceSetup setup_;
  std::mt19937_64 random_;
  std::map<std::uint32_t, std::vector<float>> gradients_;
  std::vector<Reduced> reduced_;
  std::vector<std::pair<ChunkIndex, Version>> delivered_;
  Logger logger = quiet_logger();
};

}  // namespace tributary::testing
