// `tributary bench allreduce`: rounds of the workers' all-reduce lanes (worker/allreduce/allreduce_lane.h) on the
// loopback interface, compared with the Gloo library's own ring of equal size (bench/gloo_baseline.h) in the same run,
// in turns.
//
// A node is a lane and a thread for each trainer, all in this process. Trainers do no computing: all gradients of a
// round are ready at once, last tensor first, and the round is over when every node has all new parameters. So nothing
// is hidden behind a backward pass or behind the next round: what is compared is the exchange.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "bench/gloo_baseline.h"
#include "bench/measurements.h"
#include "bench/timing.h"
#include "bench/told_progress.h"
#include "common/base/result.h"
#include "common/daemon/log.h"
#include "common/wire/zmq_util.h"
#include "worker/allreduce/allreduce_lane.h"

namespace tributary::bench {
namespace {

struct AllreduceBenchOptions {
  std::uint32_t nodes = 2;
  std::uint32_t ranks_per_node = 1;
  std::uint64_t model_bytes = 64u << 20;
  std::string algorithm = "hierarchical";
  std::string optimizer = "adamw";
  std::uint64_t chunk_bytes = 0;  // 0: the default
  std::uint16_t streams = 0;      // 0: the default
  std::uint32_t rounds = 10;      // in each turn
  std::uint32_t turns = 5;
  std::function<void(const std::string&)> tell = {};  // how far it is
};

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kTensors = 64;
constexpr double kBeginSeconds = 30.0;
constexpr std::chrono::milliseconds kBeginPoll{100};

double seconds_since(Clock::time_point began) {
  return std::chrono::duration<double>(Clock::now() - began).count();
}

// The nodes, with their trainers played by threads.
class Lanes final : private WorkerLaneListener {
 public:
  static Result<std::unique_ptr<Lanes>> create(const AllreduceBenchOptions& options) {
    std::unique_ptr<Lanes> lanes(new Lanes(options));
    if (Status opened = lanes->open(); !opened) return tl::unexpected(opened.error());
    return lanes;
  }
  ~Lanes() override {
    for (auto& node : nodes_) node->lane.reset();
  }

  // Seconds of each round. weight: of each rank's gradients; 0: they are summed, but no step is taken.
  Result<std::vector<double>> measure(std::uint32_t rounds, std::uint64_t weight) {
    std::vector<double> seconds;
    Clock::time_point began;
    const auto between = [&]() noexcept {
      const auto now = Clock::now();
      if (began.time_since_epoch().count() != 0) seconds.push_back(std::chrono::duration<double>(now - began).count());
      began = now;
    };
    std::barrier gate(static_cast<std::ptrdiff_t>(options_.nodes * options_.ranks_per_node), between);
    std::vector<std::thread> trainers;
    for (auto& node : nodes_) {
      for (std::uint32_t rank = 0; rank < options_.ranks_per_node; ++rank) {
        trainers.emplace_back([&, &mine = *node, rank] {
          for (std::uint32_t i = 1; i <= rounds; ++i) {
            gate.arrive_and_wait();
            train(mine, rank, round_ + i, weight);
          }
          gate.arrive_and_wait();
        });
      }
    }
    for (std::thread& trainer : trainers) trainer.join();
    round_ += rounds;
    if (Status well = failure(); !well) return tl::unexpected(well.error());
    return seconds;
  }

  bool same_everywhere() const {
    const std::size_t bytes = layout_->flat_elements() * sizeof(float);
    return std::ranges::all_of(nodes_, [&](const auto& node) {
      return std::memcmp(node->job->parameters(), nodes_[0]->job->parameters(), bytes) == 0;
    });
  }
  std::uint64_t chunk_bytes() const { return layout_->chunk_elements() * sizeof(float); }
  std::uint64_t elements() const { return layout_->flat_elements(); }

 private:
  struct Node final : AllreducePort {
    void publish(const PeerAddress& address) override {
      for (const auto& other : lanes->nodes_) {
        if (other.get() != this) other->lane->peer_address(address);
      }
    }
    void checkpointed(const SnapshotDone&) override {}
    Lanes* lanes = nullptr;
    std::unique_ptr<AllreduceLane> lane;
    std::shared_ptr<NodeJob> job;
  };

  explicit Lanes(AllreduceBenchOptions options) : options_(std::move(options)) {}

  Status open() {
    std::vector<TensorSpec> tensors;
    const std::uint64_t each = std::max<std::uint64_t>(kTensorAlign, options_.model_bytes / sizeof(float) / kTensors);
    for (std::uint64_t t = 0; t < kTensors; ++t) tensors.push_back({"t" + std::to_string(t), {each}});
    const std::uint64_t chunk =
        options_.chunk_bytes == 0 ? default_bucket_elements(each * kTensors) : options_.chunk_bytes / sizeof(float);
    auto layout = Layout::unowned(std::move(tensors), chunk);
    if (!layout) return tl::unexpected(layout.error());
    layout_ = std::make_shared<const Layout>(std::move(*layout));
    JobConfig config;
    config.name = "bench";
    config.mode = Mode::kAllreduce;
    config.allreduce.algorithm = choice_of<AllreduceAlgorithm>(options_.algorithm).value();
    config.optimizer = default_optimizer(options_.optimizer);
    config.optimizer.lr = 1e-4;
    config.snapshot = {0, 0};
    const auto view = std::make_shared<const ViewPlan>(ViewPlan{
        .plan = JobPlan::of(config), .job = JobId(1), .view = ViewId(1), .nodes = options_.nodes, .layout = layout_});
    WorkerConfig worker;
    worker.address = "127.0.0.1";
    for (std::uint32_t n = 0; n < options_.nodes; ++n) {
      nodes_.push_back(std::make_unique<Node>());
      nodes_.back()->lanes = this;
      auto lane = AllreduceLane::start(worker, *this, *nodes_.back(), logger_, options_.streams);
      if (!lane) return tl::unexpected(lane.error());
      nodes_.back()->lane = std::move(*lane);
    }
    for (std::uint32_t n = 0; n < options_.nodes; ++n) {
      NodeJobSpec spec;
      spec.view = view;
      spec.node = NodeRank(n);
      spec.ranks = options_.ranks_per_node;
      auto job = NodeJob::create(std::move(spec), 1, std::make_shared<MemoryBudget>(~0ull));
      if (!job) return tl::unexpected(job.error());
      nodes_[n]->job = std::move(*job);
      fill(*nodes_[n]->job);
      nodes_[n]->lane->open(nodes_[n]->job);
    }
    nodes_[0]->lane->initial_values(nodes_[0]->job);
    const auto began = Clock::now();
    while (!std::ranges::all_of(nodes_, [&](const auto& node) { return reached(*node->job, 0); })) {
      if (Status well = failure(); !well) return well;
      if (seconds_since(began) > kBeginSeconds) return fail(ErrorCode::kTimeout, "the nodes did not begin");
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return {};
  }

  void fill(NodeJob& job) const {
    for (std::uint64_t i = 0; i < layout_->flat_elements(); ++i) {
      job.parameters()[i] = static_cast<float>(i % 1000) * 1e-3f;
      for (std::uint32_t rank = 0; rank < options_.ranks_per_node; ++rank) {
        const_cast<float*>(job.gradients(rank))[i] = static_cast<float>((i + rank) % 777) * 1e-3f;
      }
    }
  }

  static bool reached(const NodeJob& job, std::uint64_t round) {
    for (std::size_t c = 0; c < job.layout().chunks(); ++c) {
      if (job.chunk_words()[c].version_plus_one.load(std::memory_order_acquire) < round + 1) return false;
    }
    return true;
  }

  // As the session library does it.
  void train(Node& node, std::uint32_t rank, std::uint64_t round, std::uint64_t weight) {
    NodeJob& job = *node.job;
    for (std::size_t t = kTensors; t-- > 0;) {
      auto& word = const_cast<TensorWord&>(job.tensor_words(rank)[t]);
      word.weight.store(weight, std::memory_order_relaxed);
      job.rank_words(rank).say(t, round);
    }
    const std::uint64_t one = 1;
    if (::write(node.lane->doorbell(), &one, sizeof one) != sizeof one) failed_.store(true);
    NodeHeader& header = job.header();
    while (!failed_.load(std::memory_order_relaxed)) {
      const std::uint32_t progress = header.progress.load(std::memory_order_seq_cst);
      if (reached(job, round)) return;
      header.sleep(progress, kBeginPoll);
    }
  }

  void lane_failed(std::shared_ptr<NodeJob>, LaneFailure failure) override {
    const std::lock_guard lock(mutex_);
    if (error_.empty()) error_ = failure.error.message;
    failed_.store(true);
  }
  Status failure() const {
    const std::lock_guard lock(mutex_);
    return failed_.load() ? fail(ErrorCode::kUnavailable, error_) : Status();
  }

  const AllreduceBenchOptions options_;
  const Logger logger_ = quiet_logger();
  std::shared_ptr<const Layout> layout_;
  std::vector<std::unique_ptr<Node>> nodes_;
  std::uint64_t round_ = 0;
  std::atomic<bool> failed_{false};
  mutable std::mutex mutex_;  // guards error_
  std::string error_;
};

// Fields: explained by `tributary bench allreduce --help`. Checks at the end that all nodes have the same parameters.
Result<nlohmann::ordered_json> run_allreduce_bench(const AllreduceBenchOptions& options) {
  if (options.nodes < 2) return fail(ErrorCode::kInvalidArgument, "--nodes must be at least 2: one node sends nothing");
  if (options.ranks_per_node < 1 || options.rounds < 1 || options.turns < 1) {
    return fail(ErrorCode::kInvalidArgument, "--ranks-per-node, --rounds and --turns must be at least 1");
  }
  auto lanes = Lanes::create(options);
  if (!lanes) return tl::unexpected(lanes.error());
  GlooBaselineOptions baseline;
  baseline.nodes = options.algorithm == "flat" ? options.nodes * options.ranks_per_node : options.nodes;
  baseline.elements = (*lanes)->elements();
  baseline.rounds = options.rounds;
  auto bare = GlooBaseline::create(baseline);
  if (!bare) return tl::unexpected(bare.error());
  baseline.optimizer = options.optimizer;
  auto stepping = GlooBaseline::create(baseline);
  if (!stepping) return tl::unexpected(stepping.error());

  if (auto warm = (*lanes)->measure(2, 1); !warm) return tl::unexpected(warm.error());
  // In turns, so that all of them see the same machine: a turn's figure is its median, a ratio is of one turn.
  std::vector<double> ours, exchange, gloo, gloo_step, to_gloo, exchange_to_gloo, to_gloo_step;
  ToldProgress progress(options.tell, "turns");
  for (std::uint32_t turn = 0; turn < options.turns; ++turn) {
    progress.reached(turn, options.turns);
    auto first = (*lanes)->measure(options.rounds, 1);
    if (!first) return tl::unexpected(first.error());
    auto unstepped = (*lanes)->measure(options.rounds, 0);
    if (!unstepped) return tl::unexpected(unstepped.error());
    auto second = (*bare)->measure();
    if (!second) return tl::unexpected(second.error());
    auto third = (*stepping)->measure();
    if (!third) return tl::unexpected(third.error());
    ours.push_back(median(*first));
    exchange.push_back(median(*unstepped));
    gloo.push_back(median(*second));
    gloo_step.push_back(median(*third));
    to_gloo.push_back(ours.back() / gloo.back());
    exchange_to_gloo.push_back(exchange.back() / gloo.back());
    to_gloo_step.push_back(ours.back() / gloo_step.back());
  }
  if (!(*lanes)->same_everywhere()) return fail(ErrorCode::kInternal, "the nodes' parameters differ");
  const double bytes = static_cast<double>(baseline.elements) * sizeof(float);
  nlohmann::ordered_json result;
  result["algorithm"] = options.algorithm;
  result["nodes"] = options.nodes;
  result["ranks_per_node"] = options.ranks_per_node;
  result["model_bytes"] = baseline.elements * sizeof(float);
  result["optimizer"] = options.optimizer;
  result["chunk_bytes"] = (*lanes)->chunk_bytes();
  result["round_ms"] = median(ours) * 1e3;
  result["gb_per_s"] = bytes / median(ours) * 1e-9;
  result["exchange_ms"] = median(exchange) * 1e3;
  result["gloo_ms"] = median(gloo) * 1e3;
  result["gloo_step_ms"] = median(gloo_step) * 1e3;
  result["ratio_exchange_to_gloo"] = median(exchange_to_gloo);
  result["ratio_to_gloo"] = median(to_gloo);
  result["ratio_to_gloo_step"] = median(to_gloo_step);
  return result;
}

}  // namespace

Measurement allreduce() {
  const auto add = [](CliCommand command, AllreduceBenchOptions& o) {
    command.add_option("--nodes", o.nodes)->capture_default_str();
    command.add_option("--ranks-per-node", o.ranks_per_node, "trainers at each")->capture_default_str();
    add_bytes(command, "--model-bytes", o.model_bytes, "fp32 parameters, as 64MiB")->capture_default_str();
    command.add_option("--algorithm", o.algorithm)->check(one_of({"flat", "hierarchical"}))->capture_default_str();
    add_optimizer(command, o.optimizer);
    add_bytes(command, "--chunk-bytes", o.chunk_bytes, "of a bucket (default: from the model)");
    command.add_option("--streams", o.streams, "collectives under way at a time (default: the workers')");
    command.add_option("--rounds", o.rounds, "in each turn")->capture_default_str();
    command.add_option("--turns", o.turns)->capture_default_str();
  };
  return {
      .name = "allreduce",
      .summary = "rounds of all-reduce jobs beside Gloo's own ring",
      .words =
          R"(Nodes are lanes of this process on the loopback interface; everything shares this machine's cores, the optimizer's step on
every node included.

Fields: round_ms (from all gradients being ready to all nodes having all parameters; median over turns of medians over
  rounds), gb_per_s (model bytes by it), chunk_bytes (of a bucket), exchange_ms (rounds of weight 0: the same sums, and no
  step), gloo_ms (one call of gloo::allreduce, ring, over the whole model, nothing else), gloo_step_ms (that call and then
  the same optimizer's step on every node), ratio_exchange_to_gloo (exchange_ms by gloo_ms, within a turn), ratio_to_gloo
  and ratio_to_gloo_step (round_ms by them, within a turn))",
      .add = measures<AllreduceBenchOptions>(add, [](AllreduceBenchOptions& options, MeasurementRun& run) {
        tune_malloc_for_frames();
        options.tell = run.tell;
        return yield(run, run_allreduce_bench(options));
      })};
}

}  // namespace tributary::bench
