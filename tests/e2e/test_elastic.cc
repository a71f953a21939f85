// Elastic jobs: nodes join, leave and are lost while real daemons train.
#include <doctest/doctest.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/e2e/tool_call.h"
#include "tests/unit/required.h"
#include "tools/cluster/progress_socket.h"
#include "train/sampler.h"

namespace tributary::elastic_test {

using namespace e2e;

namespace {

constexpr const char* kContinue = "[membership]\non_worker_loss = \"continue\"\n";

// The trainers of some nodes, which are told that there are `world_nodes` (0: all). A sample takes 20 us asleep, so
// that a round lasts a millisecond on any machine, and others have time to come and go.
void start_nodes(LocalCluster& cluster, const std::string& job_file, std::vector<std::uint32_t> nodes,
                 std::uint32_t world_nodes = 0) {
  required(cluster.start_trainers(
      {.command = cluster.train_command(job_file, {}, {"--json", "--quiet", "--slow-us-per-sample", "20"}),
       .progress_socket = {},
       .nodes = std::move(nodes),
       .world_nodes = world_nodes}));
}

// Counts rounds whose ranks reported all samples of the round, each once, and rounds in which they reported others. The
// sums are those that the sampler deals to a single rank. A report is lost if nobody takes it soon.
class Coverage {
 public:
  void take(const ProgressReport& report) {
    if (report.round == 0) return;
    sums_[report.round][{report.world_size, report.resumed}][report.rank] = report.samples_sum;
  }
  void check(std::uint64_t rounds_whole) const {
    auto sampler = required(train::Sampler::make({.samples = 512, .global_batch = 64, .seed = 7, .elastic = true}));
    std::uint64_t whole = 0, wrong = 0, dealt_twice = 0;
    for (const auto& [round, views] : sums_) {
      const std::uint64_t expected = train::samples_sum(sampler.share(Round(round), Rank(0), 0));
      bool some_whole = false;
      for (const auto& [view, ranks] : views) {
        if (ranks.size() != view.first) continue;
        std::uint64_t sum = 0;
        for (const auto& [rank, samples] : ranks) sum += samples;
        some_whole |= sum == expected;
        wrong += sum == expected ? 0 : 1;
      }
      whole += some_whole ? 1 : 0;
      dealt_twice += views.size() > 1 ? 1 : 0;
    }
    CHECK(whole >= rounds_whole);
    CHECK(wrong == 0);
    CHECK(dealt_twice <= 4);  // open when nodes came or went
  }

 private:
  using View = std::pair<std::uint64_t, std::uint64_t>;  // its ranks, and the round behind which it began
  std::map<std::uint64_t, std::map<View, std::map<std::uint32_t, std::uint64_t>>> sums_;
};

// A job whose nodes, of one rank, come and go while it trains, in phases of equally many rounds.
class ElasticRun {
 public:
  ElasticRun(const TempDir& dir, std::string job_file, std::vector<std::uint32_t> phases)
      : job_file_(std::move(job_file)), phases_(std::move(phases)), cluster_(start(cluster_options(dir))) {
    auto progress = required(ProgressSocket::listen(cluster_->socket_dir() + "/progress.sock"));
    progress_.emplace(std::move(progress));
  }

  // Returns the results of the nodes that stayed to the end.
  std::vector<nlohmann::json> train() {
    for (std::size_t phase = 0; phase < phases_.size(); ++phase) {
      change(phases_[phase]);
      live_through(phase);
    }
    REQUIRE(eventually([&] {
      look();
      return !cluster_->trainers_running();
    }));
    look();
    std::vector<nlohmann::json> ended;
    for (const Trainer& trainer : cluster_->trainers()) {
      const auto result = nlohmann::json::parse(trainer_result(trainer));
      if (!result.at("stopped").get<bool>()) ended.push_back(result);
    }
    CHECK(ended.size() == phases_.back());
    for (const auto& result : ended) CHECK(result.at("digest") == ended.front().at("digest"));
    CHECK(cluster_->stop().empty());
    return ended;
  }
  const Coverage& coverage() const { return coverage_; }

 private:
  ClusterOptions cluster_options(const TempDir& dir) const {
    ClusterOptions options = options_in(dir / "run");
    options.servers = 2;
    options.nodes = *std::ranges::max_element(phases_);
    return options;
  }

  // The last nodes leave by SIGTERM to their workers, as spot machines end; or nodes join, or come back.
  void change(std::uint32_t to) {
    const std::uint32_t from = std::exchange(there_, to);
    for (std::uint32_t node = to; node < from; ++node) cluster_->workers()[node].process.send_signal(SIGTERM);
    std::vector<std::uint32_t> fresh;
    for (std::uint32_t node = from; node < to; ++node) {
      if (node >= cluster_->trainers().size()) {
        fresh.push_back(node);
        continue;
      }
      REQUIRE(cluster_->workers()[node].process.wait(kPatience));
      REQUIRE(cluster_->restart(cluster_->workers()[node]));
      REQUIRE(cluster_->trainers()[node].process.wait(kPatience));
      REQUIRE(cluster_->restart_trainer(node));
    }
    if (fresh.empty()) return;
    required(cluster_->start_trainers(
        {.command = cluster_->train_command(job_file_, {}, {"--json", "--quiet", "--slow-us-per-sample", "250"}),
         .progress_socket = cluster_->socket_dir() + "/progress.sock",
         .nodes = std::move(fresh),
         .world_nodes = from == 0 ? to : cluster_->options().nodes}));
  }

  // Until this phase's share of the rounds is through, of which its nodes complete some.
  void live_through(std::size_t phase) {
    std::uint64_t first = 0, newest = 0;
    const bool through = eventually([&] {
      const auto report = look();
      if (!report || report->world_size != phases_[phase] || report->complete == report->resumed) return false;
      newest = report->complete;
      if (first == 0) first = newest;
      return newest >= report->rounds * (phase + 1) / phases_.size();
    });
    INFO("phase " << phase << ", rounds " << first << " to " << newest);
    REQUIRE(through);
    CHECK(newest - first > 50);
  }

  // The newest round that was reported since the last look.
  std::optional<ProgressReport> look() {
    std::optional<ProgressReport> newest;
    progress_->drain([&](std::string_view datagram) {
      const auto report = parse_progress(datagram);
      REQUIRE(report);
      coverage_.take(*report);
      if (!newest || report->round >= newest->round) newest = report;
    });
    return newest;
  }

  const std::string job_file_;
  const std::vector<std::uint32_t> phases_;
  const std::unique_ptr<LocalCluster> cluster_;
  std::optional<ProgressSocket> progress_;
  Coverage coverage_;
  std::uint32_t there_ = 0;  // nodes that take part: the first ones
};

}  // namespace

TEST_CASE("two nodes become four and then three without a stop, and every round has its whole batch") {
  const TempDir dir;
  const std::string job_file =
      write_job(dir, {.name = "elastic", .chunk_bytes = 8192, .rounds = 2400, .extra = kContinue});
  ElasticRun run(dir, job_file, {2, 4, 3});
  const auto ended = run.train();
  CHECK(ended[0].at("rounds") == 2400);
  run.coverage().check(1200);
  const double fixed = standalone_result(dir, job_file, 2).at("test_accuracy");
  CHECK(ended[0].at("test_accuracy").get<double>() == doctest::Approx(fixed).epsilon(0.06));
}

TEST_CASE("phases with as many nodes as before change nothing, and a node that left comes back") {
  const TempDir dir;
  ElasticRun run(dir, write_job(dir, {.name = "back", .chunk_bytes = 8192, .rounds = 2000, .extra = kContinue}),
                 {2, 2, 1, 2});
  CHECK(run.train()[0].at("rounds") == 2000);
  run.coverage().check(1000);
}

TEST_CASE("a node that is killed is left behind, and comes back in a later view") {
  const TempDir dir;
  const std::string job_file =
      write_job(dir, {.name = "spot", .chunk_bytes = 8192, .rounds = 8000, .extra = kContinue});
  const auto cluster = start(spread(dir / "run", {.ranks_per_node = 1}));
  start_nodes(*cluster, job_file, {0, 1});
  wait_for(*cluster, "min_version", 50);
  // Node 0 has the lowest rank: who stays takes its place.
  cluster->trainers()[0].process.terminate(milliseconds(0));
  cluster->workers()[0].process.terminate(milliseconds(0));
  REQUIRE(eventually([&] { return job_number(*cluster, "nodes") == 1; }));
  const std::uint64_t alone = job_number(*cluster, "min_version");
  REQUIRE(eventually([&] { return job_number(*cluster, "min_version") >= alone + 200; }));
  CHECK(cluster->trainers()[1].process.running());

  restart(*cluster, cluster->workers()[0]);
  restart_trainer(*cluster, 0);
  REQUIRE(eventually([&] { return job_number(*cluster, "nodes") == 2; }));
  const auto all = finished(*cluster);
  CHECK(all[0].at("rounds") == 8000);
  CHECK(all[0].at("resumed_from").get<std::uint64_t>() >= alone);
  CHECK(all[1].at("resumed_from") == 0);
  CHECK(cluster->stop().empty());
}

}  // namespace tributary::elastic_test
