#include "bench/pushpull/pushpull_setup.h"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <sstream>
#include <thread>
#include <utility>

#include "bench/pushpull/echo_ceiling.h"
#include "bench/sample_model.h"
#include "common/config/json_text.h"
#include "common/daemon/http_client.h"
#include "common/math/encoding.h"
#include "common/math/median.h"

namespace tributary::bench {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

namespace {

bool takes_snapshots(const PushPullOptions& options) {
  return options.store && (options.snapshot.every_s != 0 || options.snapshot.every_rounds != 0);
}

}  // namespace

JobConfig pushpull_job(const PushPullOptions& options) {
  JobConfig job;
  job.name = "bench-pushpull";
  job.chunk_bytes = options.chunk_bytes;
  job.push = options.push;
  job.pull = options.pull;
  job.optimizer = default_optimizer(options.optimizer);
  job.optimizer.lr = 1e-3;
  job.recovery = options.recovery;
  job.snapshot = takes_snapshots(options) ? options.snapshot : kNoSnapshots;
  return job;
}

namespace {

constexpr double kWarmSeconds = 120.0, kLapSeconds = 600.0;  // at most: of some rounds, of all that a ring holds
constexpr std::chrono::milliseconds kScrapeTimeout{5'000}, kScrapePause{50};
constexpr std::chrono::seconds kWriteSlack{30};  // beyond what the bytes of a snapshot take
constexpr std::uint32_t kStoreMbPerS = 200;      // of a server's snapshots
constexpr std::uint64_t kMostArrays = 4;         // of a chunk in a snapshot: parameters, an optimizer's state

std::vector<SessionOptions> make_sessions(const PushPullOptions& options, LocalCluster& cluster) {
  const JobConfig job = pushpull_job(options);
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

}  // namespace

PushPullBenchmark::PushPullBenchmark(const PushPullOptions& options, LocalCluster& cluster, std::string folder)
    : options_(options),
      cluster_(cluster),
      folder_(std::move(folder)),
      ranks_(make_sessions(options, cluster), sample_tensors(options.model_bytes), options.device),
      lanes_(static_cast<std::uint16_t>(std::max<std::size_t>(cluster.servers()[0].lanes.size(), 1))) {}

Result<Json> PushPullBenchmark::finish() {
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

Status PushPullBenchmark::warm_up(std::uint64_t rounds) {
  const std::uint64_t before = ranks_.rounds();
  const auto warm = [&] {
    if (ranks_.rounds() < before + rounds) return false;
    if (!takes_snapshots(options_)) return true;
    const auto now = kept();
    return now && now->newest_snapshot > 0;
  };
  ranks_.resume();
  const Status ok = ranks_.wait_until(warm, kLapSeconds, healthy());
  if (!ok && ok.error().code == ErrorCode::kTimeout) {
    const std::uint64_t done = ranks_.rounds() - before;
    const std::string all = std::to_string(done) + " of " + std::to_string(rounds) + " rounds";
    return fail(ErrorCode::kTimeout, "warming up takes longer than " + std::to_string(static_cast<int>(kLapSeconds)) +
                                         " s: there are " + all + (done >= rounds ? ", and no snapshot" : ""));
  }
  if (!ok) return ok;
  return ranks_.pause(healthy());
}

Status PushPullBenchmark::slice() {
  const double seconds = options_.seconds / options_.slices;
  const std::uint64_t before = ranks_.rounds();
  ranks_.resume();
  if (auto ok = ranks_.wait_until([&] { return ranks_.rounds() >= before + kWarmRounds; }, kWarmSeconds, healthy());
      !ok)
    return ok;
  const std::uint64_t rounds = ranks_.rounds();
  const SessionStats first = ranks_.totals();
  const Cpu cpu_first = cpu_now();
  const auto begin = Clock::now();
  const auto over = [&] { return std::chrono::duration<double>(Clock::now() - begin).count() >= seconds; };
  if (auto ok = ranks_.wait_until(over, seconds + kWarmSeconds, healthy()); !ok) return ok;
  const SessionStats last = ranks_.totals();
  const double elapsed = std::chrono::duration<double>(Clock::now() - begin).count();
  const Cpu cpu_last = cpu_now();
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
  if (auto ok = watch_memory(); !ok) return ok;
  return ranks_.pause(healthy());
}

Status PushPullBenchmark::ceiling() {
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

Result<PushPullBenchmark::Kept> PushPullBenchmark::written() {
  const std::uint64_t bytes = kMostArrays * options_.model_bytes / options_.servers;
  const auto patience = kWriteSlack + std::chrono::milliseconds(bytes / 1000 / kStoreMbPerS);
  for (const auto until = Clock::now() + patience; Clock::now() < until;) {
    auto now = kept();
    if (now && !now->busy) return counted(*now);
    if (!now) return now;
    std::this_thread::sleep_for(kScrapePause);
  }
  return fail(ErrorCode::kTimeout, "the servers were still writing after " + std::to_string(patience.count() / 1000) +
                                       " s; the disk is too slow for this model");
}

PushPullBenchmark::Cpu PushPullBenchmark::cpu_now() {
  Cpu cpu;
  rusage own{};
  ::getrusage(RUSAGE_SELF, &own);
  cpu.trainers = static_cast<double>(own.ru_utime.tv_sec + own.ru_stime.tv_sec) +
                 1e-6 * static_cast<double>(own.ru_utime.tv_usec + own.ru_stime.tv_usec);
  for (Daemon& d : cluster_.servers()) cpu.servers += d.process.usage().cpu_seconds;
  for (Daemon& d : cluster_.workers()) cpu.workers += d.process.usage().cpu_seconds;
  return cpu;
}

Ranks::Healthy PushPullBenchmark::healthy() {
  return [this]() -> Status {
    if (const auto failure = cluster_.failure()) return fail(ErrorCode::kUnavailable, *failure);
    return {};
  };
}

Result<PushPullBenchmark::Kept> PushPullBenchmark::kept() {
  Kept kept;
  for (Daemon& server : cluster_.servers()) {
    const auto text = http_get(server.admin, "/status", kScrapeTimeout);
    if (!text) return tl::unexpected(text.error());
    const Json status = ordered_json_in(*text);
    if (!status.is_object() || status.at("jobs").empty()) continue;
    const Json& job = status.at("jobs").at(0);
    const Json& snapshot = job.at("snapshot");
    // One that is named for a round that was not reached waits for the next slice.
    kept.busy = kept.busy || (snapshot.at("pending").is_number() && snapshot.at("pending") <= job.at("min_version"));
    kept.snapshot_bytes += snapshot.at("bytes").get<std::uint64_t>();
    if (snapshot.at("durable").is_number()) kept.newest_snapshot = snapshot.at("durable").get<std::uint64_t>();
    if (const auto coordinator = status.find("coordinator"); coordinator != status.end() && coordinator->is_object()) {
      for (const Json& one : coordinator->at("jobs")) kept.busy = kept.busy || one.at("not_copied") != "";
    }
  }
  return kept;
}

Result<PushPullBenchmark::Kept> PushPullBenchmark::counted(Kept kept) {
  kept.rounds = ranks_.rounds();
  kept.server_cpu_seconds = cpu_now().servers;
  for (Daemon& server : cluster_.servers()) {
    const auto text = http_get(server.admin, "/metrics", kScrapeTimeout);
    if (!text) return tl::unexpected(text.error());
    kept.written_bytes += metric(*text, "tributary_server_snapshot_bytes_total");
    kept.copied_bytes += metric(*text, "tributary_server_copied_bytes_total");
  }
  return kept;
}

// Reads the servers' memory during rounds; keeps each server's maximum, and the highest ratio of the two at one time.
Status PushPullBenchmark::watch_memory() {
  measured_.owned_bytes.resize(cluster_.servers().size());
  measured_.formula_bytes.resize(cluster_.servers().size());
  for (std::size_t i = 0; i < cluster_.servers().size(); ++i) {
    const auto text = http_get(cluster_.servers()[i].admin, "/metrics", kScrapeTimeout);
    if (!text) return tl::unexpected(text.error());
    const double formula = metric(*text, "tributary_memory_formula_bytes");
    const double owned = metric(*text, "tributary_owned_bytes");
    measured_.owned_bytes[i] = std::max(measured_.owned_bytes[i], static_cast<std::uint64_t>(owned));
    measured_.formula_bytes[i] = std::max(measured_.formula_bytes[i], static_cast<std::uint64_t>(formula));
    if (formula > 0.0) measured_.memory_ratio = std::max(measured_.memory_ratio, owned / formula);
  }
  return {};
}

Result<Json> PushPullBenchmark::ask_daemons() {
  double window = 0.0, socket_bytes = 0.0;
  for (Daemon& worker : cluster_.workers()) {
    const auto text = http_get(worker.admin, "/metrics", kScrapeTimeout);
    if (!text) return tl::unexpected(text.error());
    window = std::max(window, metric(*text, "tributary_worker_window_bytes"));
    socket_bytes += metric(*text, "tributary_worker_socket_payload_bytes_total");
  }
  const auto chunk = static_cast<double>(std::max<std::uint64_t>(ranks_.chunk_bytes(), 1));
  Json found = {{"socket_payload_bytes", static_cast<std::uint64_t>(socket_bytes)},
                {"window", {{"bytes", window}, {"chunks", window / chunk}}},
                {"memory",
                 {{"server_bytes", measured_.owned_bytes},
                  {"formula_bytes", measured_.formula_bytes},
                  {"ratio", measured_.memory_ratio}}}};
  if (options_.device) {
    if (auto ok = ask_devices(found); !ok) return tl::unexpected(ok.error());
  }
  return found;
}

Status PushPullBenchmark::ask_devices(Json& found) {
  const auto text = http_get(cluster_.workers()[0].admin, "/status", kScrapeTimeout);
  if (!text) return tl::unexpected(text.error());
  const Json status = ordered_json_in(*text);
  const bool told = status.is_object() && status.contains("jobs") && !status["jobs"].empty() &&
                    status["jobs"][0].contains("device_times");
  if (!told) return fail(ErrorCode::kInternal, "the worker's /status tells nothing of its devices");
  found["reduced_on"] = status["jobs"][0]["reduced_on"];
  found["device_times"] = status["jobs"][0]["device_times"];
  return {};
}

Json PushPullBenchmark::rates() const {
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

Json PushPullBenchmark::settings() const {
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

namespace {

// A new one: a measurement may compare several clusters.
std::string kept_folder(const std::string& base) {
  for (int number = 1;; ++number) {
    std::string folder = base + "/cluster-" + std::to_string(number);
    if (!std::filesystem::exists(folder)) return folder;
  }
}

}  // namespace

Result<std::unique_ptr<PushPullSetup>> PushPullSetup::start(const PushPullOptions& options) {
  std::unique_ptr<PushPullSetup> setup(new PushPullSetup(options));
  const std::string folder = options.base_dir.empty() ? setup->folder_.path : kept_folder(options.base_dir);
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
                                      .log_level = options.base_dir.empty() ? "warn" : "debug",
                                      .secure = options.secure,
                                      .extra_worker_toml = options.worker_toml});
  if (!cluster) return tl::unexpected(cluster.error());
  setup->cluster_ = std::move(*cluster);
  setup->benchmark_ = std::make_unique<PushPullBenchmark>(setup->options_, *setup->cluster_, folder);
  return setup;
}

PushPullSetup::~PushPullSetup() {
  if (!cluster_ || !benchmark_) return;
  benchmark_->end();
  cluster_->stop_now();
}

Status PushPullSetup::stop() {
  const auto killed = cluster_->stop();
  benchmark_.reset();
  if (killed.empty()) return {};
  return fail(ErrorCode::kTimeout, killed.front() + " did not stop in time and was killed");
}

}  // namespace tributary::bench
