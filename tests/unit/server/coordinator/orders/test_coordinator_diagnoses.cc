// The coordinator's part in a diagnosis: the daemons it asks, those that may measure and for how long, its facts for
// a doctor.
#include "tests/unit/expect.h"
#include "tests/unit/required.h"
#include "tests/unit/server/coordinator/coordinator_fixture.h"

namespace tributary::coordinator_diagnoses_test {
namespace {

using testing::Cluster;
using testing::FullCluster;
using testing::server_peer;
using testing::worker_incarnation;
using testing::worker_peer;

// Two servers and two workers with keys.
void keyed(Cluster& cluster) {
  for (std::uint16_t index = 0; index < 2; ++index) {
    ServerHello hello = cluster.hello_of(index);
    hello.key = "server-key-" + std::to_string(index);
    cluster.say(server_peer(index), hello);
  }
  for (std::uint32_t w = 0; w < 2; ++w) {
    WorkerHello hello{"host" + std::to_string(w), worker_incarnation(w)};
    hello.key = "worker-key-" + std::to_string(w);
    cluster.say(worker_peer(w), hello);
  }
  cluster.sent.clear();
}

Diagnosed said(const Diagnose& order) {
  Diagnosed found;
  found.diagnosis = order.diagnosis;
  found.checks.push_back({"memory", "memory", CheckLevel::kOk, "enough", ""});
  return found;
}

std::optional<Diagnose> last_order(const Cluster& cluster, PeerId peer) {
  const std::vector<Diagnose> all = cluster.to<Diagnose>(peer);
  return all.empty() ? std::optional<Diagnose>() : all.back();
}

}  // namespace

TEST_CASE("whoever asks is told what there is, and is not known afterwards") {
  FullCluster cluster({.workers = 2});
  cluster.sent.clear();
  const PeerId stranger(4711);
  cluster.say(stranger, ClusterQuestion{});
  const auto facts = required(cluster.only<ClusterFacts>(stranger));
  CHECK(facts.servers == 2);
  CHECK(facts.workers == 2);
  REQUIRE(facts.lanes.size() == 2);
  CHECK(facts.lanes[1].shard == ShardIndex(1));
  CHECK(facts.lanes[1].endpoints == cluster.hello_of(1).lane_endpoints);
  CHECK(cluster.core.peers().size() == 4);
}

TEST_CASE("a diagnosis asks servers, then workers, each with its place among the keys, and ends for all") {
  Cluster cluster;
  keyed(cluster);
  required(cluster.core.diagnose({.measure = true, .paths = {"/data"}}, cluster.now));
  for (std::uint16_t index = 0; index < 2; ++index) {
    const auto order = required(cluster.only<Diagnose>(server_peer(index)));
    CHECK(order.measure);
    CHECK(order.paths == std::vector<std::string>{"/data"});
    CHECK(order.worker_keys == std::vector<std::string>{"worker-key-0", "worker-key-1"});
    CHECK(order.cluster.lanes.size() == 2);
  }
  CHECK_FALSE(cluster.only<Diagnose>(worker_peer(0)));
  const Diagnose order = *cluster.only<Diagnose>(server_peer(0));
  cluster.sent.clear();
  cluster.say(server_peer(0), said(order));
  cluster.say(server_peer(1), said(order));
  for (std::uint32_t w = 0; w < 2; ++w) {
    const auto asked = required(cluster.only<Diagnose>(worker_peer(w)));
    CHECK(asked.node == NodeRank(w));
    CHECK_FALSE(cluster.core.diagnosis(order.diagnosis)->over);
    cluster.say(worker_peer(w), said(order));
  }
  const auto status = required(cluster.core.diagnosis(order.diagnosis));
  CHECK(status.over);
  CHECK(status.servers == 2);
  for (const DiagnosedDaemon& daemon : status.daemons) CHECK(daemon.said);
  for (const PeerId peer : {server_peer(0), server_peer(1), worker_peer(0), worker_peer(1)}) {
    const auto over = required(last_order(cluster, peer));
    CHECK(over.over);
    CHECK(over.diagnosis == order.diagnosis);
  }
  cluster.sent.clear();
  cluster.pass(1000, 2);
  CHECK_FALSE(cluster.only<Diagnose>(server_peer(0)));  // said once
}

TEST_CASE("a key that is revoked meanwhile measures no more, and its worker is not waited for") {
  Cluster cluster;
  keyed(cluster);
  REQUIRE(cluster.core.diagnose({.measure = true, .paths = {}}, cluster.now));
  const Diagnose order = *cluster.only<Diagnose>(server_peer(0));
  cluster.say(server_peer(0), said(order));
  cluster.say(server_peer(1), said(order));
  cluster.sent.clear();
  cluster.core.expel("worker-key-0", "the key of host0 was revoked", cluster.now);
  const auto again = required(last_order(cluster, server_peer(0)));
  CHECK(again.worker_keys == std::vector<std::string>{"", "worker-key-1"});  // the places of others stay
  cluster.pass(1000, 2);
  const auto asked = required(last_order(cluster, worker_peer(1)));
  CHECK(asked.node == NodeRank(1));
  cluster.say(worker_peer(1), said(order));
  const auto status = cluster.core.diagnosis(order.diagnosis);
  CHECK(status->over);
  CHECK(status->daemons[2].silent_because == "its key was revoked");
}

TEST_CASE("another diagnosis takes the place of one that is under way, which ends for all") {
  Cluster cluster;
  keyed(cluster);
  const auto first = cluster.core.diagnose({.measure = true, .paths = {}}, cluster.now);
  cluster.sent.clear();
  const auto second = required(cluster.core.diagnose({.measure = false, .paths = {}}, cluster.now));
  CHECK(second != *first);
  bool over = false;
  for (const auto& [to, message] : cluster.sent) {
    const auto* order = std::get_if<Diagnose>(&message);
    if (order && to == server_peer(1)) over |= order->over && order->diagnosis == *first;
  }
  CHECK(over);
  CHECK_FALSE(cluster.core.diagnosis(static_cast<std::uint32_t>(*first)));
}

TEST_CASE("orders that make no sense are refused with what is wrong") {
  FullCluster cluster({.workers = 1});
  CHECK(failure_of(cluster.core.diagnose({.measure = false, .paths = {"data"}}, 0))
            .message.find("'data' is no absolute path") == 0);
  CHECK(failure_of(cluster.core.diagnose({.measure = false, .paths = {std::string("/a\0b", 4)}}, 0))
            .message.find("absolute") != std::string::npos);
  const std::vector<std::string> many(kMaxDiagnosedPaths + 1, "/a");
  CHECK(
      testing::contains(failure_of(cluster.core.diagnose({.measure = false, .paths = many}, 0)).message, "at most 64"));
}

}  // namespace tributary::coordinator_diagnoses_test
