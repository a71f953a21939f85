#include "bench/pushpull.h"

#include <stdlib.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <filesystem>
#include <limits>
#include <memory>
#include <mutex>
#include <sstream>
#include <thread>
#include <utility>
#include <vector>

#include "bench/echo_ceiling.h"
#include "cluster/http_client.h"
#include "common/digest.h"
#include "common/encoding.h"
#include "worker/session.h"

namespace tributary::bench {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr int kSlices = 5;
constexpr std::uint64_t kWarmRounds = 2;
constexpr std::uint64_t kNever = std::numeric_limits<std::uint64_t>::max();
constexpr milliseconds kGateTimeout{120'000};
constexpr milliseconds kScrapeTimeout{5'000};

struct TempDir {
  TempDir() {
    char name[] = "/tmp/tributary-bench-XXXXXX";
    if (::mkdtemp(name)) path = name;
  }
  ~TempDir() {
    std::error_code ignored;
    if (!path.empty()) std::filesystem::remove_all(path, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  std::string path;
};

std::vector<TensorSpec> make_tensors(std::uint64_t model_bytes) {
  const std::uint64_t count = std::max(kMinTensors, (model_bytes + kMaxTensorBytes - 1) / kMaxTensorBytes);
  const std::uint64_t elements =
      std::max<std::uint64_t>(model_bytes / sizeof(float) / count / kTensorAlign, 1) * kTensorAlign;
  std::vector<TensorSpec> tensors;
  for (std::uint64_t i = 0; i < count; ++i) tensors.push_back({"layer" + std::to_string(i), {elements}});
  return tensors;
}

// What the rank threads and the main thread share. Rank 0 ends a slice: it is asked through `pause`, and names the last
// round before it declares anything of that round ready. Nobody can complete that round's first tensor without rank 0,
// so everybody who reaches the next round has seen the name, and all ranks stop after the same round.
struct Shared {
  std::atomic<bool> pause{false};
  std::atomic<std::uint64_t> last_round{kNever};
  std::atomic<std::uint64_t> tensor_bytes{0};  // fp32 bytes of answered tensors, added up over nodes
  std::atomic<std::uint64_t> rounds{0};        // of rank 0

  std::mutex mutex;
  std::condition_variable changed;
  int slice = 0;             // grows when the ranks may go on; guarded by mutex
  std::uint32_t paused = 0;  // ranks at the gate
  bool over = false;
  std::string error;  // the first one

  void report(const std::string& text) {
    const std::lock_guard lock(mutex);
    if (error.empty()) error = text;
    over = true;
    changed.notify_all();
  }
};

struct NodeResult {
  std::uint64_t chunk_bytes = 0;
  std::string digest;  // of rank 0 of the node
  bool finite = true;
  bool moved = true;
  SessionStats stats;
};

class RankThread {
 public:
  RankThread(SessionOptions options, const std::vector<TensorSpec>& tensors, Shared& shared, NodeResult* result)
      : options_(std::move(options)), tensors_(tensors), shared_(shared), result_(result) {}

  void run() {
    if (auto ok = train(); !ok)
      shared_.report("rank " + std::to_string(options_.topology.rank) + ": " + ok.error().message);
  }

 private:
  static constexpr float kInitial = 1.0f;

  Status train() {
    auto attached = Session::attach(options_, tensors_);
    if (!attached) return tl::unexpected(attached.error());
    Session& session = **attached;
    const bool is_first = options_.topology.rank == 0;
    if (is_first && session.fresh()) {
      for (std::size_t t = 0; t < tensors_.size(); ++t) std::ranges::fill(session.initial(t), kInitial);
    }
    if (auto ok = session.start(); !ok) return ok;
    if (result_) result_->chunk_bytes = session.layout().chunk_elements() * sizeof(float);
    for (std::size_t t = 0; t < tensors_.size(); ++t) {
      float value = 1e-3f * static_cast<float>(options_.topology.rank + 1);
      for (float& g : session.gradient(t)) g = value = -value;
    }
    int slice = 0;
    if (!gate(++slice)) return finish(session);
    for (std::uint64_t round = 1;; ++round) {
      for (std::size_t t = 0; t < tensors_.size(); ++t) {
        if (round > 1) {
          const auto state = session.wait(t);
          if (!state) return tl::unexpected(state.error());
          if (*state != StepState::kContinue) return fail(ErrorCode::kStopped, "stopped: " + session.stop_reason());
          if (result_)
            shared_.tensor_bytes.fetch_add(tensors_[t].elements() * sizeof(float), std::memory_order_relaxed);
        }
        if (t == 0) {
          if (is_first && shared_.pause.load()) shared_.last_round.store(round), shared_.pause.store(false);
          if (round > shared_.last_round.load()) {
            if (auto ok = session.wait(); !ok) return tl::unexpected(ok.error());
            if (!gate(++slice)) return finish(session);
          }
          if (is_first) shared_.rounds.store(round);
        }
        session.ready(t, 1);
      }
    }
  }

  // All ranks wait here between slices. False: that was the last.
  bool gate(int slice) {
    std::unique_lock lock(shared_.mutex);
    ++shared_.paused;
    shared_.changed.notify_all();
    shared_.changed.wait(lock, [&] { return shared_.slice >= slice || shared_.over; });
    return !shared_.over;
  }

  Status finish(Session& session) {
    if (result_) {
      const Layout& layout = session.layout();
      ParameterDigest digest;
      for (std::size_t t = 0; t < tensors_.size(); ++t) {
        const std::span<const float> parameters = session.parameters(t);
        for (const float p : parameters) {
          result_->finite = result_->finite && std::isfinite(p);
          result_->moved = result_->moved && p != kInitial;
        }
        digest.add(layout.tensors()[t], parameters);
      }
      result_->digest = digest.hex();
      result_->stats = session.stats();
    }
    return session.finish(LeaveKind::kFinished);
  }

  const SessionOptions options_;
  const std::vector<TensorSpec>& tensors_;
  Shared& shared_;
  NodeResult* result_;  // of this rank's node, if this is its first rank
};

double own_cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         1e-6 * static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

double cpu_seconds(LocalCluster& cluster) {
  double sum = own_cpu_seconds();
  for (auto* daemons : {&cluster.servers(), &cluster.workers()}) {
    for (Daemon& d : *daemons) sum += d.process.usage().cpu_seconds;
  }
  return sum;
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t n = values.size();
  return n == 0 ? 0.0 : (values[(n - 1) / 2] + values[n / 2]) / 2.0;
}

// Sum, and largest, of a metric's samples in Prometheus text; labels do not matter.
std::pair<double, double> metric(const std::string& text, const std::string& name) {
  double sum = 0.0, most = 0.0;
  std::istringstream lines(text);
  std::string line;
  while (std::getline(lines, line)) {
    if (!line.starts_with(name) || line.size() <= name.size()) continue;
    if (line[name.size()] != ' ' && line[name.size()] != '{') continue;
    const double value = std::strtod(line.c_str() + line.rfind(' ') + 1, nullptr);
    sum += value;
    most = std::max(most, value);
  }
  return {sum, most};
}

struct Slice {
  double bytes = 0.0, seconds = 0.0, cpu = 0.0;
  std::uint64_t rounds = 0;
};

// The main thread's side: lets the ranks run, measures, stops them again.
class Conductor {
 public:
  Conductor(LocalCluster& cluster, Shared& shared, std::uint32_t world)
      : cluster_(cluster), shared_(shared), world_(world) {}

  // All ranks are at the gate.
  Status gathered() {
    std::unique_lock lock(shared_.mutex);
    const auto until = Clock::now() + kGateTimeout;
    while (shared_.paused < world_ && shared_.error.empty()) {
      shared_.changed.wait_for(lock, milliseconds(200));
      if (const auto failure = cluster_.failure()) return fail(ErrorCode::kUnavailable, *failure);
      if (Clock::now() > until) return fail(ErrorCode::kTimeout, "the trainers do not come to a stop");
    }
    return shared_.error.empty() ? Status{} : fail(ErrorCode::kUnavailable, shared_.error);
  }

  Result<Slice> slice(double seconds) {
    const std::uint64_t start = shared_.rounds.load();
    {
      const std::lock_guard lock(shared_.mutex);
      shared_.last_round = kNever;
      shared_.paused = 0;
      ++shared_.slice;
      shared_.changed.notify_all();
    }
    if (auto ok = sleep_until([&] { return shared_.rounds.load() >= start + kWarmRounds; }, kGateTimeout); !ok) {
      return tl::unexpected(ok.error());
    }
    Slice result;
    const std::uint64_t rounds = shared_.rounds.load();
    const auto bytes = shared_.tensor_bytes.load();
    const double cpu = cpu_seconds(cluster_);
    const auto begin = Clock::now();
    const auto nap = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
    if (auto ok = sleep_until([&] { return Clock::now() >= begin + nap; }, kGateTimeout); !ok)
      return tl::unexpected(ok.error());
    result.bytes = static_cast<double>(shared_.tensor_bytes.load() - bytes);
    result.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    result.cpu = cpu_seconds(cluster_) - cpu;
    result.rounds = shared_.rounds.load() - rounds;
    shared_.pause = true;
    if (auto ok = gathered(); !ok) return tl::unexpected(ok.error());
    return result;
  }

  void end() {
    const std::lock_guard lock(shared_.mutex);
    shared_.over = true;
    shared_.changed.notify_all();
  }

 private:
  template <class Condition>
  Status sleep_until(const Condition& condition, milliseconds timeout) {
    const auto until = Clock::now() + timeout;
    while (!condition()) {
      if (const auto failure = cluster_.failure()) return fail(ErrorCode::kUnavailable, *failure);
      {
        const std::lock_guard lock(shared_.mutex);
        if (!shared_.error.empty()) return fail(ErrorCode::kUnavailable, shared_.error);
      }
      if (Clock::now() > until) return fail(ErrorCode::kTimeout, "the trainers make no progress");
      std::this_thread::sleep_for(milliseconds(1));
    }
    return {};
  }

  LocalCluster& cluster_;
  Shared& shared_;
  const std::uint32_t world_;
};

JobConfig job_of(const PushPullOptions& options) {
  JobConfig job;
  job.name = "bench-pushpull";
  job.chunk_bytes = options.chunk_bytes;
  job.push = options.push;
  job.pull = options.pull;
  job.optimizer.name = options.optimizer;
  job.optimizer.lr = 1e-3;
  job.snapshot = {.every_s = 0, .every_rounds = 0};
  return job;
}

}  // namespace

Result<nlohmann::ordered_json> run_pushpull(const PushPullOptions& options) {
  const TempDir folder;
  if (folder.path.empty()) return fail(ErrorCode::kIo, "cannot create a folder in /tmp");
  const std::uint32_t world = options.nodes * options.ranks_per_node;
  const std::vector<TensorSpec> tensors = make_tensors(options.model_bytes);

  auto started = LocalCluster::start({.servers = options.servers,
                                      .nodes = options.nodes,
                                      .ranks_per_node = options.ranks_per_node,
                                      .lanes = options.lanes,
                                      .transport = options.transport,
                                      .base_dir = folder.path,
                                      .store = options.store,
                                      .window_bytes = options.window_bytes,
                                      .log_level = "warn"});
  if (!started) return tl::unexpected(started.error());
  LocalCluster& cluster = **started;

  Shared shared;
  std::vector<NodeResult> nodes(options.nodes);
  std::vector<std::unique_ptr<RankThread>> ranks;
  std::vector<std::jthread> threads;
  // Whatever happens below: the threads must come to an end before what they use goes.
  struct Ender {
    Shared& shared;
    ~Ender() {
      const std::lock_guard lock(shared.mutex);
      shared.over = true;
      shared.changed.notify_all();
    }
  };
  for (std::uint32_t rank = 0; rank < world; ++rank) {
    const std::uint32_t node = rank / options.ranks_per_node, local = rank % options.ranks_per_node;
    SessionOptions session;
    session.socket = cluster.workers()[node].socket;
    session.job = job_of(options);
    session.topology = {.rank = rank,
                        .world_size = world,
                        .local_rank = local,
                        .local_world_size = options.ranks_per_node,
                        .node_rank = node};
    ranks.push_back(
        std::make_unique<RankThread>(std::move(session), tensors, shared, local == 0 ? &nodes[node] : nullptr));
  }
  for (auto& rank : ranks) threads.emplace_back([&rank] { rank->run(); });
  const Ender ender{shared};

  Conductor conductor(cluster, shared, world);
  // An error: the daemons go first, so that no rank waits for an answer for ever.
  const auto abandon = [&](const Error& error) {
    conductor.end();
    cluster.stop_now();
    return tl::unexpected(error);
  };
  if (auto ok = conductor.gathered(); !ok) return abandon(ok.error());

  const auto lanes = static_cast<std::uint16_t>(std::max<std::size_t>(cluster.servers()[0].lanes.size(), 1));
  const std::uint64_t chunk_bytes = nodes[0].chunk_bytes;
  std::vector<double> ceilings, ceiling_cpu;
  const auto measure_ceiling = [&]() -> Status {
    if (!options.ceiling) return {};
    const auto echo = measure_echo({.transport = options.transport,
                                    .chunk_bytes = chunk_bytes,
                                    .model_bytes = options.model_bytes,
                                    .pairs = static_cast<std::uint16_t>(options.servers * lanes),
                                    .optimizer = options.optimizer,
                                    .seconds = options.seconds / kSlices,
                                    .folder = folder.path,
                                    .program = options.program});
    if (!echo) return tl::unexpected(echo.error());
    ceilings.push_back(echo->gb_per_s_each_way);
    ceiling_cpu.push_back(echo->cpu_seconds_per_gb);
    return {};
  };

  Slice total;
  std::vector<double> slices;
  if (auto ok = measure_ceiling(); !ok) return abandon(ok.error());
  for (int i = 0; i < kSlices; ++i) {
    const auto slice = conductor.slice(options.seconds / kSlices);
    if (!slice) return abandon(slice.error());
    slices.push_back(slice->bytes * 1e-9 / slice->seconds);
    total.bytes += slice->bytes;
    total.seconds += slice->seconds;
    total.cpu += slice->cpu;
    total.rounds += slice->rounds;
    if (auto ok = measure_ceiling(); !ok) return abandon(ok.error());
  }

  double window = 0.0, push_bytes = 0.0, pull_bytes = 0.0;
  for (Daemon& worker : cluster.workers()) {
    const auto text = http_get(worker.admin, "/metrics", kScrapeTimeout);
    if (!text) return abandon(text.error());
    window = std::max(window, metric(*text, "tributary_worker_window_bytes").second);
  }
  nlohmann::ordered_json peaks = nlohmann::ordered_json::array(), formulas = nlohmann::ordered_json::array();
  double memory_ratio = 0.0;
  for (Daemon& server : cluster.servers()) {
    const auto text = http_get(server.admin, "/metrics", kScrapeTimeout);
    if (!text) return abandon(text.error());
    const double formula = metric(*text, "tributary_memory_formula_bytes").first;
    const auto peak = static_cast<double>(server.process.usage().resident_peak_bytes);
    peaks.push_back(peak);
    formulas.push_back(formula);
    if (formula > 0.0) memory_ratio = std::max(memory_ratio, peak / formula);
  }
  conductor.end();
  threads.clear();  // joins
  if (!shared.error.empty()) return abandon({ErrorCode::kUnavailable, shared.error});
  for (const NodeResult& node : nodes) {
    push_bytes += static_cast<double>(node.stats.bytes_pushed);
    pull_bytes += static_cast<double>(node.stats.bytes_pulled);
    if (!node.finite) return abandon({ErrorCode::kInternal, "a parameter is not finite after the benchmark"});
    if (!node.moved) return abandon({ErrorCode::kInternal, "a parameter was never updated"});
    if (node.digest != nodes[0].digest) {
      return abandon(
          {ErrorCode::kInternal, "the nodes' parameters differ: " + nodes[0].digest + " and " + node.digest});
    }
  }
  const auto killed = cluster.stop();
  if (!killed.empty()) return fail(ErrorCode::kTimeout, killed.front() + " did not stop in time and was killed");

  const double gigabytes = total.bytes * 1e-9;
  const double rate = median(slices), ceiling = median(ceilings);
  nlohmann::ordered_json result = {
      {"gb_per_s_each_way", rate},
      {"cpu_seconds_per_gb", gigabytes > 0.0 ? total.cpu / gigabytes : 0.0},
      {"ceiling_gb_per_s", ceiling},
      {"ceiling_cpu_seconds_per_gb", median(ceiling_cpu)},
      {"ratio_to_ceiling", ceiling > 0.0 ? rate / ceiling : 0.0},
      {"rounds_per_s", static_cast<double>(total.rounds) / total.seconds},
      {"chunk_bytes", chunk_bytes},
      {"window", {{"bytes", window}, {"chunks", chunk_bytes > 0 ? window / static_cast<double>(chunk_bytes) : 0.0}}},
      {"lanes", lanes},
      {"servers", options.servers},
      {"nodes", options.nodes},
      {"ranks_per_node", options.ranks_per_node},
      {"model_bytes", options.model_bytes},
      {"tensors", tensors.size()},
      {"optimizer", options.optimizer},
      {"push", encoding_for(options.push).name()},
      {"pull", encoding_for(options.pull).name()},
      {"transport", options.transport == Transport::kIpc ? "ipc" : "tcp"},
      {"seconds", total.seconds},
      {"slices_gb_per_s", slices},
      {"ceilings_gb_per_s", ceilings},
      {"memory", {{"server_peak_bytes", peaks}, {"formula_bytes", formulas}, {"ratio", memory_ratio}}},
      {"bytes_pushed", push_bytes},
      {"bytes_pulled", pull_bytes},
      {"digest", nodes[0].digest},
  };
  return result;
}

}  // namespace tributary::bench
