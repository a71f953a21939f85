#include "bench/gloo_baseline.h"

#include <gloo/rendezvous/hash_store.h>

#include <barrier>
#include <chrono>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "bench/gloo_rank.h"
#include "common/config/config.h"
#include "worker/allreduce/replica_state.h"

namespace tributary::bench {

struct GlooBaseline::Impl {
  explicit Impl(GlooBaselineOptions wanted) : options(std::move(wanted)) {}

  // State of a node between measurements.
  struct Node {
    std::unique_ptr<GlooRank> gloo;
    std::unique_ptr<float[]> gradients;
    std::unique_ptr<ReplicaState> state;
    std::unique_ptr<float[]> parameters;
  };

  GlooBaselineOptions options;
  gloo::rendezvous::HashStore store;
  std::vector<Node> nodes;
};

GlooBaseline::GlooBaseline(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
GlooBaseline::~GlooBaseline() = default;

Result<std::unique_ptr<GlooBaseline>> GlooBaseline::create(GlooBaselineOptions options) {
  auto impl = std::make_unique<Impl>(std::move(options));
  Impl& parts = *impl;
  parts.nodes.resize(parts.options.nodes);
  std::mutex mutex;
  std::string error;
  const auto node = [&](std::uint32_t rank) {
    Impl::Node& mine = parts.nodes[rank];
    mine.gloo = std::make_unique<GlooRank>("127.0.0.1", rank, parts.options.nodes, parts.store);
    mine.gradients = std::make_unique<float[]>(parts.options.elements);
    if (parts.options.optimizer.empty()) return;
    JobConfig config;
    config.optimizer = default_optimizer(parts.options.optimizer);
    auto layout = Layout::unowned({{"all", {parts.options.elements}}}, 1u << 18);
    if (!layout) throw std::runtime_error(layout.error().message);
    auto shared = std::make_shared<const Layout>(std::move(*layout));
    mine.parameters = std::make_unique<float[]>(shared->flat_elements());
    mine.state = std::make_unique<ReplicaState>(JobPlan::of(config), shared, mine.parameters.get());
  };
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < parts.options.nodes; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        node(rank);
      } catch (const std::exception& e) {
        const std::lock_guard lock(mutex);
        error = e.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (!error.empty()) return fail(ErrorCode::kUnavailable, "Gloo's baseline: " + error);
  return std::unique_ptr<GlooBaseline>(new GlooBaseline(std::move(impl)));
}

Result<std::vector<double>> GlooBaseline::measure() {
  const GlooBaselineOptions& options = impl_->options;
  std::vector<double> seconds;
  std::chrono::steady_clock::time_point began;
  const auto between = [&]() noexcept {
    const auto now = std::chrono::steady_clock::now();
    if (began.time_since_epoch().count() != 0) seconds.push_back(std::chrono::duration<double>(now - began).count());
    began = now;
  };
  std::barrier gate(static_cast<std::ptrdiff_t>(options.nodes), between);
  std::mutex mutex;
  std::string error;
  const auto node = [&](std::uint32_t rank) {
    Impl::Node& mine = impl_->nodes[rank];
    for (std::uint32_t round = 0; round < options.warm_up + options.rounds; ++round) {
      gate.arrive_and_wait();
      try {
        mine.gloo->sum(nullptr, mine.gradients.get(), options.elements);
        const std::uint64_t chunk = 1u << 18;
        for (std::uint64_t c = 0; mine.state && c * chunk < options.elements; ++c) {
          mine.state->step(ChunkIndex(static_cast<std::uint32_t>(c)), mine.gradients.get() + c * chunk, 1);
        }
      } catch (const std::exception& e) {
        const std::lock_guard lock(mutex);
        error = e.what();
      }
    }
    gate.arrive_and_wait();
  };
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < options.nodes; ++rank) threads.emplace_back(node, rank);
  for (std::thread& thread : threads) thread.join();
  if (!error.empty()) return fail(ErrorCode::kUnavailable, "Gloo's baseline: " + error);
  seconds.erase(seconds.begin(), seconds.begin() + options.warm_up);
  return seconds;
}

}  // namespace tributary::bench
