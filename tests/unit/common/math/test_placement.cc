#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "common/config/config.h"
#include "common/math/placement.h"
#include "tests/unit/expect.h"
#include "tests/unit/required.h"

namespace tributary::placement_test {

namespace {

using tributary::LinkDirection;
using tributary::optimal_placement;
using tributary::Placement;
using tributary::placement_of_shares;
using tributary::PlacementHost;
using tributary::WireRatio;

// n worker hosts of bandwidth 1 that hold servers too (or not), and k server hosts of another bandwidth.
std::vector<PlacementHost> cluster(std::uint32_t n, std::uint32_t k, bool colocated = true, double server_rate = 1.0) {
  std::vector<PlacementHost> hosts(n, {.bandwidth = 1.0, .workers = 1, .servers = colocated ? 1u : 0u});
  hosts.insert(hosts.end(), k, {.bandwidth = server_rate, .workers = 0, .servers = 1});
  return hosts;
}

Placement solve(const std::vector<PlacementHost>& hosts, const WireRatio& ratio = {}) {
  return required(optimal_placement(hosts, ratio));
}

// The time of these shares from first principles: every worker sends to and receives from every server.
double time_by_messages(const std::vector<PlacementHost>& hosts, const WireRatio& ratio,
                        const std::vector<double>& shares) {
  std::vector<double> out(hosts.size(), 0.0), in(hosts.size(), 0.0);
  for (std::size_t a = 0; a < hosts.size(); ++a) {
    for (std::size_t b = 0; b < hosts.size(); ++b) {
      if (a == b) continue;
      const double pushed = hosts[a].workers * ratio.push * shares[b];
      const double pulled = hosts[a].workers * ratio.pull * shares[b];
      out[a] += pushed, in[b] += pushed;
      out[b] += pulled, in[a] += pulled;
    }
  }
  double time = 0.0;
  for (std::size_t i = 0; i < hosts.size(); ++i)
    time = std::max({time, out[i] / hosts[i].bandwidth, in[i] / hosts[i].bandwidth});
  return time;
}

// The least time over all shares that are multiples of 1/steps, by trying each.
double least_on_grid(const std::vector<PlacementHost>& hosts, const WireRatio& ratio, int steps) {
  std::vector<std::size_t> holders;
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    if (hosts[i].servers > 0) holders.push_back(i);
  }
  std::vector<double> shares(hosts.size(), 0.0);
  double least = std::numeric_limits<double>::infinity();
  auto spread = [&](auto& self, std::size_t k, int left) -> void {
    if (k + 1 == holders.size()) {
      shares[holders[k]] = static_cast<double>(left) / steps;
      least = std::min(least, time_by_messages(hosts, ratio, shares));
      return;
    }
    for (int here = 0; here <= left; ++here) {
      shares[holders[k]] = static_cast<double>(here) / steps;
      self(self, k + 1, left - here);
    }
  };
  spread(spread, 0, steps);
  return least;
}

double sum(const std::vector<double>& values) {
  double total = 0.0;
  for (double v : values) total += v;
  return total;
}

TEST_CASE("equal links without encoding give the published optimum and shares, for every n and k up to n") {
  for (std::uint32_t n = 2; n <= 16; ++n) {
    for (std::uint32_t k = 0; k <= n; ++k) {
      CAPTURE(n);
      CAPTURE(k);
      const Placement placement = solve(cluster(n, k));
      const double d = n * n + k * n - 2.0 * k;
      CHECK(placement.time_factor == doctest::Approx(2.0 * n * (n - 1) / d).epsilon(1e-12));
      if (n == 2) continue;  // every share has the same time: see the case of two workers
      for (std::uint32_t i = 0; i < n; ++i) CHECK(placement.shares[i] == doctest::Approx((n - k) / d).epsilon(1e-9));
      for (std::uint32_t i = n; i < n + k; ++i) {
        CHECK(placement.shares[i] == doctest::Approx(2.0 * (n - 1) / d).epsilon(1e-9));
      }
    }
  }
}

TEST_CASE("the table of four and eight worker hosts with servers on their own machines beside them") {
  const double four[] = {1.5, 1.333, 1.2, 1.091, 1.0};
  for (std::uint32_t k = 0; k <= 4; ++k) {
    CHECK(std::round(solve(cluster(4, k)).time_factor * 1000) / 1000 == four[k]);
  }
  const double eight[] = {1.75, 1.6, 1.474, 1.366, 1.273, 1.191, 1.12, 1.057, 1.0};
  for (std::uint32_t k = 0; k <= 8; ++k) {
    CHECK(std::round(solve(cluster(8, k)).time_factor * 1000) / 1000 == eight[k]);
  }
}

TEST_CASE("servers on their own machines only take the longer of the workers' and the servers' time") {
  for (std::uint32_t n = 1; n <= 8; ++n) {
    for (std::uint32_t k = 1; k <= 8; ++k) {
      const Placement placement = solve(cluster(n, k, false));
      CHECK(placement.time_factor == doctest::Approx(std::max(1.0, static_cast<double>(n) / k)).epsilon(1e-12));
      for (std::uint32_t i = n; i < n + k; ++i) CHECK(placement.shares[i] == doctest::Approx(1.0 / k).epsilon(1e-12));
    }
  }
}

TEST_CASE("server machines of another bandwidth follow the closed form while they are needed") {
  for (std::uint32_t n : {3u, 4u, 8u}) {
    for (double r : {0.5, 1.0, 2.0, 4.0}) {  // the workers' bandwidth over the servers'
      for (std::uint32_t k = 1; k <= static_cast<std::uint32_t>(r * n); ++k) {
        CAPTURE(n);
        CAPTURE(r);
        CAPTURE(k);
        const Placement placement = solve(cluster(n, k, true, 1.0 / r));
        const double x = 2.0 * (n - 1) / (r * n * n + k * (n - 2.0));
        CHECK(placement.time_factor == doctest::Approx(n * x * r).epsilon(1e-12));
        CHECK(placement.shares.back() == doctest::Approx(x).epsilon(1e-9));
      }
    }
  }
}

TEST_CASE("unequal encodings follow the closed form, whichever direction is the larger") {
  for (std::uint32_t n : {4u, 6u, 8u}) {
    for (double ratio : {1.0, 1.5, 2.0, 2.9}) {  // below n - 1
      for (std::uint32_t k = 0; k <= n; ++k) {
        CAPTURE(n);
        CAPTURE(ratio);
        CAPTURE(k);
        const double alpha = 0.5, beta = alpha / ratio;
        const double closed = alpha * n * (n - 1) * (alpha + beta) / (alpha * n * n + k * (beta * (n - 1) - alpha));
        CHECK(solve(cluster(n, k), {.push = alpha, .pull = beta}).time_factor ==
              doctest::Approx(closed).epsilon(1e-12));
        CHECK(solve(cluster(n, k), {.push = beta, .pull = alpha}).time_factor ==
              doctest::Approx(closed).epsilon(1e-12));
      }
    }
  }
}

TEST_CASE("with strongly unequal encodings the best layout leaves the server machines idle") {
  for (const WireRatio ratio : {WireRatio{.push = 1.0 / 32, .pull = 1.0}, WireRatio{.push = 1.0, .pull = 1.0 / 32}}) {
    for (std::uint32_t k = 0; k <= 4; ++k) {
      CAPTURE(k);
      const Placement placement = solve(cluster(4, k), ratio);
      CHECK(placement.time_factor == doctest::Approx(0.75 * 33 / 32).epsilon(1e-12));  // (n-1)(α+β)/n
      CHECK(std::round(placement.time_factor * 1000) / 1000 == 0.773);
      for (std::uint32_t i = 0; i < 4; ++i) CHECK(placement.shares[i] == doctest::Approx(0.25).epsilon(1e-9));
      for (std::uint32_t i = 4; i < 4 + k; ++i) CHECK(placement.shares[i] < 1e-9);
    }
  }
  // Servers on machines of their own only cannot do better than the larger direction.
  CHECK(solve(cluster(4, 4, false), {.push = 1.0 / 32, .pull = 1.0}).time_factor == doctest::Approx(1.0));
}

TEST_CASE("no grid of shares beats the optimum on random clusters, and its time is that of its messages") {
  std::mt19937 random(20240607);
  std::uniform_real_distribution<double> rate(0.2, 5.0), wire(0.03, 1.0);
  for (int round = 0; round < 300; ++round) {
    std::vector<PlacementHost> hosts;
    std::uint32_t workers = 0, holders = 0;
    const std::uint32_t size = 1 + random() % 6;
    for (std::uint32_t i = 0; i < size; ++i) {
      PlacementHost host;
      host.bandwidth = random() % 3 == 0 ? 1.0 : rate(random);
      host.workers = random() % 4 == 0 ? 2 : random() % 2;
      host.servers = holders < 4 ? random() % 2 : 0;
      workers += host.workers;
      holders += host.servers > 0;
      hosts.push_back(host);
    }
    if (workers == 0) hosts[0].workers = 1;
    if (holders == 0) hosts.back().servers = 1;
    const WireRatio ratio = round % 3 == 0 ? WireRatio{} : WireRatio{.push = wire(random), .pull = wire(random)};
    CAPTURE(round);
    const Placement placement = solve(hosts, ratio);
    CHECK(sum(placement.shares) == doctest::Approx(1.0).epsilon(1e-12));
    for (std::size_t i = 0; i < hosts.size(); ++i) {
      CHECK(placement.shares[i] >= 0.0);
      CHECK(placement.shares[i] <= 1.0 + 1e-12);
      if (hosts[i].servers == 0) CHECK(placement.shares[i] == 0.0);
    }
    CHECK(placement.time_factor ==
          doctest::Approx(time_by_messages(hosts, ratio, placement.shares)).epsilon(1e-9).scale(1e-9));
    constexpr int kSteps = 30;
    const double grid = least_on_grid(hosts, ratio, kSteps);
    CHECK(placement.time_factor <= grid * (1.0 + 1e-9) + 1e-12);
    // A grid cannot be much worse either: each of at most four shares is at most 3/steps from the optimum's.
    double steepest = 0.0;
    for (const PlacementHost& host : hosts) steepest = std::max(steepest, 14.0 / host.bandwidth);
    CHECK(grid <= placement.time_factor + 3.0 / kSteps * steepest);
  }
}

TEST_CASE("shares of hosts as unlike as a cluster may state them add up to the whole") {
  const double bandwidths[] = {tributary::kMinBandwidth, 1.0, tributary::kMaxBandwidth};
  for (const double a : bandwidths) {
    for (const double b : bandwidths) {
      for (const double c : bandwidths) {
        const Placement placement = solve({{a, 1, 1}, {b, 2, 1}, {c, 0, 3}, {a, 3, 0}}, {0.25, 1.0});
        double sum = 0.0;
        for (const double share : placement.shares) sum += share;
        CHECK(sum == doctest::Approx(1.0));
      }
    }
  }
}

TEST_CASE("small changes of the shares do not shorten the time") {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> rate(0.2, 5.0), wire(0.03, 1.0), change(-1.0, 1.0);
  for (int round = 0; round < 200; ++round) {
    std::vector<PlacementHost> hosts;
    for (int i = 0; i < 9; ++i) {
      hosts.push_back({.bandwidth = rate(random), .workers = i < 5 ? 1u : 0u, .servers = i % 3 != 1 ? 1u : 0u});
    }
    const WireRatio ratio{.push = wire(random), .pull = wire(random)};
    const Placement placement = solve(hosts, ratio);
    for (int trial = 0; trial < 50; ++trial) {
      const double size = std::pow(10.0, -1.0 - trial % 5);
      std::vector<double> other = placement.shares;
      for (std::size_t i = 0; i < hosts.size(); ++i) {
        if (hosts[i].servers > 0) other[i] = std::max(0.0, other[i] + size * change(random));
      }
      const double total = sum(other);
      for (double& share : other) share /= total;
      CHECK(placement.time_factor <= time_by_messages(hosts, ratio, other) * (1.0 + 1e-9));
    }
  }
}

TEST_CASE("hosts that are described alike get the same share, to the bit") {
  for (std::uint32_t n : {1u, 2u, 3u, 5u, 7u}) {
    for (std::uint32_t k : {0u, 1u, 2u, 3u, 9u}) {
      for (const WireRatio ratio :
           {WireRatio{}, WireRatio{.push = 0.254, .pull = 0.5}, WireRatio{.push = 1, .pull = 0.03}}) {
        const Placement placement = solve(cluster(n, k, true, 0.7), ratio);
        for (std::uint32_t i = 1; i < n; ++i) CHECK(placement.shares[i] == placement.shares[0]);
        for (std::uint32_t i = n + 1; i < n + k; ++i) CHECK(placement.shares[i] == placement.shares[n]);
      }
    }
  }
}

TEST_CASE("with two workers and equal encodings every share has the same time, so they are spread evenly") {
  const Placement placement = solve(cluster(2, 2));
  CHECK(placement.time_factor == doctest::Approx(1.0));
  for (double share : placement.shares) CHECK(share == doctest::Approx(0.25));
  // Up to what a slow server machine can take without being the bottleneck.
  const Placement slow = solve(cluster(2, 1, true, 0.1));
  CHECK(slow.time_factor == doctest::Approx(1.0));
  CHECK(slow.shares[2] == doctest::Approx(0.1 / 2.1));
  // A single slow holder of servers beside a machine of their own: the machine takes what it can carry.
  std::vector<PlacementHost> hosts = {{.bandwidth = 1, .workers = 1, .servers = 1},
                                      {.bandwidth = 10, .workers = 1, .servers = 0},
                                      {.bandwidth = 0.1, .workers = 0, .servers = 1}};
  const Placement one = solve(hosts);
  CHECK(one.time_factor == doctest::Approx(1.0));
  CHECK(one.shares[2] == doctest::Approx(0.05));
}

TEST_CASE("more server machines than are needed share evenly, by bandwidth, and the workers' links remain") {
  std::vector<PlacementHost> hosts = cluster(4, 8);
  for (std::size_t i = 4; i < 8; ++i) hosts[i].bandwidth = 3.0;
  const Placement placement = solve(hosts);
  CHECK(placement.time_factor == doctest::Approx(1.0));
  CHECK(placement.bottleneck_host == 0);
  CHECK(placement.bottleneck_direction == LinkDirection::kOut);
  for (std::size_t i = 0; i < 4; ++i) CHECK(placement.shares[i] == 0.0);
  for (std::size_t i = 4; i < 8; ++i) CHECK(placement.shares[i] == doctest::Approx(3.0 / 16));
  for (std::size_t i = 8; i < 12; ++i) CHECK(placement.shares[i] == doctest::Approx(1.0 / 16));
}

TEST_CASE(
    "a slow worker's link is the bottleneck, and the others are placed as if it were not there to be waited for") {
  std::vector<PlacementHost> hosts = cluster(4, 2);
  hosts[1] = {.bandwidth = 0.25, .workers = 1, .servers = 0};
  const Placement placement = solve(hosts);
  CHECK(placement.time_factor == doctest::Approx(4.0));
  CHECK(placement.bottleneck_host == 1);
  // The next bottleneck is as small as it can be: no host's share could be lowered without raising another's time.
  const double dedicated = placement.loads[4].in, mixed = placement.loads[0].out;
  CHECK(dedicated == doctest::Approx(mixed));
  CHECK(placement.loads[5].in == doctest::Approx(dedicated));
  CHECK(dedicated < 1.5);
}

TEST_CASE("what stays on one host uses no link") {
  const Placement one = solve({{.bandwidth = 1, .workers = 4, .servers = 2}});
  CHECK(one.time_factor == 0.0);
  CHECK(one.shares[0] == 1.0);
  const Placement beside =
      solve({{.bandwidth = 1, .workers = 1, .servers = 1}, {.bandwidth = 1, .workers = 0, .servers = 1}});
  CHECK(beside.time_factor == doctest::Approx(0.0));
  CHECK(beside.shares[0] == doctest::Approx(1.0));
}

TEST_CASE("the bottleneck names the host and the direction") {
  // Pulls are larger: two worker hosts without servers, one server machine that answers both.
  const Placement placement = solve(cluster(2, 1, false), {.push = 0.25, .pull = 1.0});
  CHECK(placement.bottleneck_host == 2);
  CHECK(placement.bottleneck_direction == LinkDirection::kOut);
  CHECK(placement.time_factor == doctest::Approx(2.0));
  const Placement pushes = solve(cluster(2, 1, false), {.push = 1.0, .pull = 0.25});
  CHECK(pushes.bottleneck_direction == LinkDirection::kIn);
  CHECK(pushes.loads[2].in == doctest::Approx(2.0));
  CHECK(pushes.loads[2].out == doctest::Approx(0.5));
}

TEST_CASE("the loads of shares that are given are those of the messages") {
  const auto hosts = cluster(3, 2);
  const std::vector<double> shares = {0.5, 0.0, 0.1, 0.3, 0.1};
  const Placement placement = placement_of_shares(hosts, {.push = 0.5, .pull = 0.25}, shares);
  CHECK(placement.time_factor == doctest::Approx(time_by_messages(hosts, {.push = 0.5, .pull = 0.25}, shares)));
  CHECK(placement.loads[0].out == doctest::Approx(0.5 * 0.5 + 2 * 0.25 * 0.5));
  CHECK(placement.loads[0].in == doctest::Approx(0.25 * 0.5 + 2 * 0.5 * 0.5));
}

TEST_CASE("a thousand hosts are placed too") {
  const Placement placement = solve(cluster(1000, 300));
  const double n = 1000, k = 300;
  CHECK(placement.time_factor == doctest::Approx(2 * n * (n - 1) / (n * n + k * n - 2 * k)).epsilon(1e-9));
}

TEST_CASE("hosts without workers or servers and values that are not positive are refused by name") {
  const auto message = [](const std::vector<PlacementHost>& hosts, WireRatio ratio = {}) {
    const auto placement = optimal_placement(hosts, ratio);
    REQUIRE(!placement);
    return placement.error().message;
  };
  CHECK(testing::contains(message({}), "0 workers and 0 servers"));
  CHECK(testing::contains(message({{.bandwidth = 1, .workers = 3, .servers = 0}}), "3 workers and 0 servers"));
  CHECK(testing::contains(message({{.bandwidth = 0, .workers = 1, .servers = 1}}), "bandwidth of host 0 is 0"));
  const double nan = std::numeric_limits<double>::quiet_NaN();
  CHECK(testing::contains(message({{.bandwidth = nan, .workers = 1, .servers = 1}}), "positive"));
  CHECK(testing::contains(message(cluster(2, 1), {.push = -1, .pull = 1}), "for a push"));
}

}  // namespace

}  // namespace tributary::placement_test
