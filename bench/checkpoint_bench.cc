// `tributary bench checkpoint`: the cost of saving a checkpoint for the rounds meanwhile.
//
// Trainers attach from threads of this process and only exchange, round after round. Quiet stretches and saves take
// turns; the rounds that a save overlaps are compared with the others. A pause would show as a long round, and as a
// long time in which no tensor arrives.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bench/measurements.h"
#include "bench/sample_model.h"
#include "bench/scratch_folder.h"
#include "common/base/result.h"
#include "common/config/json_text.h"
#include "common/daemon/http_client.h"
#include "common/math/median.h"
#include "server/checkpoint/checkpoint_directory.h"
#include "session/session.h"
#include "tools/cluster/local_cluster.h"

namespace tributary::bench {
namespace {

struct CheckpointBenchOptions {
  std::uint16_t servers = 2;
  std::uint32_t nodes = 2;                 // of one rank each
  std::uint64_t state_bytes = 1ull << 30;  // parameters and AdamW's state, over all servers
  std::uint32_t saves = 3;
  double quiet_seconds = 6.0;       // before each save
  std::uint32_t compute_ms = 0;     // that ranks sleep between rounds
  std::uint32_t io_mb_per_s = 200;  // of each server
  Transport transport = Transport::kShm;
};

using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;
using std::chrono::milliseconds;

constexpr char kJob[] = "bench-checkpoint";
constexpr std::uint64_t kArrays = 3;  // AdamW: parameters and two moments
constexpr std::size_t kWarmRounds = 5;
constexpr std::size_t kSlowest = 8;
constexpr std::chrono::seconds kRankPatience{300};
constexpr milliseconds kRankPoll{20};

double milliseconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double, std::milli>(to - from).count();
}

// One round as rank 0 saw it: when it began, and when each tensor's answer came.
struct RoundSeen {
  Clock::time_point begin;
  std::vector<Clock::time_point> answers;

  Clock::time_point end() const { return answers.back(); }
  double milliseconds() const { return milliseconds_between(begin, end()); }
  // The longest time without any tensor's answer.
  double gap_ms() const {
    double longest = 0.0;
    Clock::time_point last = begin;
    for (const Clock::time_point at : answers) {
      longest = std::max(longest, milliseconds_between(last, at));
      last = at;
    }
    return longest;
  }
};

// The ranks: threads that exchange until they are asked to stop, all after the same round.
class Exchange {
 public:
  Exchange(const CheckpointBenchOptions& options, LocalCluster& cluster)
      : tensors_(sample_tensors(options.state_bytes / kArrays)), compute_(options.compute_ms) {
    for (std::uint32_t node = 0; node < options.nodes; ++node) {
      SessionOptions session;
      session.socket = cluster.workers()[node].socket;
      session.job.name = kJob;
      session.job.optimizer = default_optimizer("adamw");
      session.job.optimizer.lr = 1e-3;
      session.job.snapshot = {.every_s = 0, .every_rounds = 0};
      // It names snapshots of its own, as often as nodes' memory for what they pushed asks: no stretch would be quiet.
      session.job.recovery.redo_mb = 0;
      session.topology = {.rank = node, .world_size = options.nodes, .node_rank = node};
      threads_.emplace_back([this, session] {
        const Status trained = train(session);
        const std::lock_guard lock(mutex_);
        if (!trained && error_.empty()) error_ = trained.error().message;
      });
    }
  }
  ~Exchange() { stop_ = true; }

  std::size_t rounds() const {
    const std::lock_guard lock(mutex_);
    return rounds_.size();
  }
  std::string error() const {
    const std::lock_guard lock(mutex_);
    return error_;
  }
  // Ends after a round. Returns all rounds as rank 0 saw them.
  Result<std::vector<RoundSeen>> finish() {
    stop_ = true;
    threads_.clear();
    if (!error_.empty()) return fail(ErrorCode::kUnavailable, error_);
    return rounds_;
  }

 private:
  Status train(const SessionOptions& options) {
    auto attached = Session::attach(options, tensors_);
    if (!attached) return tl::unexpected(attached.error());
    Session& session = **attached;
    const bool leads = options.topology.rank == 0;
    for (std::size_t t = 0; leads && t < tensors_.size(); ++t) std::ranges::fill(session.initial(t), 1.0f);
    if (auto ok = session.start(); !ok) return ok;
    for (std::size_t t = 0; t < tensors_.size(); ++t) std::ranges::fill(session.gradient(t), 1e-3f);
    for (std::uint64_t round = 1; round <= last_round_; ++round) {
      // Named before any tensor of the round is ready: no rank completes the round without having seen it.
      if (leads && stop_) last_round_ = round;
      RoundSeen seen{Clock::now(), {}};
      seen.answers.reserve(tensors_.size());
      for (std::size_t t = 0; t < tensors_.size(); ++t) session.ready(t, 1);
      for (std::size_t t = 0; t < tensors_.size(); ++t) {
        const auto state = session.wait(t);
        if (!state) return tl::unexpected(state.error());
        if (*state != StepState::kContinue) return fail(ErrorCode::kStopped, "stopped: " + session.stop_reason());
        seen.answers.push_back(Clock::now());
      }
      if (leads) {
        const std::lock_guard lock(mutex_);
        rounds_.push_back(std::move(seen));
      }
      std::this_thread::sleep_for(compute_);
    }
    return session.finish(LeaveKind::kFinished);
  }

  const std::vector<TensorSpec> tensors_;
  const milliseconds compute_;
  std::atomic<bool> stop_{false};
  std::atomic<std::uint64_t> last_round_{~0ull};
  mutable std::mutex mutex_;
  std::vector<RoundSeen> rounds_;
  std::string error_;
  std::vector<std::jthread> threads_;  // last: joined before what they use goes
};

struct Save {
  Clock::time_point begin, end;
  std::uint64_t bytes = 0;
  std::string path;
};

class Bench {
 public:
  Bench(const CheckpointBenchOptions& options, LocalCluster& cluster, std::string folder)
      : options_(options), cluster_(cluster), folder_(std::move(folder)), exchange_(options, cluster) {}

  Result<Json> run() {
    if (auto ok = wait([this] { return exchange_.rounds() >= kWarmRounds; }); !ok) return tl::unexpected(ok.error());
    const Clock::time_point warm = Clock::now();
    for (std::uint32_t i = 0; i < options_.saves; ++i) {
      const Clock::time_point until = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                                         std::chrono::duration<double>(options_.quiet_seconds));
      if (auto ok = wait([&] { return Clock::now() >= until; }); !ok) return tl::unexpected(ok.error());
      auto saved = save();
      if (!saved) return tl::unexpected(saved.error());
      if (!saves_.empty()) std::filesystem::remove_all(saves_.back().path);
      saves_.push_back(std::move(*saved));
    }
    const auto rounds = exchange_.finish();
    if (!rounds) return tl::unexpected(rounds.error());
    const Verification verified = verify_checkpoint(saves_.back().path);
    if (!verified.findings.empty())
      return fail(ErrorCode::kInternal, "the checkpoint is damaged: " + verified.findings[0]);
    return report(*rounds, warm);
  }

 private:
  Status wait(const std::function<bool()>& condition) {
    const Clock::time_point until = Clock::now() + kRankPatience;
    while (!condition()) {
      if (const auto failure = cluster_.failure()) return fail(ErrorCode::kUnavailable, *failure);
      if (const std::string error = exchange_.error(); !error.empty()) return fail(ErrorCode::kUnavailable, error);
      if (Clock::now() > until) return fail(ErrorCode::kTimeout, "the ranks make no progress");
      std::this_thread::sleep_for(kRankPoll);
    }
    return {};
  }

  Result<Save> save() {
    const std::string& admin = cluster_.servers()[0].admin;
    Save save{Clock::now(), {}, 0, {}};
    const Json order = {{"job", kJob}, {"directory", folder_ + "/checkpoints"}, {"committed", false}};
    const auto accepted =
        http_order(admin, "/checkpoint/save", order.dump(), milliseconds(10'000), cluster_.admin_token());
    if (!accepted) return tl::unexpected(accepted.error());
    const Json id = ordered_json_in(accepted->body);
    if (accepted->status != 200 || !id.contains("id")) return fail(ErrorCode::kUnavailable, accepted->body);
    Json status;
    const auto over = [&] {
      const auto answer = http_order(admin, "/checkpoint/" + id.at("id").dump(), std::nullopt, milliseconds(10'000));
      if (answer) status = ordered_json_in(answer->body);
      const std::string step = status.is_object() ? status.value("step", std::string()) : std::string();
      return step == "done" || step == "failed";
    };
    if (auto ok = wait(over); !ok) return tl::unexpected(ok.error());
    save.end = Clock::now();
    if (status.value("step", std::string()) == "failed")
      return fail(ErrorCode::kUnavailable, status.at("error").dump());
    save.bytes = status.at("bytes").get<std::uint64_t>();
    save.path = status.at("path").get<std::string>();
    return save;
  }

  struct Stretch {
    std::vector<double> round_ms, gap_ms;

    void add(const RoundSeen& round) {
      round_ms.push_back(round.milliseconds());
      gap_ms.push_back(round.gap_ms());
    }
    static double longest(const std::vector<double>& ms) { return ms.empty() ? 0.0 : *std::ranges::max_element(ms); }
    Json describe() const {
      return {{"rounds", round_ms.size()},
              {"median_round_ms", median(round_ms)},
              {"longest_round_ms", longest(round_ms)},
              {"median_gap_ms", median(gap_ms)},
              {"longest_gap_ms", longest(gap_ms)}};
    }
  };

  Json report(const std::vector<RoundSeen>& rounds, Clock::time_point warm) {
    Stretch quiet, saving;
    std::vector<std::pair<double, double>> slowest;  // a round's time, and when it began after the order
    for (const RoundSeen& round : rounds) {
      if (round.begin < warm) continue;
      const auto save = std::ranges::find_if(
          saves_, [&](const Save& one) { return round.end() > one.begin && round.begin < one.end; });
      const bool during = save != saves_.end();
      if (during) {
        slowest.emplace_back(round.milliseconds(), milliseconds_between(save->begin, round.begin));
      }
      (during ? saving : quiet).add(round);
    }
    std::ranges::sort(slowest, std::greater<>());
    slowest.resize(std::min(slowest.size(), kSlowest));
    Json slow = Json::array();
    for (const auto& [ms, at] : slowest) slow.push_back({{"round_ms", ms}, {"after_order_ms", at}});
    Json seconds = Json::array();
    for (const Save& save : saves_) seconds.push_back(milliseconds_between(save.begin, save.end) * 1e-3);
    // Against what is usual: the longest of the quiet rounds is a matter of chance, and may be as long as a pause.
    return {{"pause_ms", Stretch::longest(saving.round_ms) - median(quiet.round_ms)},
            {"gap_ms", Stretch::longest(saving.gap_ms) - median(quiet.gap_ms)},
            {"noise_ms", Stretch::longest(quiet.round_ms) - median(quiet.round_ms)},
            {"gap_noise_ms", Stretch::longest(quiet.gap_ms) - median(quiet.gap_ms)},
            {"quiet", quiet.describe()},
            {"saving", saving.describe()},
            {"slowest", slow},
            {"save_seconds", seconds},
            {"checkpoint_bytes", saves_.back().bytes},
            {"state_bytes", options_.state_bytes},
            {"servers", options_.servers},
            {"nodes", options_.nodes},
            {"compute_ms", options_.compute_ms},
            {"io_mb_per_s", options_.io_mb_per_s}};
  }

  const CheckpointBenchOptions& options_;
  LocalCluster& cluster_;
  const std::string folder_;
  Exchange exchange_;
  std::vector<Save> saves_;
};

// The object's fields are explained by `tributary bench checkpoint --help`. The last checkpoint is verified. Call it on
// the main thread: it starts daemons.
Result<Json> run_checkpoint_bench(const CheckpointBenchOptions& options) {
  const ScratchFolder folder;
  if (folder.path.empty()) return fail(ErrorCode::kIo, "cannot create a folder in /tmp");
  auto cluster = LocalCluster::start({.servers = options.servers,
                                      .nodes = options.nodes,
                                      .ranks_per_node = 1,
                                      .transport = options.transport,
                                      .base_dir = folder.path,
                                      .store_io_mb_per_s = options.io_mb_per_s,
                                      .log_level = "warn"});
  if (!cluster) return tl::unexpected(cluster.error());
  auto bench = std::make_unique<Bench>(options, **cluster, folder.path);
  Result<Json> result = bench->run();
  if (!result) (*cluster)->stop_now();  // no rank may wait for an answer that never comes
  bench.reset();
  const auto killed = (*cluster)->stop();
  if (result && !killed.empty())
    return fail(ErrorCode::kTimeout, killed.front() + " did not stop in time and was killed");
  return result;
}

}  // namespace

Measurement checkpoint() {
  const auto add = [](CliCommand command, CheckpointBenchOptions& o) {
    command.add_option("--servers", o.servers, "servers")->check(in_range(1, 64));
    command.add_option("--nodes", o.nodes, "nodes of one rank each")->check(in_range(1, 64));
    add_bytes(command, "--state", o.state_bytes, "parameters and AdamW's state, over all servers, as 1GiB");
    command.add_option("--saves", o.saves, "how many")->check(in_range(1, 100));
    command.add_option("--quiet", o.quiet_seconds, "seconds before each save")->check(in_range(0.5, 600.0));
    command.add_option("--compute-ms", o.compute_ms, "that ranks sleep between rounds")->check(in_range(0, 10'000));
    command.add_option("--io-mb-per-s", o.io_mb_per_s, "store.io_mb_per_s of each server");
  };
  return {.name = "checkpoint",
          .summary = "what saving a checkpoint costs the rounds meanwhile",
          .words = R"(Fields:
  pause_ms         longest round while saving, less the median of the quiet ones
  gap_ms           the same of the longest time of a round in which no tensor arrived
  noise_ms, gap_noise_ms  the same of the longest quiet round: what is no more than this may be chance
  quiet, saving    {rounds, median_round_ms, longest_round_ms, median_gap_ms, longest_gap_ms}
  slowest          the longest rounds while saving {round_ms, after_order_ms}
  save_seconds     of each save, from the order to COMPLETE, the snapshot included)",
          .add = measures<CheckpointBenchOptions>(add, run_checkpoint_bench)};
}

}  // namespace tributary::bench
