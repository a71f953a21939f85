#include "bench/pushpull.h"

#include <stdlib.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <sstream>
#include <thread>
#include <utility>
#include <vector>

#include "bench/echo_ceiling.h"
#include "bench/pushpull_ranks.h"
#include "bench/sample_model.h"
#include "bench/scratch_folder.h"
#include "cluster/http_client.h"
#include "common/encoding.h"
#include "common/median.h"
#include "common/redo_plan.h"
#include "server/redo_record.h"

namespace tributary::bench {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

constexpr std::uint64_t kWarmRounds = 2;
constexpr double kWarmSeconds = 120.0, kLapSeconds = 600.0;  // at most: of some rounds, of all that a ring holds
constexpr std::chrono::milliseconds kScrapeTimeout{5'000}, kScrapePause{50};
constexpr std::chrono::seconds kWriteSlack{30};  // beyond what the bytes of a snapshot take
constexpr std::uint32_t kStoreMbPerS = 200;      // of a server's snapshots
constexpr std::uint64_t kMostArrays = 4;         // of a chunk in a snapshot: parameters, an optimizer's state

JobConfig make_job(const PushPullOptions& options) {
  JobConfig job;
  job.name = "bench-pushpull";
  job.chunk_bytes = options.chunk_bytes;
  job.push = options.push;
  job.pull = options.pull;
  job.optimizer.name = options.optimizer;
  job.optimizer.lr = 1e-3;
  job.recovery = options.recovery;
  if (!options.store || options.recovery.redo_log == "none") job.snapshot = {.every_s = 0, .every_rounds = 0};
  return job;
}

std::vector<SessionOptions> make_sessions(const PushPullOptions& options, LocalCluster& cluster) {
  const JobConfig job = make_job(options);
  std::vector<SessionOptions> sessions;
  const std::uint32_t world = options.nodes * options.ranks_per_node;
  for (std::uint32_t rank = 0; rank < world; ++rank) {
    const std::uint32_t node = rank / options.ranks_per_node;
    SessionOptions session;
    session.socket = cluster.workers()[node].socket;
    session.job = job;
    session.gradients_move = options.ranks_write;
    session.topology = {.rank = rank,
                        .world_size = world,
                        .local_rank = rank % options.ranks_per_node,
                        .local_world_size = options.ranks_per_node,
                        .node_rank = node};
    sessions.push_back(std::move(session));
  }
  return sessions;
}

// Processor time so far, in seconds.
struct Cpu {
  double servers = 0.0, workers = 0.0, trainers = 0.0;
  double total() const { return servers + workers + trainers; }
};

Cpu cpu_now(LocalCluster& cluster) {
  Cpu cpu;
  rusage own{};
  ::getrusage(RUSAGE_SELF, &own);
  cpu.trainers = static_cast<double>(own.ru_utime.tv_sec + own.ru_stime.tv_sec) +
                 1e-6 * static_cast<double>(own.ru_utime.tv_usec + own.ru_stime.tv_usec);
  for (Daemon& d : cluster.servers()) cpu.servers += d.process.usage().cpu_seconds;
  for (Daemon& d : cluster.workers()) cpu.workers += d.process.usage().cpu_seconds;
  return cpu;
}

// Sum of a metric's samples in Prometheus text, over all labels.
double metric(const std::string& text, const std::string& name) {
  double sum = 0.0;
  std::istringstream lines(text);
  std::string line;
  while (std::getline(lines, line)) {
    if (!line.starts_with(name) || line.size() <= name.size()) continue;
    if (line[name.size()] != ' ' && line[name.size()] != '{') continue;
    sum += std::strtod(line.c_str() + line.rfind(' ') + 1, nullptr);
  }
  return sum;
}

// What the slices add up to.
struct Measured {
  std::vector<double> slices, pushed, pulled;  // GB/s
  double seconds = 0.0, gigabytes = 0.0, rounds = 0.0;
  Cpu cpu;
};

class Benchmark {
 public:
  Benchmark(const PushPullOptions& options, LocalCluster& cluster, std::string folder)
      : options_(options),
        cluster_(cluster),
        folder_(std::move(folder)),
        ranks_(make_sessions(options, cluster), sample_tensors(options.model_bytes), options.device),
        lanes_(static_cast<std::uint16_t>(std::max<std::size_t>(cluster.servers()[0].lanes.size(), 1))) {}

  Status wait_paused() { return ranks_.wait_paused(healthy()); }

  Result<Json> finish() {
    auto daemons = ask_daemons();
    if (!daemons) return tl::unexpected(daemons.error());
    const SessionStats totals = ranks_.totals();
    const auto nodes = ranks_.finish();
    if (!nodes) return tl::unexpected(nodes.error());
    for (const NodeResult& node : *nodes) {
      if (!node.finite) return fail(ErrorCode::kInternal, "a parameter is not finite after the benchmark");
      // Top-k may leave a small gradient in the residual for longer than this takes.
      const bool all_move = options_.push.id != EncodingId::kTopK;
      if (all_move && !node.moved) return fail(ErrorCode::kInternal, "a parameter was never updated");
      if (node.digest != nodes->front().digest) {
        return fail(ErrorCode::kInternal,
                    "the nodes' parameters differ: " + nodes->front().digest + " and " + node.digest);
      }
    }
    Json result = rates();
    result.update(*daemons);
    result.update(settings());
    result["bytes_pushed"] = totals.bytes_pushed;
    result["bytes_pulled"] = totals.bytes_pulled;
    result["digest"] = nodes->front().digest;
    return result;
  }

  // Rounds that no slice measures.
  Status warm_up(std::uint64_t rounds) {
    const std::uint64_t until = ranks_.rounds() + rounds;
    ranks_.resume();
    if (auto ok = ranks_.wait_until([&] { return ranks_.rounds() >= until; }, kLapSeconds, healthy()); !ok) return ok;
    return ranks_.pause(healthy());
  }

  Status slice() {
    const double seconds = options_.seconds / options_.slices;
    const std::uint64_t before = ranks_.rounds();
    ranks_.resume();
    if (auto ok = ranks_.wait_until([&] { return ranks_.rounds() >= before + kWarmRounds; }, kWarmSeconds, healthy());
        !ok)
      return ok;
    const std::uint64_t rounds = ranks_.rounds();
    const SessionStats first = ranks_.totals();
    const Cpu cpu_first = cpu_now(cluster_);
    const auto begin = Clock::now();
    const auto over = [&] { return std::chrono::duration<double>(Clock::now() - begin).count() >= seconds; };
    if (auto ok = ranks_.wait_until(over, seconds + kWarmSeconds, healthy()); !ok) return ok;
    const SessionStats last = ranks_.totals();
    const double elapsed = std::chrono::duration<double>(Clock::now() - begin).count();
    const Cpu cpu_last = cpu_now(cluster_);
    const double pushed = 1e-9 * static_cast<double>(last.bytes_pushed - first.bytes_pushed);
    const double pulled = 1e-9 * static_cast<double>(last.bytes_pulled - first.bytes_pulled);
    measured_.pushed.push_back(pushed / elapsed);
    measured_.pulled.push_back(pulled / elapsed);
    measured_.slices.push_back(std::min(pushed, pulled) / elapsed);
    measured_.gigabytes += std::min(pushed, pulled);
    measured_.seconds += elapsed;
    measured_.rounds += static_cast<double>(ranks_.rounds() - rounds);
    measured_.cpu.servers += cpu_last.servers - cpu_first.servers;
    measured_.cpu.workers += cpu_last.workers - cpu_first.workers;
    measured_.cpu.trainers += cpu_last.trainers - cpu_first.trainers;
    return ranks_.pause(healthy());
  }

  Status ceiling() {
    if (!options_.ceiling) return {};
    const auto echo = measure_echo({.transport = options_.transport,
                                    .chunk_bytes = ranks_.chunk_bytes(),
                                    .model_bytes = options_.model_bytes,
                                    .pairs = static_cast<std::uint16_t>(options_.servers * lanes_),
                                    .optimizer = options_.optimizer,
                                    .seconds = options_.seconds / options_.slices,
                                    .folder = folder_,
                                    .program = options_.program});
    if (!echo) return tl::unexpected(echo.error());
    ceilings_.push_back(echo->gb_per_s_each_way);
    ceiling_cpu_.push_back(echo->cpu_seconds_per_gb);
    return {};
  }

  double rate() const { return median(measured_.slices); }
  const std::vector<double>& slices() const { return measured_.slices; }

  // What the servers have written, when they have nothing more to write. kTimeout: they do not come to an end.
  Result<Json> written() {
    const std::uint64_t bytes = kMostArrays * options_.model_bytes / options_.servers;
    const auto patience = kWriteSlack + std::chrono::milliseconds(bytes / 1000 / kStoreMbPerS);
    for (const auto until = Clock::now() + patience; Clock::now() < until;) {
      bool busy = false;
      std::uint64_t snapshots = 0, logged = 0, round = 0;
      for (Daemon& server : cluster_.servers()) {
        const auto text = http_get(server.admin, "/status", kScrapeTimeout);
        if (!text) return tl::unexpected(text.error());
        const Json status = Json::parse(*text, nullptr, false);
        if (!status.is_object() || status.at("jobs").empty()) continue;
        const Json& job = status.at("jobs").at(0);
        const Json& snapshot = job.at("snapshot");
        // One that is named for a round that was not reached waits for the next slice.
        busy = busy || (snapshot.at("pending").is_number() && snapshot.at("pending") <= job.at("min_version"));
        snapshots += snapshot.at("bytes").get<std::uint64_t>();
        if (snapshot.at("durable").is_number()) round = snapshot.at("durable").get<std::uint64_t>();
        if (job.at("redo_log").is_null()) continue;
        busy = busy || job.at("redo_log").at("queued_steps") != 0;
        logged += job.at("redo_log").at("written_bytes").get<std::uint64_t>();
      }
      if (!busy) return Json{{"snapshot_bytes", snapshots}, {"newest_snapshot", round}, {"log_bytes", logged}};
      std::this_thread::sleep_for(kScrapePause);
    }
    return fail(ErrorCode::kTimeout, "the servers were still writing after " + std::to_string(patience.count() / 1000) +
                                         " s; the disk is too slow for this model");
  }

  std::uint64_t chunk_bytes() const { return ranks_.chunk_bytes(); }
  std::uint16_t lanes() const { return lanes_; }

 private:
  Ranks::Healthy healthy() {
    return [this]() -> Status {
      if (const auto failure = cluster_.failure()) return fail(ErrorCode::kUnavailable, *failure);
      return {};
    };
  }

  Result<Json> ask_daemons() {
    double window = 0.0, socket_bytes = 0.0;
    for (Daemon& worker : cluster_.workers()) {
      const auto text = http_get(worker.admin, "/metrics", kScrapeTimeout);
      if (!text) return tl::unexpected(text.error());
      window = std::max(window, metric(*text, "tributary_worker_window_bytes"));
      socket_bytes += metric(*text, "tributary_worker_socket_payload_bytes_total");
    }
    Json peaks = Json::array(), formulas = Json::array();
    double ratio = 0.0;
    for (Daemon& server : cluster_.servers()) {
      const auto text = http_get(server.admin, "/metrics", kScrapeTimeout);
      if (!text) return tl::unexpected(text.error());
      const double formula = metric(*text, "tributary_memory_formula_bytes");
      const auto peak = static_cast<double>(server.process.usage().resident_peak_bytes);
      peaks.push_back(server.process.usage().resident_peak_bytes);
      formulas.push_back(static_cast<std::uint64_t>(formula));
      if (formula > 0.0) ratio = std::max(ratio, peak / formula);
    }
    const auto chunk = static_cast<double>(std::max<std::uint64_t>(ranks_.chunk_bytes(), 1));
    Json found = {{"socket_payload_bytes", static_cast<std::uint64_t>(socket_bytes)},
                  {"window", {{"bytes", window}, {"chunks", window / chunk}}},
                  {"memory", {{"server_peak_bytes", peaks}, {"formula_bytes", formulas}, {"ratio", ratio}}}};
    if (options_.device) {
      if (auto ok = ask_devices(found); !ok) return tl::unexpected(ok.error());
    }
    return found;
  }

  // What the first node's devices did, in its worker's words.
  Status ask_devices(Json& found) {
    const auto text = http_get(cluster_.workers()[0].admin, "/status", kScrapeTimeout);
    if (!text) return tl::unexpected(text.error());
    const Json status = Json::parse(*text, nullptr, false);
    const bool told = status.is_object() && status.contains("jobs") && !status["jobs"].empty() &&
                      status["jobs"][0].contains("device_times");
    if (!told) return fail(ErrorCode::kInternal, "the worker's /status tells nothing of its devices");
    found["reduced_on"] = status["jobs"][0]["reduced_on"];
    found["device_times"] = status["jobs"][0]["device_times"];
    return {};
  }

  Json rates() const {
    const double rate = median(measured_.slices), ceiling = median(ceilings_);
    const double gigabytes = std::max(measured_.gigabytes, 1e-9);
    return {{"gb_per_s_each_way", rate},
            {"gb_per_s_pushed", median(measured_.pushed)},
            {"gb_per_s_pulled", median(measured_.pulled)},
            {"ceiling_gb_per_s", ceiling},
            {"ratio_to_ceiling", ceiling > 0.0 ? rate / ceiling : 0.0},
            {"cpu_seconds_per_gb", measured_.cpu.total() / gigabytes},
            {"cpu_seconds_per_gb_of",
             {{"servers", measured_.cpu.servers / gigabytes},
              {"workers", measured_.cpu.workers / gigabytes},
              {"trainers", measured_.cpu.trainers / gigabytes}}},
            {"ceiling_cpu_seconds_per_gb", median(ceiling_cpu_)},
            {"rounds_per_s", measured_.rounds / std::max(measured_.seconds, 1e-9)},
            {"seconds", measured_.seconds},
            {"slices_gb_per_s", measured_.slices},
            {"ceilings_gb_per_s", ceilings_}};
  }

  Json settings() const {
    return {{"chunk_bytes", ranks_.chunk_bytes()},
            {"lanes", lanes_},
            {"servers", options_.servers},
            {"nodes", options_.nodes},
            {"ranks_per_node", options_.ranks_per_node},
            {"model_bytes", options_.model_bytes},
            {"tensors", sample_tensors(options_.model_bytes).size()},
            {"optimizer", options_.optimizer},
            {"push", make_encoding(options_.push)->name()},
            {"pull", make_encoding(options_.pull)->name()},
            {"transport", transport_name(options_.transport)}};
  }

  const PushPullOptions& options_;
  LocalCluster& cluster_;
  const std::string folder_;
  Ranks ranks_;
  const std::uint16_t lanes_;
  Measured measured_;
  std::vector<double> ceilings_, ceiling_cpu_;
};

// A cluster and what measures it.
class Setup {
 public:
  static Result<std::unique_ptr<Setup>> start(const PushPullOptions& options) {
    std::unique_ptr<Setup> setup(new Setup(options));
    const std::string& folder = setup->folder_.path;
    if (folder.empty()) return fail(ErrorCode::kIo, "cannot create a folder in /tmp");
    auto cluster = LocalCluster::start({.servers = options.servers,
                                        .nodes = options.nodes,
                                        .ranks_per_node = options.ranks_per_node,
                                        .lanes = options.lanes,
                                        .transport = options.transport,
                                        .base_dir = folder,
                                        .store = options.store,
                                        .store_io_mb_per_s = kStoreMbPerS,
                                        .window_bytes = options.window_bytes,
                                        .log_level = "warn",
                                        .extra_worker_toml = options.worker_toml});
    if (!cluster) return tl::unexpected(cluster.error());
    setup->cluster_ = std::move(*cluster);
    setup->benchmark_ = std::make_unique<Benchmark>(setup->options_, *setup->cluster_, folder);
    return setup;
  }
  // Without stop() something failed: the daemons go first, no rank may wait for an answer that never comes.
  ~Setup() {
    if (cluster_ && benchmark_) cluster_->stop_now();
  }
  Benchmark& benchmark() { return *benchmark_; }

  Status stop() {
    const auto killed = cluster_->stop();
    benchmark_.reset();
    if (killed.empty()) return {};
    return fail(ErrorCode::kTimeout, killed.front() + " did not stop in time and was killed");
  }

 private:
  explicit Setup(const PushPullOptions& options) : options_(options) {}

  const PushPullOptions options_;
  const ScratchFolder folder_;
  std::unique_ptr<LocalCluster> cluster_;
  std::unique_ptr<Benchmark> benchmark_;
};

}  // namespace

Result<Json> run_pushpull(const PushPullOptions& options) {
  auto setup = Setup::start(options);
  if (!setup) return tl::unexpected(setup.error());
  Benchmark& measured = (*setup)->benchmark();
  if (auto ok = measured.wait_paused(); !ok) return tl::unexpected(ok.error());
  // Shared memory is compared with loopback, in turns, as everything else is with the ceiling.
  std::unique_ptr<Setup> other;
  if (options.transport == Transport::kShm && !options.device) {
    PushPullOptions over_tcp = options;
    over_tcp.transport = Transport::kTcp;
    auto started = Setup::start(over_tcp);
    if (!started) return tl::unexpected(started.error());
    other = std::move(*started);
    if (auto ok = other->benchmark().wait_paused(); !ok) return tl::unexpected(ok.error());
  }
  const auto baseline = [&]() -> Status { return other ? other->benchmark().slice() : measured.ceiling(); };
  if (auto ok = baseline(); !ok) return tl::unexpected(ok.error());
  for (std::uint32_t i = 0; i < options.slices; ++i) {
    if (auto ok = measured.slice(); !ok) return tl::unexpected(ok.error());
    if (auto ok = baseline(); !ok) return tl::unexpected(ok.error());
  }
  auto result = measured.finish();
  if (!result) return result;
  if (other) {
    const auto compared = other->benchmark().finish();
    if (!compared) return compared;
    const double tcp = compared->at("gb_per_s_each_way").get<double>();
    (*result)["tcp_gb_per_s_each_way"] = tcp;
    (*result)["ratio_to_tcp"] = tcp > 0.0 ? measured.rate() / tcp : 0.0;
    (*result)["tcp_cpu_seconds_per_gb"] = compared->at("cpu_seconds_per_gb");
    (*result)["tcp_slices_gb_per_s"] = compared->at("slices_gb_per_s");
    if (auto ok = other->stop(); !ok) return tl::unexpected(ok.error());
  }
  if (auto ok = (*setup)->stop(); !ok) return tl::unexpected(ok.error());
  return result;
}

namespace {

// Rounds that nodes (redo_log "workers") or servers' logs ("disk") keep. 0: they have no room for enough.
Result<std::uint32_t> kept_rounds(const PushPullOptions& options, const Benchmark& benchmark) {
  const JobConfig job = make_job(options);
  const auto layout =
      Layout::make(sample_tensors(options.model_bytes), benchmark.chunk_bytes() / sizeof(float),
                   std::vector<ShardSlots>(options.servers, ShardSlots{.lanes = benchmark.lanes(), .weight = 1.0}));
  if (!layout) return tl::unexpected(layout.error());
  if (!logs_steps(job)) return redo_rounds(job, push_bytes(*layout, job.push));
  return log_rounds(job, layout->owners(), layout->chunk_elements());
}

// The same, or kInvalidArgument with what would do: where nothing is kept there is nothing to measure.
Result<std::uint32_t> some_kept_rounds(const PushPullOptions& options, const Benchmark& benchmark) {
  const auto kept = kept_rounds(options, benchmark);
  if (!kept || *kept > 0) return kept;
  const bool disk = options.recovery.redo_log == "disk";
  const auto room = [disk](PushPullOptions& one) -> std::uint32_t& {
    return disk ? one.recovery.log_mb : one.recovery.redo_mb;
  };
  const auto enough = [&](const PushPullOptions& one) { return kept_rounds(one, benchmark).value_or(1) > 0; };
  PushPullOptions larger = options, smaller = options;
  while (!enough(larger) && room(larger) < (1u << 24)) room(larger) = std::max(2 * room(larger), 64u);
  while (!enough(smaller) && smaller.model_bytes > (1u << 20)) smaller.model_bytes /= 2;
  const std::string option = disk ? "--log-mb " : "--redo-mb ";
  return fail(ErrorCode::kInvalidArgument,
              "with redo_log \"" + options.recovery.redo_log + "\" nothing is kept of a model of " +
                  std::to_string(options.model_bytes) + " bytes, as fewer than " + std::to_string(kMinRedoRounds) +
                  " rounds fit " + option + std::to_string(room(smaller)) + "; give " + option +
                  std::to_string(room(larger)) + ", or --model-bytes " + std::to_string(smaller.model_bytes));
}

}  // namespace

Result<Json> run_durability(const PushPullOptions& options) {
  struct Variant {
    const char* name;
    std::unique_ptr<Setup> setup;
    Json written;
    std::uint32_t kept = 0;
  };
  Variant variants[3] = {{"off", {}, {}}, {"workers", {}, {}}, {"disk", {}, {}}};
  for (Variant& variant : variants) {
    PushPullOptions one = options;
    one.store = true;
    one.ceiling = false;
    one.ranks_write = true;
    one.recovery.redo_log = variant.name == std::string("off") ? "none" : variant.name;
    auto setup = Setup::start(one);
    if (!setup) return tl::unexpected(setup.error());
    variant.setup = std::move(*setup);
    if (auto ok = variant.setup->benchmark().wait_paused(); !ok) return tl::unexpected(ok.error());
    if (one.recovery.redo_log == "none") continue;
    const auto kept = some_kept_rounds(one, variant.setup->benchmark());
    if (!kept) return tl::unexpected(kept.error());
    variant.kept = *kept;
  }
  // A ring's memory is got when it is gone round for the first time, and a snapshot's with the first one: once in the
  // life of a job, not what a round costs.
  for (Variant& variant : variants) {
    Benchmark& benchmark = variant.setup->benchmark();
    if (auto ok = benchmark.warm_up(variants[1].kept + kWarmRounds); !ok) return tl::unexpected(ok.error());
    if (auto written = benchmark.written(); !written) return written;
  }
  for (std::uint32_t i = 0; i < options.slices; ++i) {
    for (std::size_t turn = 0; turn < std::size(variants); ++turn) {
      // Who goes first in one slice goes last in the next: nobody always follows the same one.
      Variant& variant = variants[(i + turn) % std::size(variants)];
      if (auto ok = variant.setup->benchmark().slice(); !ok) return tl::unexpected(ok.error());
      auto written = variant.setup->benchmark().written();
      if (!written) return written;
      variant.written = std::move(*written);
    }
  }
  // What "workers" costs is snapshots as much as copies. (A log may have room for all of the run.)
  if (variants[1].written.at("newest_snapshot") == 0) {
    return fail(ErrorCode::kUnavailable,
                "there was no snapshot with redo_log \"workers\", so this says nothing of what they cost; give more "
                "--seconds");
  }
  Json result;
  const std::vector<double> off = variants[0].setup->benchmark().slices();
  for (Variant& variant : variants) {
    std::vector<double> ratios;
    const std::vector<double> slices = variant.setup->benchmark().slices();
    for (std::size_t i = 0; i < slices.size(); ++i) ratios.push_back(slices[i] / off[i]);
    auto measured = variant.setup->benchmark().finish();
    if (!measured) return measured;
    Json& entry = result[variant.name];
    for (const char* key : {"gb_per_s_each_way", "rounds_per_s", "cpu_seconds_per_gb", "slices_gb_per_s"})
      entry[key] = measured->at(key);
    entry["cpu_seconds_per_gb_of_servers"] = measured->at("cpu_seconds_per_gb_of").at("servers");
    entry["ratio_to_off"] = median(ratios);
    entry["kept_rounds"] = variant.kept;
    entry.update(variant.written);
    for (const char* key :
         {"servers", "nodes", "ranks_per_node", "model_bytes", "optimizer", "transport", "chunk_bytes"})
      result[key] = measured->at(key);
  }
  for (Variant& variant : variants) {
    if (auto ok = variant.setup->stop(); !ok) return tl::unexpected(ok.error());
  }
  return result;
}

}  // namespace tributary::bench
