// Several nodes' all-reduce lanes in one process, on the loopback interface, with trainers that the test plays and a
// coordinator that only forwards addresses. The ranks' gradients are in shared memory, or on devices.
#pragma once

#include <doctest/doctest.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "common/config/optimizer_config.h"
#include "common/config/schedule.h"
#include "common/daemon/log.h"
#include "common/math/fused_step.h"
#include "tests/unit/expect.h"
#include "tests/unit/required.h"
#include "tests/unit/worker/node/worker_lane_fixture.h"
#include "worker/allreduce/allreduce_lane.h"
#include "worker/allreduce/replica_checkpoints.h"
#include "worker/allreduce/replica_digests.h"

namespace tributary::testing {

struct ClusterOptions {
  std::uint32_t nodes = 2, ranks = 1;
  std::string algorithm = "hierarchical";
  std::string optimizer = "adamw";
  std::uint64_t warmup_rounds = 0;
  SnapshotConfig snapshot{0, 0};
  std::string store;  // of the node `keeper`
  std::uint32_t keeper = 0;
  Round start;  // 0: fresh
  std::uint16_t streams = 0;
  std::uint32_t timeout_ms = 10'000;
  std::uint64_t chunk_elements = 2048;
  std::shared_ptr<DeviceApi> devices = nullptr;  // one for each rank; null: on the host
  void (*copy)(void* to, const void* from, std::size_t bytes) = [](void* to, const void* from, std::size_t bytes) {
    std::memcpy(to, from, bytes);
  };                                // from and to devices
  bool always_collectives = false;  // also of one rank
};

inline JobConfig cluster_config(const ClusterOptions& options) {
  JobConfig config{.name = "job", .mode = Mode::kAllreduce};
  config.allreduce.algorithm = choice_of<AllreduceAlgorithm>(options.algorithm).value();
  config.optimizer = default_optimizer(options.optimizer);
  config.optimizer.lr = 0.01;
  config.optimizer.weight_decay = 0.02;
  config.schedule.warmup_rounds = options.warmup_rounds;
  config.snapshot = options.snapshot;
  return config;
}

// Five buckets, the last of them short; a tensor over several buckets, and several in one.
inline Layout cluster_layout(std::uint64_t chunk_elements) {
  const ShardSlots one{};
  return required(Layout::make({{"a", {5000}}, {"b", {100}}, {"c", {3000}}, {"d", {17}}}, chunk_elements, {&one, 1}));
}

inline std::shared_ptr<const ViewPlan> cluster_view(const ClusterOptions& options) {
  return std::make_shared<const ViewPlan>(
      ViewPlan{.plan = JobPlan::of(cluster_config(options)),
               .job = JobId(7),
               .view = ViewId(options.start.value == 0 ? 1 : 2),
               .nodes = options.nodes,
               .layout = std::make_shared<const Layout>(cluster_layout(options.chunk_elements)),
               .start = options.start,
               .resumes = options.start.value != 0});
}

// The same value for the same place, without meaning.
inline float noise(std::uint64_t a, std::uint64_t b, std::uint64_t c) {
  std::uint64_t x = (a + 1) * 0x9e3779b97f4a7c15ull ^ (b + 7) * 0xc2b2ae3d27d4eb4full ^ (c + 3) * 0x165667b19e3779f9ull;
  x ^= x >> 29;
  x *= 0xbf58476d1ce4e5b9ull;
  x ^= x >> 32;
  return static_cast<float>(static_cast<double>(x >> 11) / static_cast<double>(1ull << 53) - 0.5);
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

class AllreduceCluster {
 public:
  struct Node final : AllreducePort {
    void publish(const PeerAddress& address) override { cluster->forward(address); }
    void checkpointed(const SnapshotDone& done) override {
      const std::lock_guard lock(mutex);
      checkpoints.push_back(done);
    }
    std::vector<SnapshotDone> all_checkpoints() {
      const std::lock_guard lock(mutex);
      return checkpoints;
    }
    std::mutex mutex;
    std::vector<SnapshotDone> checkpoints;
    AllreduceCluster* cluster = nullptr;
    Failures failures;
    std::unique_ptr<AllreduceLane> lane;
    std::shared_ptr<NodeJob> job;
  };

  explicit AllreduceCluster(ClusterOptions options) : options_(std::move(options)) {
    for (std::uint32_t n = 0; n < options_.nodes; ++n) {
      nodes_.push_back(std::make_unique<Node>());
      Node& node = *nodes_.back();
      node.cluster = this;
      WorkerConfig config{.address = "127.0.0.1", .collective_timeout_ms = options_.timeout_ms};
      if (n == options_.keeper) config.store_path = options_.store;
      auto started = required(AllreduceLane::start(config, node.failures, node, logger_, options_.streams));
      node.lane = std::move(started);
    }
  }
  ~AllreduceCluster() {
    for (auto& node : nodes_) node->lane.reset();
  }
  AllreduceCluster(const AllreduceCluster&) = delete;
  AllreduceCluster& operator=(const AllreduceCluster&) = delete;

  // All nodes, or those of which `which` is true.
  void open(const std::function<bool(std::uint32_t)>& which = [](std::uint32_t) { return true; }) {
    for (std::uint32_t n = 0; n < options_.nodes; ++n) {
      if (!which(n)) continue;
      NodeJobSpec spec{.view = cluster_view(options_), .node = NodeRank(n), .ranks = options_.ranks};
      if (spec.view->resumes) spec.values_from = NodeRank(options_.keeper);
      spec.allreduce_devices = devices_of(n, spec.view->layout);
      auto made = required(NodeJob::create(std::move(spec), 1, budget_));
      nodes_[n]->job = std::move(made);
      nodes_[n]->lane->open(nodes_[n]->job);
    }
  }
  // Opens all nodes, and gives them their first values.
  void start() {
    open();
    Node& first = *nodes_[0];
    for (std::uint64_t i = 0; i < elements(); ++i) first.job->parameters()[i] = noise(99, 0, i);
    first.lane->initial_values(first.job);
    REQUIRE_MESSAGE(reaches(0), failures());
  }

  std::uint64_t elements() const { return cluster_layout(options_.chunk_elements).flat_elements(); }
  Node& node(std::uint32_t n) { return *nodes_[n]; }
  std::uint32_t rank_of(std::uint32_t n, std::uint32_t local) const { return n * options_.ranks + local; }

  // As a trainer does, for all its tensors; what lies between tensors stays zero.
  static float gradient(std::uint32_t rank, std::uint64_t round, std::uint64_t element) {
    return noise(rank, round, element);
  }
  void ready(std::uint32_t n, std::uint32_t local, std::uint64_t round, std::uint64_t weight = 1) {
    NodeJob& job = *nodes_[n]->job;
    const Layout& layout = job.layout();
    for (std::size_t t = layout.tensors().size(); t-- > 0;) {
      const std::uint64_t first = layout.tensor_offset(t);
      std::vector<float> values(layout.tensors()[t].elements());
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = gradient(rank_of(n, local), round, first + i);
      const auto& devices = job.spec().allreduce_devices;
      float* out = devices ? devices->gradients(local, ChunkIndex(0)) : const_cast<float*>(job.gradients(local));
      (devices ? options_.copy : &copy_here)(out + first, values.data(), values.size() * sizeof(float));
      auto& word = const_cast<TensorWord&>(job.tensor_words(local)[t]);
      word.weight.store(weight, std::memory_order_relaxed);
      job.rank_words(local).say(t, round);
      const std::uint64_t one = 1;
      REQUIRE(write(nodes_[n]->lane->doorbell(), &one, sizeof one) == sizeof one);
    }
  }
  void ready_node(std::uint32_t n, std::uint64_t round, std::uint64_t weight = 1) {
    for (std::uint32_t local = 0; local < options_.ranks; ++local) ready(n, local, round, weight);
  }
  void ready_all(std::uint64_t round, std::uint64_t weight = 1) {
    for (std::uint32_t n = 0; n < options_.nodes; ++n) ready_node(n, round, weight);
  }

  bool node_at(std::uint32_t n, std::uint64_t version) const {
    const NodeJob& job = *nodes_[n]->job;
    for (std::size_t c = 0; c < job.layout().chunks(); ++c) {
      if (job.chunk_words()[c].version_plus_one.load(std::memory_order_acquire) != version + 1) return false;
    }
    return true;
  }
  bool all_at(std::uint64_t version) const {
    for (std::uint32_t n = 0; n < options_.nodes; ++n) {
      if (!node_at(n, version)) return false;
    }
    return true;
  }
  bool reaches(std::uint64_t version) const {
    return eventually([&] { return all_at(version); });
  }
  // Rounds first .. last, all ranks with weight 1.
  void train(std::uint64_t first, std::uint64_t last) {
    for (std::uint64_t round = first; round <= last; ++round) {
      ready_all(round);
      REQUIRE(reaches(round));
    }
  }
  // Opens the view that begins at options.start, and trains up to round `last`.
  void resume(std::uint64_t last) {
    open();
    REQUIRE_MESSAGE(reaches(options_.start.value), failures());
    train(options_.start.value + 1, last);
  }
  std::vector<float> parameters(std::uint32_t n) const {
    const NodeJob& job = *nodes_[n]->job;
    std::vector<float> values(elements());
    const auto& devices = job.spec().allreduce_devices;
    const float* from = devices ? devices->parameters(0, ChunkIndex(0)) : job.parameters();
    (devices ? options_.copy : &copy_here)(values.data(), from, values.size() * sizeof(float));
    return values;
  }
  // Flips one bit of one parameter on one node, as no training step would.
  void flip_bit(std::uint32_t n, std::uint64_t element) {
    const NodeJob& job = *nodes_[n]->job;
    const auto& devices = job.spec().allreduce_devices;
    float* at = (devices ? devices->parameters(0, ChunkIndex(0)) : nodes_[n]->job->parameters()) + element;
    std::uint32_t bits = 0;
    const auto& copy = devices ? options_.copy : &copy_here;
    copy(&bits, at, sizeof bits);
    bits ^= 1u << 12;  // of the fraction; the last ones may be rounded away before anybody looks
    copy(at, &bits, sizeof bits);
  }
  bool no_failures() const {
    for (const auto& node : nodes_) {
      if (!node->failures.all().empty()) return false;
    }
    return true;
  }
  std::string failures() const {
    std::string all;
    for (const auto& node : nodes_) {
      for (const LaneFailure& failure : node->failures.all()) all += failure.error.message + "; ";
    }
    return all;
  }
  void close(bool keep) {
    for (auto& node : nodes_) {
      if (node->job) node->lane->close(node->job, keep);
      node->job.reset();
    }
  }
  bool memory_comes_back() const {
    return eventually([&] {
      for (const auto& node : nodes_) {
        if (node->lane->jobs_held() != 0 || node->lane->jobs_keeping() != 0) return false;
      }
      return budget_->used() == 0;
    });
  }
  void end() {
    close(false);
    CHECK(memory_comes_back());
  }
  void forward(const PeerAddress& address) {
    for (std::uint32_t n = 0; n < options_.nodes; ++n) {
      if (n != address.node.value) nodes_[n]->lane->peer_address(address);
    }
  }

 private:
  std::shared_ptr<AllreduceDevices> devices_of(std::uint32_t n, std::shared_ptr<const Layout> layout) const {
    if (!options_.devices) return nullptr;
    AllreducePlan plan;
    plan.node.layout = std::move(layout);
    plan.node.always_collectives = options_.always_collectives;
    for (std::uint32_t local = 0; local < options_.ranks; ++local) {
      plan.node.devices.push_back(DeviceIndex(n * options_.ranks + local));
      plan.node.position_of_rank.push_back(local);
    }
    plan.flat = options_.algorithm == "flat";
    plan.nodes = options_.nodes;
    plan.rank = NodeRank(n);
    const auto optimizer = make_optimizer(cluster_config(options_).optimizer);
    auto made =
        required(AllreduceDevices::create(options_.devices, plan, static_cast<std::uint32_t>(optimizer->slots()),
                                          std::uint64_t{options_.timeout_ms} * 1'000'000));
    return made;
  }
  static void copy_here(void* to, const void* from, std::size_t bytes) { std::memcpy(to, from, bytes); }

  const ClusterOptions options_;
  Logger logger_ = quiet_logger();
  std::shared_ptr<MemoryBudget> budget_ = std::make_shared<MemoryBudget>(64u << 20);
  std::vector<std::unique_ptr<Node>> nodes_;
};

// Returns node 0's report at the end of a view of three rounds.
inline SnapshotDone said_at_the_end(const ClusterOptions& options, bool in_order = true, std::uint64_t rounds = 3) {
  AllreduceCluster cluster(options);
  rounds > 0 ? cluster.start() : cluster.open();
  cluster.train(1, rounds);
  cluster.close(in_order);
  REQUIRE(cluster.memory_comes_back());
  for (std::uint32_t n = 1; n < options.nodes; ++n) CHECK(cluster.node(n).all_checkpoints().empty());
  const auto kept = cluster.node(0).all_checkpoints();
  REQUIRE(kept.size() == (in_order ? 1 : 0));
  return kept.empty() ? SnapshotDone{} : kept[0];
}

// All chunks have been compared since some round before, and then a bit flips.
inline void check_that_other_bits_are_noticed(const ClusterOptions& options) {
  for (const std::uint64_t element : {std::uint64_t{0}, std::uint64_t{4500}}) {
    CAPTURE(element);
    AllreduceCluster cluster(options);
    cluster.start();
    std::uint64_t round = 0;
    const std::uint64_t calm = 2 * ReplicaDigests::kRounds;
    while (round < calm) cluster.train(round + 1, round + 1), ++round;
    REQUIRE(cluster.no_failures());
    cluster.flip_bit(options.nodes - 1, element);
    const auto noticed = [&] {
      for (std::uint32_t n = 0; n < options.nodes; ++n) {
        if (cluster.node(n).failures.all().empty()) return false;
      }
      return true;
    };
    while (cluster.no_failures() && round < calm + ReplicaDigests::kRounds + 2) {
      cluster.ready_all(++round);
      REQUIRE(eventually([&] { return !cluster.no_failures() || cluster.all_at(round); }));
    }
    REQUIRE(eventually(noticed));
    CHECK(round <= calm + ReplicaDigests::kRounds + 1);
    const LaneFailure failure = cluster.node(0).failures.all().front();
    CHECK(failure.kind == LaneFailure::Kind::kRefused);
    INFO(failure.error.message);
    CHECK(contains(failure.error.message, "the nodes hold different parameters"));
    cluster.end();
  }
}

// Checks that the checkpoint of `round` in the nodes' store holds these parameters, each chunk after as many steps.
inline void check_checkpoint(const ClusterOptions& options, Round round, const std::vector<float>& parameters) {
  const Layout layout = cluster_layout(options.chunk_elements);
  std::vector<float> values(layout.flat_elements()), first(values.size()), second(values.size());
  std::vector<std::uint64_t> steps(layout.chunks());
  float* const slots[] = {first.data(), second.data()};
  const ReplicaCheckpoints checkpoints(options.store, cluster_config(options), layout);
  REQUIRE(checkpoints.read(round, {values.data(), slots, steps}));
  CHECK(same_bits(values, parameters));
  CHECK(steps == std::vector<std::uint64_t>(layout.chunks(), round.value));
}

// The servers' result for the same gradients: the fused sum and step over the frames of all ranks (or nodes).
class ServerReference {
 public:
  explicit ServerReference(const ClusterOptions& options)
      : config_(cluster_config(options)),
        layout_(cluster_layout(options.chunk_elements)),
        optimizer_(make_optimizer(config_.optimizer)),
        parameters_(layout_.flat_elements()),
        slots_(static_cast<std::size_t>(optimizer_->slots()), std::vector<float>(layout_.flat_elements())) {
    for (std::size_t i = 0; i < parameters_.size(); ++i) parameters_[i] = noise(99, 0, i);
    for (int s = 0; s < optimizer_->slots(); ++s) {
      std::fill(slots_[static_cast<std::size_t>(s)].begin(), slots_[static_cast<std::size_t>(s)].end(),
                optimizer_->initial_state(s));
    }
  }
  void round(std::uint64_t round, std::uint32_t ranks, std::uint64_t total_weight) {
    if (total_weight == 0) return;
    ++step_;
    const auto fp32 = make_encoding(EncodingId::kFp32);
    std::vector<std::vector<float>> gradients(ranks, std::vector<float>(layout_.flat_elements()));
    for (std::size_t t = 0; t < layout_.tensors().size(); ++t) {
      const std::uint64_t first = layout_.tensor_offset(t);
      for (std::uint32_t rank = 0; rank < ranks; ++rank) {
        for (std::uint64_t i = first; i < first + layout_.tensors()[t].elements(); ++i) {
          gradients[rank][i] = AllreduceCluster::gradient(rank, round, i);
        }
      }
    }
    std::vector<PushFrame> frames;
    for (const auto& one : gradients) frames.push_back({reinterpret_cast<const std::byte*>(one.data())});
    FusedArgs args;
    args.elements = layout_.flat_elements();
    args.frames = frames;
    args.push = fp32.get();
    args.scale = static_cast<float>(1.0 / static_cast<double>(total_weight));
    args.param_in = args.param_out = parameters_.data();
    for (std::size_t s = 0; s < slots_.size(); ++s) args.state_in[s] = args.state_out[s] = slots_[s].data();
    fused_step(*optimizer_, optimizer_->scalars(step_, scheduled_lr(config_.schedule, config_.optimizer.lr, step_)),
               args);
  }
  // Rounds 1 .. last, all ranks with weight 1.
  void rounds(std::uint64_t last, std::uint32_t ranks) {
    for (std::uint64_t one = 1; one <= last; ++one) round(one, ranks, ranks);
  }
  const std::vector<float>& parameters() const { return parameters_; }

 private:
  const JobConfig config_;
  const Layout layout_;
  const std::unique_ptr<kernels::Optimizer> optimizer_;
  std::vector<float> parameters_;
  std::vector<std::vector<float>> slots_;
  std::uint64_t step_ = 0;
};

inline double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  double largest = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(double{a[i]} - double{b[i]}));
  return largest;
}

// Adding four numbers in two orders differs in the last bits; Adam divides by small roots at the beginning.
inline constexpr double kOtherOrder = 2e-5;

inline void check_against_servers(const ClusterOptions& options, bool exact) {
  AllreduceCluster cluster(options);
  cluster.start();
  ServerReference servers(options);
  const std::uint32_t ranks = options.nodes * options.ranks;
  for (std::uint64_t round = 1; round <= 4; ++round) {
    cluster.ready_all(round, round);
    REQUIRE_MESSAGE(cluster.reaches(round), cluster.failures());
    servers.round(round, ranks, ranks * round);
  }
  for (std::uint32_t n = 0; n < options.nodes; ++n) {
    CHECK(same_bits(cluster.parameters(n), cluster.parameters(0)));
    if (exact) {
      CHECK(same_bits(cluster.parameters(n), servers.parameters()));
    } else {
      CHECK(largest_difference(cluster.parameters(n), servers.parameters()) < kOtherOrder);
    }
  }
  CHECK(cluster.no_failures());
  cluster.end();
}

}  // namespace tributary::testing
