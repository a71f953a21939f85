#include <doctest/doctest.h>

#include <atomic>
#include <string>
#include <thread>

#include "common/daemon/metrics.h"
#include "tests/unit/expect.h"

namespace tributary::metrics_test {
namespace {

using testing::contains;

std::size_t occurrences(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

struct Counts {
  LaneCounter pushes, window;

  static void visit(auto&& visit, auto&... sets) {
    visit({CountKind::kTotal, "pushes", "Pushes accepted."}, sets.pushes...);
    visit({CountKind::kNow, "link/window", "Seconds in flight allowed.", 1e-3}, sets.window...);
  }
};

struct Plain {
  std::uint64_t total = 0, now = 0, most = 0, least = 0;

  static void visit(auto&& visit, auto&... sets) {
    visit({CountKind::kTotal, "total", ""}, sets.total...);
    visit({CountKind::kNow, "now", ""}, sets.now...);
    visit({CountKind::kMost, "most", ""}, sets.most...);
    visit({CountKind::kLeast, "least", ""}, sets.least...);
  }
  bool operator==(const Plain&) const = default;
};

}  // namespace

TEST_CASE("the counters of a set appear with help, type and labels, at their value of the moment") {
  Metrics metrics;
  Counts counts;
  metrics.counts("tributary_", {{"lane", "0"}, {"shard", "1"}}, counts);
  counts.pushes.add();
  counts.pushes.add(41);
  counts.window.set(500);
  CHECK(metrics.render() ==
        "# HELP tributary_link_window Seconds in flight allowed.\n"
        "# TYPE tributary_link_window gauge\n"
        "tributary_link_window{lane=\"0\",shard=\"1\"} 0.5\n"
        "# HELP tributary_pushes_total Pushes accepted.\n"
        "# TYPE tributary_pushes_total counter\n"
        "tributary_pushes_total{lane=\"0\",shard=\"1\"} 42\n");
  counts.pushes.add();
  CHECK(contains(metrics.render(), "tributary_pushes_total{lane=\"0\",shard=\"1\"} 43\n"));
}

TEST_CASE("the counters of several parts are one as their kinds say, and the totals of those that end remain") {
  Plain sum;
  for (const Plain& part : {Plain{1, 2, 3, 0}, Plain{10, 20, 2, 7}, Plain{100, 200, 1, 9}}) add_counts(sum, part);
  CHECK(sum == Plain{111, 222, 3, 7});
  keep_totals_only(sum);
  CHECK(sum == Plain{111, 0, 0, 0});
}

TEST_CASE("one family holds the same metric of every lane under a single help line") {
  Metrics metrics;
  Counts lanes[3];
  for (int i = 0; i < 3; ++i) {
    metrics.counts("tributary_", {{"lane", std::to_string(i)}}, lanes[i]);
    lanes[i].pushes.add(static_cast<std::uint64_t>(10 + i));
  }
  const std::string text = metrics.render();
  CHECK(occurrences(text, "# HELP tributary_pushes_total") == 1);
  for (int i = 0; i < 3; ++i) {
    CHECK(
        contains(text, "tributary_pushes_total{lane=\"" + std::to_string(i) + "\"} " + std::to_string(10 + i) + "\n"));
  }
}

TEST_CASE("families of members that come and go show those of the moment") {
  Metrics metrics;
  std::vector<Metrics::Sample> jobs;
  metrics.gauges("tributary_job_round", "Round of the job.", [&jobs] { return jobs; });
  metrics.counters("tributary_job_bytes_total", "Bytes of the job.", [&jobs] { return jobs; });
  CHECK_FALSE(contains(metrics.render(), "job=\""));
  jobs.push_back({{{"job", "a"}}, 7});
  jobs.push_back({{{"job", "we\"ird\\\n"}}, 8});
  const std::string text = metrics.render();
  CHECK(contains(text, "tributary_job_round{job=\"a\"} 7\n"));
  CHECK(contains(text, "tributary_job_bytes_total{job=\"a\"} 7\n"));
  CHECK(contains(text, "tributary_job_round{job=\"we\\\"ird\\\\\\n\"} 8\n"));
  jobs.erase(jobs.begin());
  CHECK_FALSE(contains(metrics.render(), "job=\"a\""));
}

TEST_CASE("times are in classes, which Prometheus sums up from below") {
  Metrics metrics;
  Histogram histogram;
  metrics.histograms("tributary_round_seconds", "How long a round takes.", [&] {
    return std::vector<Metrics::Times>{{{{"job", "a"}}, histogram.counts()}};
  });
  constexpr std::uint64_t kMs = 1'000'000;
  for (const std::uint64_t ms : {0, 1, 2, 3, 100'000, 100'001}) histogram.observe(ms * kMs);
  const std::string text = metrics.render();
  CHECK(contains(text, "# TYPE tributary_round_seconds histogram\n"));
  CHECK(contains(text, "tributary_round_seconds_bucket{job=\"a\",le=\"0.001\"} 2\n"));
  CHECK(contains(text, "tributary_round_seconds_bucket{job=\"a\",le=\"0.002\"} 3\n"));
  CHECK(contains(text, "tributary_round_seconds_bucket{job=\"a\",le=\"0.005\"} 4\n"));
  CHECK(contains(text, "tributary_round_seconds_bucket{job=\"a\",le=\"50\"} 4\n"));
  CHECK(contains(text, "tributary_round_seconds_bucket{job=\"a\",le=\"100\"} 5\n"));
  CHECK(contains(text, "tributary_round_seconds_bucket{job=\"a\",le=\"+Inf\"} 6\n"));
  CHECK(contains(text, "tributary_round_seconds_count{job=\"a\"} 6\n"));
}

TEST_CASE("a lane may count while another thread scrapes, and no count is lost") {
  constexpr std::uint64_t kCounts = 200000;
  Metrics metrics;
  Counts counts;
  metrics.counts("tributary_", {}, counts);
  std::atomic<bool> done{false};
  std::thread scraper([&] {
    std::uint64_t last = 0;
    while (!done) {
      metrics.render();
      const std::uint64_t now = counts.pushes.value();
      CHECK(now >= last);
      last = now;
    }
  });
  for (std::uint64_t i = 0; i < kCounts; ++i) counts.pushes.add();
  done = true;
  scraper.join();
  CHECK(contains(metrics.render(), "tributary_pushes_total 200000\n"));
}

}  // namespace tributary::metrics_test
