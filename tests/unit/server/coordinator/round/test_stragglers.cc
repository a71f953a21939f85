// Stragglers and their slow phases: a lane's measurements (PaceMeter), and the verdict on them (StragglerWatch).
#include <doctest/doctest.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "server/coordinator/round/straggler_watch.h"
#include "tests/unit/expect.h"
#include "tests/unit/required.h"
#include "worker/node/pace_meter.h"

namespace tributary::stragglers_test {
namespace {

constexpr std::uint64_t kMs = 1'000'000;

// Nodes that report every so many rounds what they have done since.
struct Nodes {
  explicit Nodes(bool by_samples = false) : watch(by_samples) {}
  std::optional<StragglerWatch::News> report(std::uint32_t node, double compute_ms, double reduce_ms, double network_ms,
                                             std::uint64_t rounds = 10, std::uint64_t samples = 64) {
    NodePace& pace = totals[node];
    pace.node = NodeRank(node);
    pace.rounds += rounds;
    const auto add = [&](std::uint64_t& total, double ms) {
      total += static_cast<std::uint64_t>(ms * 1e6 * static_cast<double>(rounds));
    };
    add(pace.compute_ns, compute_ms);
    add(pace.reduce_ns, reduce_ms);
    add(pace.network_ns, network_ms);
    pace.samples += rounds * samples;
    return watch.note(pace);
  }
  StragglerWatch watch;
  std::map<std::uint32_t, NodePace> totals;
};

}  // namespace

TEST_CASE("a node's time is its own: computing and reducing, then the network, and never waiting for others") {
  PhaseTimes times;
  PaceMeter pace(2, times);
  std::uint64_t now = 0, busy = 0;
  const auto round = [&](std::uint64_t compute, std::uint64_t reduce, std::uint64_t network, std::uint64_t others) {
    now += compute * kMs;
    pace.gathered(1, 32, now, busy);
    busy += reduce * kMs;  // of the first chunk, while the second one is computed
    now += reduce * kMs;
    pace.reduced(now, busy);
    pace.acknowledged(now);  // nothing is under way, but not everything was sent
    now += compute * kMs;
    pace.gathered(1, 32, now, busy);
    busy += reduce * kMs;
    now += reduce * kMs;
    pace.reduced(now, busy);
    now += network * kMs;
    pace.acknowledged(now);
    pace.acknowledged(now);
    now += others * kMs;
    pace.answered(now);
    pace.answered(now);
  };
  pace.answered(now);
  pace.answered(now);
  round(500, 10, 10, 0);  // the first one counts for nothing
  CHECK(pace.rounds() == 0);
  round(20, 3, 7, 1000);
  round(30, 4, 5, 1000);
  CHECK(pace.rounds() == 2);
  CHECK(pace.compute_ns() == 100 * kMs);
  CHECK(pace.network_ns() == 12 * kMs);
  CHECK(pace.samples() == 64);
  const auto in_class = [](const Histogram& histogram, double seconds) {
    const auto at = std::ranges::find(Histogram::kSeconds, seconds) - Histogram::kSeconds.begin();
    return histogram.counts().in_class[static_cast<std::size_t>(at)];
  };
  CHECK(in_class(times.compute, 0.05) == 1);  // 40 ms
  CHECK(in_class(times.compute, 0.1) == 1);   // 60 ms
  CHECK(in_class(times.network, 0.005) == 1);
  CHECK(in_class(times.network, 0.01) == 1);  // 7 ms
  CHECK(in_class(times.round, 2) == 2);       // others are waited for
  CHECK(times.compute.counts().sum_s == doctest::Approx(0.1));
  CHECK(times.round.counts().sum_s == doctest::Approx(2.126));
}

TEST_CASE("a node that takes longer than the others for some time is named with the phase in which it does") {
  const struct {
    double compute, reduction, network;
    RoundPhase phase;
  } cases[] = {
      {150, 1, 5, RoundPhase::kCompute}, {50, 40, 5, RoundPhase::kReduction}, {50, 1, 60, RoundPhase::kNetwork}};
  for (const auto& slow : cases) {
    Nodes nodes;
    std::optional<StragglerWatch::News> news;
    for (std::uint32_t window = 1; window <= 8; ++window) {
      for (const std::uint32_t fast : {0u, 1u, 3u}) CHECK_FALSE(nodes.report(fast, 50, 1, 5));
      const auto told = nodes.report(2, slow.compute, slow.reduction, slow.network);
      // The first report is where windows begin. News once.
      CHECK(told.has_value() == (window == 1 + StragglerWatch::kPatience));
      if (told) news = told;
    }
    REQUIRE(news);
    CHECK(news->node == 2);
    REQUIRE(news->lag);
    CHECK(news->lag->phase == slow.phase);
    CHECK(news->lag->factor == doctest::Approx((slow.compute + slow.reduction + slow.network) / 56.0));
    const std::string text = in_words(*news->lag);
    CHECK(testing::contains(text, to_text(slow.phase)));
    REQUIRE(nodes.watch.nodes().size() == 4);
    for (const StragglerWatch::Node& node : nodes.watch.nodes()) CHECK(node.lag.has_value() == (node.node == 2));
  }
}

TEST_CASE("who has caught up is told once, and a slow window now and then is no news") {
  Nodes nodes;
  const auto window = [&](double compute) {
    nodes.report(0, 50, 1, 5);
    nodes.report(1, 50, 1, 5);
    return nodes.report(2, compute, 1, 5);
  };
  for (int i = 0; i < 10; ++i) {
    CHECK_FALSE(window(150));
    CHECK_FALSE(window(150));
    CHECK_FALSE(window(50));
  }
  CHECK_FALSE(window(150));
  CHECK_FALSE(window(150));
  CHECK(window(150));
  CHECK_FALSE(window(62));  // 1.21 times: neither
  CHECK_FALSE(window(50));
  CHECK_FALSE(window(50));
  const auto news = required(window(50));
  CHECK_FALSE(news.lag);
  CHECK_FALSE(window(50));
}

TEST_CASE("nobody is slow alone, by less than it takes to notice, or before there are enough rounds") {
  Nodes alone, close, few;
  for (int i = 0; i < 20; ++i) {
    CHECK_FALSE(alone.report(0, 1000, 1, 1));
    close.report(0, 1.0, 0.1, 0.1);
    CHECK_FALSE(close.report(1, 2.5, 0.1, 0.1));
  }
  CHECK(alone.watch.nodes().size() == 1);
  for (int i = 0; i < 4; ++i) {
    few.report(0, 50, 1, 5, 1);
    CHECK_FALSE(few.report(1, 500, 1, 5, 1));
  }
  // A report that was overtaken changes nothing.
  NodePace old = few.totals[1];
  old.rounds = 1;
  CHECK_FALSE(few.watch.note(old));
}

TEST_CASE("where nodes do what they manage in time, the slow one is who manages less") {
  for (const bool by_samples : {false, true}) {
    Nodes nodes(by_samples);
    bool told = false;
    for (int i = 0; i < 8; ++i) {
      nodes.report(0, 50, 1, 5, 10, 64);
      nodes.report(1, 50, 1, 5, 10, 64);
      const auto news = nodes.report(2, 50, 1, 5, 10, 20);
      told = told || news;
      if (news) CHECK(news->lag->phase == RoundPhase::kCompute);
    }
    CHECK(told == by_samples);
  }
}

}  // namespace tributary::stragglers_test
