// Nodes of an all-reduce job over simulated devices: the real engines over one tests/fake_device, stepped by hand. The
// test plays the trainers and the exchange of keys.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "common/config/job_plan.h"
#include "tests/fake_device/fake_device_api.h"
#include "tests/unit/required.h"
#include "worker/allreduce/allreduce_engine.h"
#include "worker/device/settle_pace.h"

namespace tributary::testing {

struct EngineSetup {
  std::uint32_t nodes = 1, devices = 1;
  std::string algorithm = "hierarchical", optimizer = "adamw";
  bool always = false;
  std::uint64_t elements = 7000, seed = 1, timeout_ms = 1000;
  FakeFaults faults;
};

inline constexpr std::uint64_t kEngineChunk = 1024;

class EngineCluster {
 public:
  struct Node final : BucketOutput {
    SaidSettings settings(ChunkIndex) const override { return {}; }
    bool wants(ChunkIndex, Round round) override { return round == wanted; }
    void capture(ChunkIndex chunk, Round, const float* parameters, std::span<const float* const> state,
                 std::uint64_t step) override {
      const std::size_t n = engine->plan().elements(chunk);
      std::vector<float>& values = captured[chunk.value];
      values.assign(parameters, parameters + n);
      for (const float* array : state) values.insert(values.end(), array, array + n);
      values.push_back(static_cast<float>(step));
    }
    void stepped(ChunkIndex chunk, Round round) override {
      CHECK(versions[chunk.value] + 1 == round.value);
      versions[chunk.value] = round.value;
      if (wanted == round) CHECK(captured.contains(chunk.value));
    }
    Error replicas_differ(Round) override { return {ErrorCode::kInternal, "replicas differ"}; }
    void exchange_failed(const std::string&, const Error& error) override { failures.push_back(error); }

    std::shared_ptr<AllreduceDevices> devices;
    std::unique_ptr<AllreduceEngine> engine;
    std::vector<float> host_parameters;
    std::unique_ptr<ReplicaState> host;
    std::map<std::uint32_t, std::uint64_t> versions;       // by chunk
    std::map<std::uint32_t, std::vector<float>> captured;  // by chunk: parameters, state, step
    Round wanted{~0ull};
    std::vector<Error> failures;
  };

  explicit EngineCluster(const EngineSetup& setup) : setup_(setup), random_(setup.seed * 7919 + 1) {
    FakeDeviceOptions options{.devices = setup.nodes * setup.devices, .seed = setup.seed, .faults = setup.faults};
    api = std::make_shared<FakeDeviceApi>(options);
    const ShardSlots slots{};
    // Two tensors, so that there is padding between them, each of a group of its own.
    auto made = required(Layout::make({{"a", {setup.elements - 37}}, {"b", {21}, 1}}, kEngineChunk, {&slots, 1}));
    layout = std::make_shared<const Layout>(std::move(made));
    JobConfig config;
    config.optimizer = default_optimizer(setup.optimizer);
    config.optimizer.lr = 0.01;
    if (setup.optimizer == "sgd") config.optimizer["momentum"] = 0.9;
    config.groups.assign(1, config.optimizer);
    config.groups.front().weight_decay = 0.5;
    job = JobPlan::of(config);
    reference = host_state(reference_parameters);
    for (std::uint32_t n = 0; n < setup.nodes; ++n) open(n);
  }

  // Connects all engines; false if one fails, or they do not finish.
  bool connect(const std::function<bool(std::uint32_t)>& which = [](std::uint32_t) { return true; }) {
    const AllreducePlan& plan = nodes[0]->engine->plan();
    for (std::uint32_t i = 0; plan.between_nodes() && i < plan.communicators(); ++i) {
      keys.push_back(*api->make_comm_key());
    }
    for (std::uint32_t n = 0; n < setup_.nodes; ++n) {
      if (!which(n)) continue;
      if (Status begun = nodes[n]->engine->connect(keys); !begun) refusal = begun.error();
    }
    if (!refusal.message.empty()) return false;
    return until([&] {
             return failed() || std::ranges::all_of(nodes, [](const auto& node) { return node->engine->connected(); });
           }) &&
           !failed();
  }
  void load() {
    for (auto& node : nodes) {
      REQUIRE(node->engine->load(*node->host, [&] { return api->run_one(), true; }));
    }
  }
  // Makes one round on all nodes; false if it did not end.
  bool round(std::uint64_t round, std::uint64_t weight = 1) {
    for (std::uint32_t n = 0; n < setup_.nodes; ++n) ready(n, weight);
    step_reference(weight * setup_.nodes);
    return reached(round);
  }
  bool reached(std::uint64_t round) {
    return until([&] {
             return failed() || std::ranges::all_of(nodes, [&](const auto& node) { return at(*node, round); });
           }) &&
           !failed();
  }
  bool at(const Node& node, std::uint64_t round) const {
    return std::ranges::all_of(node.versions, [&](const auto& chunk) { return chunk.second == round; });
  }
  // The node's ranks write whole gradients and are ready, chunk by chunk in any order.
  void ready(std::uint32_t n, std::uint64_t weight) {
    Node& node = *nodes[n];
    std::normal_distribution<float> normal;
    for (std::uint32_t d = 0; d < setup_.devices; ++d) {
      std::vector<float>& values = gradients_[n * setup_.devices + d];
      values.assign(layout->flat_elements(), 0.0f);
      for (float& value : values) value = normal(random_);
      auto* lent = static_cast<float*>(api->opened(node.devices->loan(d).gradients));
      REQUIRE(lent);
      std::ranges::copy(values, lent);
    }
    std::vector<std::uint32_t> order(layout->chunks());
    for (std::uint32_t c = 0; c < order.size(); ++c) order[c] = c;
    std::ranges::shuffle(order, random_);
    for (const std::uint32_t c : order) {
      node.engine->ready(ChunkIndex(c), {weight, 0});
      turn();
    }
  }
  // Steps the reference by the sums, in the fake's order of addition: within the node first, if the plan does so.
  void step_reference(std::uint64_t total) {
    const bool in_node = nodes[0]->engine->plan().sharded();
    std::vector<float> sum;
    const auto add = [](std::vector<float>& to, const std::vector<float>& values) {
      if (to.empty()) {
        to = values;
        return;
      }
      for (std::size_t i = 0; i < to.size(); ++i) to[i] = to[i] + values[i];
    };
    for (std::uint32_t n = 0; n < setup_.nodes; ++n) {
      std::vector<float> of_node;
      for (std::uint32_t d = 0; d < setup_.devices; ++d) {
        add(in_node ? of_node : sum, gradients_[n * setup_.devices + d]);
      }
      if (in_node) add(sum, of_node);
    }
    for (std::uint32_t c = 0; c < layout->chunks(); ++c) {
      reference->step(ChunkIndex(c), sum.data() + layout->chunk(ChunkIndex(c)).begin, total);
    }
  }
  // Checks that every device of every node has the reference's parameters.
  bool same_as_reference() const {
    for (const auto& node : nodes) {
      for (std::uint32_t d = 0; d < setup_.devices; ++d) {
        const auto* lent = static_cast<const float*>(api->opened(node->devices->loan(d).parameters));
        if (std::memcmp(lent, reference_parameters.data(), layout->flat_elements() * sizeof(float)) != 0) return false;
      }
    }
    return true;
  }
  // Ends everything; afterwards nothing may be left on the devices.
  void close() {
    for (auto& node : nodes) node->engine->abort_collectives();
    for (auto& node : nodes) {
      REQUIRE(until([&] { return node->engine->quiet(); }));
    }
    for (auto& node : nodes) {
      node->engine.reset();
      node->devices.reset();
    }
    CHECK(api->live() == FakeDeviceApi::Live{});
    for (const std::string& violation : api->violations()) FAIL_CHECK(violation);
  }

  bool failed() const {
    return std::ranges::any_of(nodes, [](const auto& node) { return !node->failures.empty(); });
  }
  std::string failures() const {
    std::string all;
    for (const auto& node : nodes) {
      for (const Error& error : node->failures) all += error.message + "\n";
    }
    return all;
  }
  // Steps one actor: the devices, mostly, or an engine.
  void turn() {
    if (random_() % 8 != 0) {
      api->run_one();
      return;
    }
    Node& node = *nodes[random_() % nodes.size()];
    if (node.engine) node.engine->step(now_ns += 1000);
  }
  template <class Condition>
  bool until(Condition condition, int patience = 200'000) {
    for (; !condition(); --patience) {
      if (patience == 0) return false;
      turn();
    }
    return true;
  }

  std::shared_ptr<FakeDeviceApi> api;
  std::shared_ptr<const Layout> layout;
  std::shared_ptr<const JobPlan> job;
  std::vector<std::unique_ptr<Node>> nodes;
  std::vector<CommKey> keys;
  std::vector<float> reference_parameters;
  std::unique_ptr<ReplicaState> reference;
  Error refusal;
  std::uint64_t now_ns = 1'000'000'000;

 private:
  std::unique_ptr<ReplicaState> host_state(std::vector<float>& parameters) {
    parameters.resize(layout->flat_elements());
    for (std::size_t i = 0; i < parameters.size(); ++i) parameters[i] = static_cast<float>(i % 101) / 101.0f - 0.5f;
    return std::make_unique<ReplicaState>(job, layout, parameters.data());
  }
  void open(std::uint32_t n) {
    nodes.push_back(std::make_unique<Node>());
    Node& node = *nodes.back();
    AllreducePlan plan;
    plan.node.layout = layout;
    plan.node.always_collectives = setup_.always;
    for (std::uint32_t d = 0; d < setup_.devices; ++d) {
      plan.node.devices.push_back(DeviceIndex(n * setup_.devices + d));
      plan.node.position_of_rank.push_back(d);
    }
    plan.flat = setup_.algorithm == "flat";
    plan.nodes = setup_.nodes;
    plan.rank = NodeRank(n);
    auto devices = required(AllreduceDevices::create(api, plan, static_cast<std::uint32_t>(job->optimizer->slots()),
                                                     setup_.timeout_ms * 1'000'000));
    node.devices = devices;
    auto engine = required(AllreduceEngine::create(node.devices, job, Round(0), node));
    node.engine = std::move(engine);
    node.host = host_state(node.host_parameters);
    for (std::uint32_t c = 0; c < layout->chunks(); ++c) node.versions[c] = 0;
  }

  const EngineSetup setup_;
  std::mt19937_64 random_;
  std::map<std::uint32_t, std::vector<float>> gradients_;  // by rank
};

}  // namespace tributary::testing
