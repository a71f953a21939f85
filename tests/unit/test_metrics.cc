#include <doctest/doctest.h>

#include <atomic>
#include <string>
#include <thread>

#include "common/metrics.h"

namespace tributary {
namespace {

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::size_t occurrences(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

}  // namespace

TEST_CASE("lane counters and gauges appear with help, type and labels, at their value of the moment") {
  Metrics metrics;
  LaneCounter pushes;
  LaneGauge window;
  metrics.counter("tributary_pushes_total", "Pushes accepted.", {{"lane", "0"}}, pushes);
  metrics.gauge("tributary_window_bytes", "Bytes in flight allowed.", {{"lane", "0"}, {"shard", "1"}}, window);
  pushes.add();
  pushes.add(41);
  window.set(0.5);
  CHECK(metrics.render() ==
        "# HELP tributary_pushes_total Pushes accepted.\n"
        "# TYPE tributary_pushes_total counter\n"
        "tributary_pushes_total{lane=\"0\"} 42\n"
        "# HELP tributary_window_bytes Bytes in flight allowed.\n"
        "# TYPE tributary_window_bytes gauge\n"
        "tributary_window_bytes{lane=\"0\",shard=\"1\"} 0.5\n");
  pushes.add();
  CHECK(contains(metrics.render(), "tributary_pushes_total{lane=\"0\"} 43\n"));
}

TEST_CASE("one family holds the same metric of every lane under a single help line") {
  Metrics metrics;
  LaneCounter lanes[3];
  for (int i = 0; i < 3; ++i) {
    metrics.counter("tributary_frames_total", "Frames.", {{"lane", std::to_string(i)}}, lanes[i]);
    lanes[i].add(static_cast<std::uint64_t>(10 + i));
  }
  const std::string text = metrics.render();
  CHECK(occurrences(text, "# HELP") == 1);
  for (int i = 0; i < 3; ++i) {
    CHECK(
        contains(text, "tributary_frames_total{lane=\"" + std::to_string(i) + "\"} " + std::to_string(10 + i) + "\n"));
  }
}

TEST_CASE("a histogram's buckets are cumulative and end with everything") {
  Metrics metrics;
  LaneHistogram latency({0.5, 1.0, 2.0});
  metrics.histogram("tributary_step_seconds", "Step time.", {{"lane", "0"}}, latency);
  for (double v : {0.25, 0.5, 0.75, 1.5, 99.0}) latency.observe(v);
  const std::string text = metrics.render();
  CHECK(contains(text, "# TYPE tributary_step_seconds histogram\n"));
  CHECK(contains(text, "tributary_step_seconds_bucket{lane=\"0\",le=\"0.5\"} 2\n"));
  CHECK(contains(text, "tributary_step_seconds_bucket{lane=\"0\",le=\"1\"} 3\n"));
  CHECK(contains(text, "tributary_step_seconds_bucket{lane=\"0\",le=\"2\"} 4\n"));
  CHECK(contains(text, "tributary_step_seconds_bucket{lane=\"0\",le=\"+Inf\"} 5\n"));
  CHECK(contains(text, "tributary_step_seconds_count{lane=\"0\"} 5\n"));
  CHECK(contains(text, "tributary_step_seconds_sum{lane=\"0\"} 102\n"));
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

TEST_CASE("a lane may count while another thread scrapes, and no count is lost") {
  constexpr std::uint64_t kCounts = 200000;
  Metrics metrics;
  LaneCounter counter;
  LaneHistogram histogram({10.0, 100.0});
  metrics.counter("tributary_pushes_total", "Pushes.", {}, counter);
  metrics.histogram("tributary_sizes", "Sizes.", {}, histogram);
  std::atomic<bool> done{false};
  std::thread scraper([&] {
    std::uint64_t last = 0;
    while (!done) {
      metrics.render();
      const std::uint64_t now = counter.value();
      CHECK(now >= last);
      last = now;
    }
  });
  for (std::uint64_t i = 0; i < kCounts; ++i) {
    counter.add();
    histogram.observe(static_cast<double>(i % 200));
  }
  done = true;
  scraper.join();
  CHECK(contains(metrics.render(), "tributary_pushes_total 200000\n"));
  CHECK(contains(metrics.render(), "tributary_sizes_count 200000\n"));
}

}  // namespace tributary
