#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "common/math/cost_model.h"
#include "tests/unit/expect.h"
#include "tests/unit/required.h"

namespace tributary::cost_model_test {

using testing::contains;

namespace {

using doctest::Approx;

constexpr double kTight = 1e-12;

// Links without overheads: what the closed forms are about.
Scenario ideal(ExchangeMode mode, std::uint32_t nodes, std::uint32_t servers = 0) {
  Scenario s{.mode = mode,
             .nodes = nodes,
             .servers = servers,
             .network = {.bandwidth = 1e8, .latency_s = 0.0},
             .inside = {.bandwidth = 1e10, .latency_s = 0.0},
             .goodput = 1.0,
             .payload_bytes = 16e6,
             .transfer_bytes = 0.0,
             .transfer_overhead_bytes = 0.0};
  return s;
}

Prediction predicted(const Scenario& s) {
  return required(predict(s));
}

TEST_CASE("a flat ring over n hosts takes 2(n-1)/n of M/B and 2(n-1) latencies") {
  for (std::uint32_t n : {1u, 2u, 3u, 8u, 100u}) {
    Scenario s = ideal(ExchangeMode::kFlatRing, n);
    s.network.latency_s = 3e-5;
    const Prediction p = predicted(s);
    const double steps = 2.0 * (n - 1);
    CHECK(p.exchange_s == Approx(steps / n * 0.16 + steps * 3e-5).epsilon(kTight));
    CHECK(p.network_factor == Approx(steps / n).epsilon(kTight));
    CHECK(p.hosts[0].out_bytes == Approx(steps / n * 16e6).epsilon(kTight));
  }
}

TEST_CASE("a flat ring over nodes of several ranks goes round all of them at the pace of the slowest link") {
  Scenario s = ideal(ExchangeMode::kFlatRing, 4);
  s.ranks_per_node = 4;
  s.network.latency_s = 5e-5;
  s.inside.latency_s = 1e-6;
  CHECK(predicted(s).exchange_s == Approx(2 * 15.0 / 16 * 0.16 + 30 * 5e-5).epsilon(kTight));
  s.inside.bandwidth = 1e7;
  CHECK(predicted(s).exchange_s == Approx(2 * 15.0 / 16 * 1.6 + 30 * 5e-5).epsilon(kTight));
  CHECK(predicted(s).bottleneck == "the links inside the nodes");
}

TEST_CASE("a slow host slows every ring down, and is named") {
  Scenario s = ideal(ExchangeMode::kFlatRing, 4);
  s.node_bandwidths = {1e8, 1e8, 2.5e7, 1e8};
  CHECK(predicted(s).exchange_s == Approx(1.5 * 0.64).epsilon(kTight));
  CHECK(predicted(s).bottleneck == "worker host 2's link, both ways");
}

TEST_CASE(
    "hierarchical is a ring in the node behind a ring over nodes: the longer counts, and a piece of the shorter") {
  Scenario s = ideal(ExchangeMode::kHierarchicalRing, 8);
  s.ranks_per_node = 8;
  s.network.latency_s = 5e-6;
  s.inside.latency_s = 1e-6;
  const double in_node = 1.75 * 16e6 / 1e10, over_nodes = 1.75 * 0.16, latency = 14e-6 + 14 * 5e-6;
  CHECK(predicted(s).exchange_s == Approx(over_nodes + latency).epsilon(kTight));
  CHECK(predicted(s).inside_s == Approx(0.0));
  CHECK(predicted(s).inside_busy_s == Approx(in_node).epsilon(kTight));
  s.transfer_bytes = 1e6;  // 16 pieces
  CHECK(predicted(s).exchange_s == Approx(over_nodes + in_node / 16 + latency).epsilon(kTight));
  s.transfer_bytes = 16e6;  // one: nothing overlaps
  CHECK(predicted(s).exchange_s == Approx(over_nodes + in_node + latency).epsilon(kTight));
  s.buckets = 4;
  s.network.latency_s = s.inside.latency_s = 0.0;
  CHECK(predicted(s).exchange_s == Approx(over_nodes + in_node / 4).epsilon(kTight));
  s.inside.bandwidth = 1e7;  // now the node's part is the longer
  CHECK(predicted(s).exchange_s == Approx(1.75 * 1.6 + over_nodes / 4).epsilon(kTight));
  CHECK(predicted(s).bottleneck == "the links inside the nodes");
}

TEST_CASE("of rings over nodes of several ranks the hierarchical one, which moves fewer bytes, is the faster") {
  for (const std::uint32_t ranks : {2u, 4u, 8u}) {
    Scenario s{.nodes = 8, .ranks_per_node = ranks, .payload_bytes = 4e9};
    s.network.bandwidth = 3.125e9;
    s.mode = ExchangeMode::kFlatRing;
    const double flat = predicted(s).exchange_s;
    s.mode = ExchangeMode::kHierarchicalRing;
    CHECK(predicted(s).exchange_s < flat);
  }
}

TEST_CASE("servers: a node of several ranks takes hardly longer than one of one rank") {
  Scenario s = ideal(ExchangeMode::kServersDedicated, 4, 4);
  s.transfer_bytes = 1e6;
  const double alone = predicted(s).exchange_s;
  s.ranks_per_node = 4;
  CHECK(predicted(s).exchange_s == Approx(alone + 1.5 * 16e6 / 1e10 / 16).epsilon(kTight));
}

TEST_CASE("servers take the factor of their placement") {
  for (std::uint32_t k = 1; k <= 6; ++k) {
    const double dedicated = std::max(1.0, 4.0 / k);
    CHECK(predicted(ideal(ExchangeMode::kServersDedicated, 4, k)).network_factor == Approx(dedicated).epsilon(kTight));
    const double mixed = k <= 4 ? 24.0 / (16 + 4 * k - 2 * k) : 1.0;
    CHECK(predicted(ideal(ExchangeMode::kServersMixed, 4, k)).exchange_s == Approx(mixed * 0.16).epsilon(kTight));
  }
  CHECK(predicted(ideal(ExchangeMode::kServersColocated, 4)).network_factor == Approx(1.5).epsilon(kTight));
  CHECK(predicted(ideal(ExchangeMode::kServersColocated, 4, 3)).hosts.size() == 4);
}

TEST_CASE("servers may stand beside some of the nodes only") {
  Scenario s = ideal(ExchangeMode::kServersMixed, 4, 1);
  s.node_servers = {true, true, false, false};
  const Prediction p = predicted(s);
  // Two workers' links carry 1 + 2y each way and the server's 4x, with x + 2y = 1: 4x = 1 + 2y gives x = 2/5.
  CHECK(p.network_factor == Approx(1.6).epsilon(1e-9));
  CHECK(p.hosts[0].share == Approx(0.3).epsilon(1e-9));
  CHECK(p.hosts[2].share == 0.0);
  CHECK(p.hosts[4].share == Approx(0.4).epsilon(1e-9));
  s.mode = ExchangeMode::kServersColocated;
  CHECK(predicted(s).network_factor == Approx(2.0).epsilon(1e-9));
  s.node_servers = {false, false, false, false};
  CHECK(contains(predict(s).error().message, "no node holds servers"));
  s.node_servers = {true};
  CHECK(contains(predict(s).error().message, "1 values for 4 nodes"));
}

TEST_CASE("encodings shorten each direction by their ratio") {
  Scenario s = ideal(ExchangeMode::kServersDedicated, 4, 4);
  s.wire = {.push = 0.5, .pull = 0.25};
  const Prediction p = predicted(s);
  CHECK(p.exchange_s == Approx(0.5 * 0.16).epsilon(kTight));
  CHECK(p.hosts[0].out_bytes == Approx(8e6).epsilon(kTight));
  CHECK(p.hosts[0].in_bytes == Approx(4e6).epsilon(kTight));
  CHECK(p.bottleneck == "the worker hosts' links, out; the server hosts' links, in");
  // The targets of a lab of 4 + 4 hosts: 3 times the ring with bf16, 5.9 times with 8 bits and a scale for each 256.
  const double ring = predicted(ideal(ExchangeMode::kFlatRing, 4)).exchange_s;
  s.wire = {.push = 0.5, .pull = 0.5};
  CHECK(ring / predicted(s).exchange_s == Approx(3.0));
  s.wire = {.push = 260.0 / 1024, .pull = 260.0 / 1024};
  CHECK(ring / predicted(s).exchange_s == Approx(5.9).epsilon(0.002));
}

TEST_CASE("transfers have a header, two latencies and a tail") {
  Scenario s = ideal(ExchangeMode::kServersDedicated, 4, 4);
  s.network.latency_s = 1e-4;
  s.transfer_bytes = 1e5;
  s.transfer_overhead_bytes = 500;
  const Prediction p = predicted(s);
  CHECK(p.network_s == Approx(1.005 * 0.16).epsilon(kTight));
  CHECK(p.latency_s == Approx(2e-4).epsilon(kTight));
  CHECK(p.tail_s == Approx((4 + 8) * 1.005e5 / 1e8).epsilon(kTight));
  CHECK(p.exchange_s == Approx(p.network_s + p.latency_s + p.tail_s).epsilon(kTight));
  // No transfer is larger than what a server owns.
  s.transfer_bytes = 1e9;
  CHECK(predicted(s).tail_s == Approx((4 + 8) * (4e6 + 500) / 1e8).epsilon(kTight));
}

TEST_CASE("without a size transfers are as large as the coordinator makes them, so that the tail is about 2 per cent") {
  for (const double payload : {16e6, 64e6, 250e6}) {
    Scenario s = ideal(ExchangeMode::kServersDedicated, 4, 4);
    s.payload_bytes = payload;
    s.transfer_bytes = kDefaultTransfer;
    const Prediction p = predicted(s);
    CHECK(p.tail_s / p.network_s > 0.02 / 1.5);
    CHECK(p.tail_s / p.network_s < 0.02 * 1.5);
  }
}

TEST_CASE("the ring that was measured on emulated links is predicted within one per cent") {
  // 4 hosts, links limited to 250 Mbit/s, 16 MB: 0.806 s.
  Scenario s{.mode = ExchangeMode::kFlatRing,
             .nodes = 4,
             .network = {.bandwidth = 31.25e6, .latency_s = 50e-6},
             .payload_bytes = 16e6};
  CHECK(predicted(s).exchange_s == Approx(0.806).epsilon(0.01));
}

TEST_CASE("goodput lowers the network's bandwidth and not that inside a node") {
  Scenario s = ideal(ExchangeMode::kHierarchicalRing, 4);
  s.ranks_per_node = 2;
  s.goodput = 0.5;
  CHECK(predicted(s).network_s == Approx(1.5 * 0.32).epsilon(kTight));
  CHECK(predicted(s).network_factor == Approx(1.5).epsilon(kTight));
  CHECK(predicted(s).inside_busy_s == Approx(16e6 / 1e10).epsilon(kTight));
}

TEST_CASE("compute hides what overlaps, but never the tail and the last latency") {
  Scenario s = ideal(ExchangeMode::kServersDedicated, 4, 4);
  s.compute_s = 0.2;
  CHECK(predicted(s).step_s == Approx(0.36).epsilon(kTight));
  CHECK(predicted(s).efficiency == Approx(0.2 / 0.36).epsilon(kTight));
  s.overlap = 0.5;
  CHECK(predicted(s).exposed_s == Approx(0.06).epsilon(kTight));
  CHECK(predicted(s).exchange_s == Approx(0.16).epsilon(kTight));
  s.transfer_bytes = 1e5;
  s.compute_s = 2.0;
  CHECK(predicted(s).exposed_s == Approx(12e-3).epsilon(kTight));
}

TEST_CASE("the optimizer's step on the workers follows an all-reduce and costs no step with servers") {
  Scenario s = ideal(ExchangeMode::kFlatRing, 4);
  s.compute_s = 0.2;
  s.update_s = 0.01;
  CHECK(predicted(s).step_s == Approx(0.2 + 0.24 + 0.01).epsilon(kTight));
  CHECK(predicted(s).efficiency == Approx(0.21 / 0.45).epsilon(kTight));
  s.mode = ExchangeMode::kServersColocated;
  CHECK(predicted(s).step_s == Approx(0.44).epsilon(kTight));
}

TEST_CASE("hosts that are emulated on one machine share its processors") {
  Scenario s = ideal(ExchangeMode::kFlatRing, 4);
  s.cores = 2;
  s.cpu_s_per_byte = 1e-9;  // 4 hosts send 24 MB each: 48 ms, less than the network takes
  CHECK(predicted(s).exchange_s == Approx(0.24).epsilon(kTight));
  s.cpu_s_per_byte = 1e-8;
  CHECK(predicted(s).exchange_s == Approx(0.48).epsilon(kTight));
  CHECK(contains(predicted(s).bottleneck, "processors"));
}

TEST_CASE("the bottleneck says which links bind, and in which direction") {
  CHECK(predicted(ideal(ExchangeMode::kServersDedicated, 4, 4)).bottleneck == "every host's link, both ways");
  CHECK(predicted(ideal(ExchangeMode::kServersDedicated, 4, 2)).bottleneck == "the server hosts' links, both ways");
  CHECK(predicted(ideal(ExchangeMode::kServersDedicated, 4, 1)).bottleneck == "the server host's link, both ways");
  CHECK(predicted(ideal(ExchangeMode::kServersDedicated, 4, 8)).bottleneck == "the worker hosts' links, both ways");
  CHECK(contains(predicted(ideal(ExchangeMode::kServersColocated, 1)).bottleneck, "none"));
  Scenario s = ideal(ExchangeMode::kServersDedicated, 4, 4);
  s.wire = {.push = 0.1, .pull = 1.0};
  CHECK(predicted(s).bottleneck == "the worker hosts' links, in; the server hosts' links, out");
  s = ideal(ExchangeMode::kServersDedicated, 4, 8);
  s.node_bandwidths = {1e8, 2e7, 2e7, 1e8};
  CHECK(predicted(s).bottleneck == "the links of 2 of 4 worker hosts, both ways");
  s = ideal(ExchangeMode::kFlatRing, 50);
  s.network.latency_s = 1.0;
  CHECK(contains(predicted(s).bottleneck, "latency"));
}

TEST_CASE("with local steps a step waits for its part of one exchange, and all-reduce has none") {
  Scenario s = ideal(ExchangeMode::kServersDedicated, 4, 4);
  s.compute_s = 0.1;
  const auto one = predict(s);
  s.local_steps = 50;
  const auto fifty = predict(s);
  REQUIRE((one && fifty));
  CHECK(fifty->exchange_s == one->exchange_s);
  CHECK(one->step_s == Approx(0.1 + one->exchange_s));
  CHECK(fifty->step_s == Approx(0.1 + one->exchange_s / 50.0));
  CHECK(fifty->efficiency == Approx(0.1 / fifty->step_s));
  Scenario ring = ideal(ExchangeMode::kFlatRing, 4);
  ring.compute_s = 0.1;
  const double step_s = predict(ring)->step_s;
  ring.local_steps = 50;
  CHECK(predict(ring)->step_s == step_s);
}

TEST_CASE("values that can not be right are refused by name") {
  const auto refused = [](auto change) {
    Scenario s = ideal(ExchangeMode::kServersDedicated, 4, 4);
    change(s);
    const auto p = predict(s);
    REQUIRE(!p);
    CHECK(p.error().code == ErrorCode::kInvalidArgument);
    return p.error().message;
  };
  CHECK(contains(refused([](Scenario& s) { s.nodes = 0; }), "nodes is 0"));
  CHECK(contains(refused([](Scenario& s) { s.servers = 0; }), "at least one such machine"));
  CHECK(contains(refused([](Scenario& s) { s.network.bandwidth = 0; }), "bandwidth is 0"));
  CHECK(contains(refused([](Scenario& s) { s.payload_bytes = -1; }), "payload is -1"));
  CHECK(contains(refused([](Scenario& s) { s.overlap = 1.5; }), "overlap is 1.5"));
  CHECK(contains(refused([](Scenario& s) { s.local_steps = 0; }), "local steps is 0"));
  CHECK(contains(refused([](Scenario& s) { s.goodput = 1.1; }), "goodput is 1.1"));
  CHECK(contains(refused([](Scenario& s) { s.wire.pull = 0; }), "pull ratio is 0"));
  CHECK(contains(refused([](Scenario& s) { s.node_bandwidths = {1e8}; }), "1 values for 4 hosts"));
  CHECK(contains(refused([](Scenario& s) { s.server_bandwidths = {1, 1, 1, -1}; }), "server bandwidths is -1"));
  CHECK(contains(refused([](Scenario& s) { s.compute_s = std::numeric_limits<double>::quiet_NaN(); }), "compute time"));
}

}  // namespace

}  // namespace tributary::cost_model_test
