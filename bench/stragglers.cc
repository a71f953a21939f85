// `tributary bench stragglers`: what a slow node costs, mode by mode. Real servers, workers and trainers on this
// machine train the same model on Fashion-MNIST for the same time, one node slowed down.
//
// Computing is mostly sleeping: every sample takes so many microseconds more than its arithmetic (train/slow_motion.h),
// several times as many on the slow node. So nodes have processors of their own, as it were, on a machine with fewer;
// and a slow node does not leave its processor to the others.
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "bench/measurements.h"
#include "bench/scratch_folder.h"
#include "common/base/clock.h"
#include "common/base/printed.h"
#include "common/base/result.h"
#include "common/config/json_text.h"
#include "common/files/durable_file.h"
#include "tools/cluster/local_cluster.h"
#include "tools/cluster/progress_socket.h"
#include "tools/cluster/trainer_result.h"

namespace tributary::bench {
namespace {

// The slowdown of the last node. Its steps take `factor` times as long: all of them, or some, drawn at random.
struct Slowdown {
  std::string name;
  double factor = 1.0, chance = 1.0;
  // How many times as long its steps take on average.
  double mean() const { return 1.0 + (factor - 1.0) * chance; }
};
// none, constant (3 times), random (5 times in 10 % of the steps).
const std::vector<Slowdown>& slowdowns();
// sync, weighted, ssp-1, ssp-4, ssp-16, async, diloco.
const std::vector<std::string>& straggler_variants();

struct StragglerOptions {
  std::vector<std::string> slowdowns = {"constant", "random"};
  std::vector<std::string> variants;  // empty: all
  std::uint32_t nodes = 4;
  std::uint32_t batch = 64;  // samples a step and node
  std::uint32_t micro_batches = 16;
  double us_per_sample = 1500.0;
  double seconds = 20.0;  // of each run
  std::uint64_t seed = 1;
  std::string base_dir;  // for the runs' files; empty: a folder in /tmp that is removed
  std::string report;    // folder; empty: none
  std::function<void(const std::string&)> tell;
  std::function<bool()> interrupted;
  // Called with the results after each run, so that an interruption loses none. An error ends the measurement.
  std::function<Status(const nlohmann::ordered_json& so_far)> keep;
};

// The throughput, in nodes, if no node ever waited for the slow one, and that did what it can: n - 1 + 1 / f nodes.
double ideal_nodes(std::uint32_t nodes, const Slowdown& slowdown);

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kPacePoll{2};
constexpr std::chrono::seconds kStartTimeout{60}, kStopTimeout{60};
constexpr std::uint64_t kWarmupReports = 2;  // of every rank, before the time begins
constexpr std::uint32_t kLocalSteps = 10;    // of DiLoCo
// The rate of plain SGD on the mean over all nodes' samples. Where one node's push is a step of its own, the rate is
// divided by the nodes: the same progress a sample.
constexpr double kLearningRate = 0.15;
// A node that is not slow completes its share in time.
constexpr double kDeadlineSlack = 1.06;

// How many samples each rank has reported, as time goes by.
class Tally {
 public:
  explicit Tally(std::uint32_t ranks) : ranks_(ranks) {}

  void take(std::string_view datagram, std::uint64_t now_ns) {
    const auto report = parse_progress(datagram);
    if (!report || report->rank >= ranks_.size()) return;
    Rank& known = ranks_[report->rank];
    known.total += static_cast<double>(report->samples);
    if (known.at.empty()) started_ns_ = std::min(started_ns_, now_ns - std::min(now_ns, report->step_ns()));
    known.compute_ns += static_cast<double>(report->compute_ns);
    known.at.push_back({now_ns, known.total});
  }
  // When training began: a step before the first report.
  std::uint64_t started_ns() const { return started_ns_; }
  bool warm() const {
    return std::ranges::all_of(ranks_, [](const Rank& rank) { return rank.at.size() >= kWarmupReports; });
  }
  // Returns a rank's samples up to a time, interpolated linearly between two reports.
  double samples(std::size_t rank, std::uint64_t at_ns) const {
    const auto& at = ranks_[rank].at;
    const auto next = std::ranges::lower_bound(at, at_ns, {}, &Point::ns);
    if (next == at.begin()) return 0.0;
    const Point& before = *std::prev(next);
    if (next == at.end()) return before.total;
    const double part = static_cast<double>(at_ns - before.ns) / static_cast<double>(next->ns - before.ns);
    return before.total + part * (next->total - before.total);
  }
  double compute_ms(std::size_t rank) const {
    const Rank& known = ranks_[rank];
    return known.at.empty() ? 0.0 : 1e-6 * known.compute_ns / static_cast<double>(known.at.size());
  }

 private:
  struct Point {
    std::uint64_t ns = 0;
    double total = 0.0;
  };
  struct Rank {
    double total = 0.0, compute_ns = 0.0;
    std::vector<Point> at;
  };
  std::vector<Rank> ranks_;
  std::uint64_t started_ns_ = ~0ull;
};

std::string job_toml(const StragglerOptions& o, const std::string& variant, std::uint32_t deadline_ms) {
  const double lr = variant.starts_with("ssp") || variant == "async" ? kLearningRate / o.nodes : kLearningRate;
  std::string text = "[job]\nname = \"stragglers\"\nmode = ";
  std::string optimizer = printed("[optimizer]\nname = \"sgd\"\nlr = %g\n", lr);
  if (variant.starts_with("ssp-")) {
    text += "\"ssp\"\n[ssp]\nstaleness = " + variant.substr(4) + "\n";
  } else if (variant == "async") {
    text += "\"async\"\n";
  } else if (variant == "diloco") {
    text += "\"local_sgd\"\n" + printed("[local]\nsteps = %u\noptimizer = \"adamw\"\nlr = 0.002\n", kLocalSteps);
    optimizer = "[optimizer]\nname = \"sgd\"\nlr = 0.7\nmomentum = 0.9\nnesterov = true\n";
  } else {
    text += "\"sync\"\n";
    if (variant == "weighted") text += "[sync]\ndeadline_ms = " + std::to_string(deadline_ms) + "\n";
  }
  text += optimizer + "[snapshot]\nevery_s = 0\n[recovery]\nredo_mb = 0\n";
  text += printed(
      "[train]\nhidden = [128]\nepochs = 100000\nglobal_batch = %u\naccumulation = %u\nseed = %llu\n"
      "eval_every_epochs = 100000\n",
      o.batch * o.nodes, o.micro_batches, static_cast<unsigned long long>(o.seed));
  return text;
}

Status healthy(LocalCluster& cluster, const StragglerOptions& options) {
  if (options.interrupted && options.interrupted()) return fail(ErrorCode::kStopped, "interrupted");
  if (const auto failure = cluster.failure()) return fail(ErrorCode::kUnavailable, *failure);
  return {};
}

struct Outcome {
  std::uint64_t begin_ns = 0, end_ns = 0;
  Tally tally;
  std::vector<Json> ranks;
};

Result<Outcome> train(LocalCluster& cluster, const StragglerOptions& o, const Slowdown& slowdown,
                      const std::string& job) {
  const std::string socket = cluster.socket_dir() + "/progress.sock";
  const auto progress = ProgressSocket::listen(socket);
  if (!progress) return tl::unexpected(progress.error());
  constexpr double kPoints = 25.0;
  const auto curve_ms = static_cast<std::uint64_t>(std::max(1e3 * o.seconds / kPoints, 50.0));
  std::vector<std::vector<std::string>> slow(o.nodes);
  slow.back() = {"--slow-factor", printed("%g", slowdown.factor), "--slow-chance", printed("%g", slowdown.chance)};
  if (auto ok = cluster.start_trainers(
          {.command = cluster.train_command(
               job, {},
               {"--json", "--quiet", "--curve-ms", std::to_string(curve_ms), "--slow-us-per-sample",
                printed("%g", o.us_per_sample), "--slow-seed", std::to_string(o.seed)}),
           .progress_socket = socket,
           .rank_arguments = std::move(slow)});
      !ok)
    return tl::unexpected(ok.error());
  Outcome outcome{.tally = Tally(o.nodes), .ranks = {}};
  const auto wait = [&](std::chrono::nanoseconds at_most, const std::function<bool()>& done) -> Result<bool> {
    const auto until = Clock::now() + at_most;
    while (!done()) {
      if (Clock::now() >= until) return false;
      if (auto ok = healthy(cluster, o); !ok) return tl::unexpected(ok.error());
      std::this_thread::sleep_for(kPacePoll);
      progress->drain([&](std::string_view datagram) { outcome.tally.take(datagram, steady_ns()); });
    }
    return true;
  };
  const auto warm = wait(kStartTimeout, [&] { return outcome.tally.warm(); });
  if (!warm) return tl::unexpected(warm.error());
  if (!*warm) return fail(ErrorCode::kTimeout, "the trainers did not get going within a minute");
  outcome.begin_ns = steady_ns();
  const auto over = wait(std::chrono::nanoseconds(static_cast<std::int64_t>(1e9 * o.seconds)), [] { return false; });
  if (!over) return tl::unexpected(over.error());
  outcome.end_ns = steady_ns();
  cluster.trainers().front().process.send_signal(SIGTERM);  // the job stops after its round
  const auto ended = wait(kStopTimeout, [&] { return !cluster.trainers_running(); });
  if (!ended) return tl::unexpected(ended.error());
  if (!*ended) return fail(ErrorCode::kTimeout, "the trainers did not stop within a minute");
  if (auto ok = healthy(cluster, o); !ok) return tl::unexpected(ok.error());
  auto ranks = parsed_results(cluster);
  if (!ranks) return tl::unexpected(ranks.error());
  outcome.ranks = std::move(*ranks);
  return outcome;
}

// At a constant rate the accuracy goes up and down by a point or two from one look to the next.
Json accuracy_at_end(const Json& curve) {
  constexpr std::size_t kLooks = 5;
  if (curve.empty()) return nullptr;
  const std::size_t looks = std::min(curve.size(), kLooks);
  double sum = 0.0;
  for (std::size_t i = curve.size() - looks; i < curve.size(); ++i) sum += curve[i].at("test_accuracy").get<double>();
  return sum / static_cast<double>(looks);
}

Json result_of(const Outcome& outcome, const StragglerOptions& o) {
  const auto total = [&](std::uint64_t at_ns) {
    double sum = 0.0;
    for (std::size_t rank = 0; rank < outcome.ranks.size(); ++rank) sum += outcome.tally.samples(rank, at_ns);
    return sum;
  };
  const double seconds = static_cast<double>(outcome.end_ns - outcome.begin_ns) * 1e-9;
  const double samples = total(outcome.end_ns) - total(outcome.begin_ns);
  double left = 0.0;
  for (const Json& rank : outcome.ranks) left += rank.value("samples_left", 0.0);
  Json curve = Json::array();
  for (const Json& point : outcome.ranks.front().value("curve", Json::array())) {
    const auto at_ns = point.at("at_ns").get<std::uint64_t>();
    if (at_ns > outcome.end_ns) break;
    const double at = (static_cast<double>(at_ns) - static_cast<double>(outcome.tally.started_ns())) * 1e-9;
    curve.push_back({{"seconds", at},
                     {"samples", total(at_ns)},
                     {"round", point.at("round")},
                     {"test_accuracy", point.at("test_accuracy")}});
  }
  Json run = {{"seconds", seconds},
              {"samples", samples},
              {"samples_per_s", samples / seconds},
              {"rounds", outcome.ranks.front().at("rounds")},
              {"left", left},
              {"bytes_pushed", outcome.ranks.front().at("bytes_pushed")},
              {"test_accuracy", accuracy_at_end(curve)}};
  run["compute_ms"] = Json::array();
  for (std::size_t rank = 0; rank < o.nodes; ++rank) run["compute_ms"].push_back(outcome.tally.compute_ms(rank));
  if (outcome.ranks.front().contains("staleness")) {
    Json staleness = Json::array();
    for (const Json& rank : outcome.ranks) staleness.push_back(rank.at("staleness"));
    run["staleness"] = std::move(staleness);
  }
  run["curve"] = std::move(curve);
  return run;
}

Result<Json> run_variant(const StragglerOptions& o, const Slowdown& slowdown, const std::string& variant,
                         std::uint32_t deadline_ms) {
  const ScratchFolder temporary;
  const std::string folder = o.base_dir.empty() ? temporary.path : o.base_dir;
  if (folder.empty()) return fail(ErrorCode::kIo, "cannot create a folder in /tmp");
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  const std::string job = folder + "/job.toml";
  std::ofstream out(job);
  out << job_toml(o, variant, deadline_ms);
  out.close();
  if (error || !out) return fail(ErrorCode::kIo, "cannot write " + job);
  auto started = LocalCluster::start({.servers = 1,
                                      .nodes = o.nodes,
                                      .ranks_per_node = 1,
                                      .lanes = 1,
                                      .transport = Transport::kShm,
                                      .base_dir = folder + "/run",
                                      .fresh = true,
                                      .store = false,
                                      .log_level = "warn"});
  if (!started) return tl::unexpected(started.error());
  LocalCluster& cluster = **started;
  const auto outcome = train(cluster, o, slowdown, job);
  outcome ? cluster.stop() : cluster.stop_now();
  if (!outcome) return tl::unexpected(outcome.error());
  return result_of(*outcome, o);
}

Json options_json(const StragglerOptions& o) {
  return {{"nodes", o.nodes},
          {"batch", o.batch},
          {"micro_batches", o.micro_batches},
          {"us_per_sample", o.us_per_sample},
          {"seconds", o.seconds},
          {"seed", o.seed}};
}

// Names a member that an earlier call's result lacks and this call or the report needs; empty: none.
std::string flaw_of(const Json& earlier) {
  const auto options = earlier.find("options"), runs = earlier.find("runs");
  if (options == earlier.end() || !options->is_object()) return "it has no object \"options\"";
  if (runs == earlier.end() || !runs->is_array()) return "it has no list \"runs\"";
  const auto number_of = [](const Json& run, const char* key) { return run.contains(key) && run.at(key).is_number(); };
  for (std::size_t i = 0; i < runs->size(); ++i) {
    const Json& run = (*runs)[i];
    const std::string which = "run " + std::to_string(i) + " of it has no ";
    for (const char* key : {"slowdown", "variant"}) {
      if (!run.contains(key) || !run.at(key).is_string()) return which + "text \"" + key + "\"";
    }
    for (const char* key : {"samples_per_s", "ideal_per_s", "ratio"}) {
      if (!number_of(run, key)) return which + "number \"" + key + "\"";
    }
    for (const char* key : {"compute_ms", "curve"}) {
      if (!run.contains(key) || !run.at(key).is_array()) return which + "list \"" + key + "\"";
    }
    const auto is_number = [](const Json& ms) { return ms.is_number(); };
    if (!std::ranges::all_of(run.at("compute_ms"), is_number)) return which + "numbers in \"compute_ms\"";
    for (const Json& point : run.at("curve")) {
      for (const char* key : {"seconds", "samples", "test_accuracy"}) {
        if (!number_of(point, key)) return which + "number \"" + key + "\" in its curve";
      }
    }
  }
  return {};
}

Status check(const StragglerOptions& o) {
  const auto bad = [](const std::string& what) -> Status { return fail(ErrorCode::kInvalidArgument, what); };
  if (o.nodes < 2) return bad("--nodes must be at least 2: somebody has to be faster than the slow one");
  if (o.micro_batches < 2 || o.batch % o.micro_batches != 0) {
    return bad("--micro-batches must be at least 2, and divide --batch (" + std::to_string(o.batch) + ")");
  }
  for (const std::string& variant : o.variants) {
    if (std::ranges::find(straggler_variants(), variant) == straggler_variants().end())
      return bad("there is no variant '" + variant + "'");
  }
  for (const std::string& name : o.slowdowns) {
    if (std::ranges::find(slowdowns(), name, &Slowdown::name) == slowdowns().end())
      return bad("there is no slowdown '" + name + "'");
  }
  return {};
}

const std::vector<Slowdown>& slowdowns() {
  static const std::vector<Slowdown> all = {{"none", 1.0, 1.0}, {"constant", 3.0, 1.0}, {"random", 5.0, 0.1}};
  return all;
}

const std::vector<std::string>& straggler_variants() {
  static const std::vector<std::string> all = {"sync", "weighted", "ssp-1", "ssp-4", "ssp-16", "async", "diloco"};
  return all;
}

double ideal_nodes(std::uint32_t nodes, const Slowdown& slowdown) {
  return static_cast<double>(nodes) - 1.0 + 1.0 / slowdown.mean();
}

// earlier: what an earlier call gave, or null. Its runs stay, but for those that are done again; so does the calm run
// that everything is compared with. It must have been made with the same options.
//
// {options: {nodes, batch, micro_batches, us_per_sample, seconds, seed, deadline_ms}, runs: [{slowdown, variant,
// seconds,
//  samples (of all nodes), samples_per_s, ideal_per_s, ratio (of these), rounds (of node 0), left, test_accuracy (mean
//  of the curve's last five), curve: [{seconds (since training began), samples, round, test_accuracy}]}]}
// kMalformed: `earlier` lacks something.
Result<Json> run_stragglers(const StragglerOptions& options, const Json& earlier) {
  if (Status status = check(options); !status) return tl::unexpected(status.error());
  Json result = {{"options", options_json(options)}, {"runs", Json::array()}};
  if (!earlier.is_null()) {
    if (const std::string flaw = flaw_of(earlier); !flaw.empty()) return fail(ErrorCode::kMalformed, flaw);
    Json theirs = earlier.value("options", Json::object());
    theirs.erase("deadline_ms");
    if (theirs != result.at("options")) {
      return fail(ErrorCode::kConfigMismatch, "the results that are there were measured with other options, " +
                                                  theirs.dump() + "; give these, or another folder");
    }
    result = earlier;
  }
  Json& runs = result["runs"];
  const auto find = [&](const std::string& slowdown, const std::string& variant) -> Json* {
    for (Json& run : runs) {
      if (run.at("slowdown") == slowdown && run.at("variant") == variant) return &run;
    }
    return nullptr;
  };
  const auto measure = [&](const Slowdown& slowdown, const std::string& variant, std::uint32_t deadline_ms) -> Status {
    auto measured = run_variant(options, slowdown, variant, deadline_ms);
    if (!measured) return tl::unexpected(measured.error());
    Json run = {{"slowdown", slowdown.name}, {"variant", variant}};
    run.update(*measured);
    const Json* calm = find("none", "sync");
    const double calm_per_s = (calm == nullptr ? run : *calm).at("samples_per_s").get<double>();
    const double ideal = calm_per_s / options.nodes * ideal_nodes(options.nodes, slowdown);
    run["ideal_per_s"] = ideal;
    run["ratio"] = run.at("samples_per_s").get<double>() / ideal;
    if (options.tell) {
      const Json& accuracy = run.at("test_accuracy");
      options.tell(printed("%-8s %-8s %7.0f samples/s: %.3f of the ideal; test accuracy %.4f", slowdown.name.c_str(),
                           variant.c_str(), run.at("samples_per_s").get<double>(), run.at("ratio").get<double>(),
                           accuracy.is_number() ? accuracy.get<double>() : 0.0));
    }
    if (Json* old = find(slowdown.name, variant)) {
      *old = std::move(run);
    } else {
      runs.push_back(std::move(run));
    }
    return options.keep ? options.keep(result) : Status();
  };
  if (find("none", "sync") == nullptr) {
    if (Status status = measure(slowdowns().front(), "sync", 0); !status) return tl::unexpected(status.error());
  }
  // The time of nodes that are not slow for all their samples.
  double compute_ms = 0.0;
  for (const Json& ms : find("none", "sync")->at("compute_ms")) compute_ms = std::max(compute_ms, ms.get<double>());
  const auto deadline_ms = static_cast<std::uint32_t>(std::ceil(kDeadlineSlack * compute_ms));
  result["options"]["deadline_ms"] = deadline_ms;
  for (const std::string& name : options.slowdowns) {
    const Slowdown& slowdown = *std::ranges::find(slowdowns(), name, &Slowdown::name);
    for (const std::string& variant : options.variants.empty() ? straggler_variants() : options.variants) {
      if (slowdown.name == "none" && variant == "sync") continue;
      if (Status status = measure(slowdown, variant, deadline_ms); !status) return tl::unexpected(status.error());
    }
  }
  return result;
}

Result<Json> read_earlier(const std::string& path) {
  std::ifstream in(path);
  if (!in) return Json();
  Json earlier = ordered_json_in(std::string(std::istreambuf_iterator<char>(in), {}));
  if (!earlier.is_object()) {
    return fail(ErrorCode::kMalformed, path + " is not what this command wrote; move it away or give another folder");
  }
  return earlier;
}

// Whole or not at all: it has what earlier calls measured.
Status write_data(const std::string& data, const Json& result) {
  const std::string fresh = data + ".new";
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(data).parent_path(), error);
  if (auto ok = write_small_file(fresh, result.dump(1) + "\n"); !ok) return ok;
  return rename_durably(fresh, data);
}

Status measure(StragglerOptions& options, MeasurementRun& run) {
  options.interrupted = run.interrupted;
  options.tell = run.tell;
  const std::string data = options.report + "/stragglers.json";
  Json earlier;
  if (!options.report.empty()) {
    auto read = read_earlier(data);
    if (!read) return tl::unexpected(read.error());
    earlier = std::move(*read);
    options.keep = [&](const Json& so_far) { return write_data(data, so_far); };
  }
  const auto result = run_stragglers(options, earlier);
  if (!result && result.error().code == ErrorCode::kMalformed && !options.report.empty()) {
    return fail(ErrorCode::kMalformed, data + " is not what this command wrote: " + result.error().message +
                                           "; move it away or give another folder");
  }
  if (auto ok = yield(run, result); !ok || options.report.empty()) return ok;
  if (auto ok = write_data(data, *result); !ok) return ok;
  return run.draw("stragglers", data, options.report + "/stragglers.html");
}

}  // namespace

Measurement stragglers() {
  const auto add = [](CliCommand command, StragglerOptions& o) {
    command.add_option("--slowdown", o.slowdowns, "none, constant, random")->delimiter(',')->capture_default_str();
    command.add_option("--variants", o.variants, "some of them, as sync,weighted (default: all)")->delimiter(',');
    command.add_option("--seconds", o.seconds, "of each run")->check(in_range(1.0, 3600.0))->capture_default_str();
    command.add_option("--nodes", o.nodes, "of one rank each")->check(in_range(2, 64))->capture_default_str();
    command.add_option("--batch", o.batch, "samples a step and node")->check(in_range(1, 4096))->capture_default_str();
    command.add_option("--micro-batches", o.micro_batches, "of a step")
        ->check(in_range(2, 4096))
        ->capture_default_str();
    command.add_option("--us-per-sample", o.us_per_sample, "that computing takes, asleep")
        ->check(in_range(1.0, 1e6))
        ->capture_default_str();
    command.add_option("--seed", o.seed)->capture_default_str();
    command.add_option("--base-dir", o.base_dir, "keep the files of the last run there")->type_name("FOLDER");
    command.add_option("--report", o.report, "write stragglers.json and stragglers.html there")->type_name("DIR");
  };
  return {
      .name = "stragglers",
      .summary = "what a slow node costs, mode by mode",
      .words =
          R"(Trains on Fashion-MNIST with one slow node, the last one, each variant for the same time: sync, weighted (sync with a deadline: late nodes
send what they managed), ssp-1, ssp-4, ssp-16, async, diloco (10 local steps a round). Slowdowns: constant (3 times
as long), random (5 times, in 10 % of the steps), none. A run without slowdown comes first: it says what the ideal is, (n - 1 + 1/f)
nodes' samples a second, and how long the deadline is. Computing is mostly sleeping, so that nodes do not slow down each other.

Fields: options; runs [{slowdown, variant, seconds, samples (of all nodes), samples_per_s, ideal_per_s, ratio (of
these), rounds (of node 0), left, test_accuracy (mean of the curve's last five), curve [{seconds (since training began), samples, round,
test_accuracy}]}].
With --report, DIR/stragglers.json keeps the runs of earlier calls with the same options, and
DIR/stragglers.html draws all of them; stragglers.json is written after each run, so that one that is interrupted loses no other.)",
      .columns = "slowdown,variant,samples_per_s,ideal_per_s,ratio,rounds,left,test_accuracy",
      .stops = true,
      .add = measures<StragglerOptions>(add, measure)};
}

}  // namespace tributary::bench
