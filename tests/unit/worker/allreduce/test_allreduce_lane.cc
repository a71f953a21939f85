#include <fstream>

#include "tests/unit/expect.h"
#include "tests/unit/required.h"
#include "tests/unit/stepping_optimizers.h"
#include "tests/unit/temp_dir.h"
#include "tests/unit/worker/allreduce/allreduce_fixture.h"
#include "worker/allreduce/replica_checkpoints.h"

namespace tributary::allreduce_lane_test {

using namespace testing;

TEST_CASE("two nodes have the servers' bits") {
  for (const std::string& optimizer : stepping_optimizers()) {
    check_against_servers({.nodes = 2, .ranks = 1, .optimizer = optimizer}, true);
  }
}

TEST_CASE("two nodes with two ranks each have the servers' bits when the node is reduced first") {
  check_against_servers({.nodes = 2, .ranks = 2}, true);
}

TEST_CASE("one node alone needs nobody") {
  check_against_servers({.nodes = 1, .ranks = 4}, true);
  check_against_servers({.nodes = 1, .ranks = 2, .algorithm = "flat"}, true);
}

TEST_CASE("more nodes and flat rings add in another order") {
  check_against_servers({.nodes = 4, .ranks = 1}, false);
  check_against_servers({.nodes = 3, .ranks = 2}, false);
  check_against_servers({.nodes = 2, .ranks = 2, .algorithm = "flat"}, false);
}

TEST_CASE("the number of streams changes no bit") {
  for (const std::uint16_t streams : {1, 3, 5}) {
    check_against_servers({.nodes = 2, .ranks = 1, .streams = streams}, true);
  }
}

TEST_CASE("weights of nodes are added, however large, and a round without any changes nothing") {
  const ClusterOptions options{.nodes = 2, .ranks = 1};
  AllreduceCluster cluster(options);
  cluster.start();
  ServerReference servers(options);
  const std::uint64_t weights[][2] = {{3, 5}, {(1ull << 40) - 1, 123'456'789}, {0, 0}, {0, 7}};
  for (std::uint64_t round = 1; round <= 4; ++round) {
    const auto& weight = weights[round - 1];
    cluster.ready_node(0, round, weight[0]);
    cluster.ready_node(1, round, weight[1]);
    REQUIRE(cluster.reaches(round));
    servers.round(round, 2, weight[0] + weight[1]);
    CHECK(same_bits(cluster.parameters(0), servers.parameters()));
    CHECK(same_bits(cluster.parameters(1), servers.parameters()));
  }
}

TEST_CASE("a node that left after its round unblocks nobody before the stop, and everybody then") {
  TempDir directory;
  const ClusterOptions options{.nodes = 3, .store = directory.path()};
  AllreduceCluster cluster(options);
  cluster.start();
  cluster.train(1, 3);
  const std::vector<float> reached = cluster.parameters(0);
  // Node 2 leaves; the others begin round 4 and wait in its collectives.
  cluster.node(2).lane->close(cluster.node(2).job, true);
  cluster.ready_node(0, 4);
  cluster.ready_node(1, 4);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  CHECK(cluster.node_at(0, 3));
  CHECK(cluster.node_at(1, 3));
  CHECK(cluster.no_failures());
  CHECK(cluster.node(2).lane->jobs_keeping() == 1);  // its neighbours may still need it
  cluster.node(0).lane->close(cluster.node(0).job, true);
  cluster.node(1).lane->close(cluster.node(1).job, true);
  for (std::uint32_t n = 0; n < 3; ++n) cluster.node(n).job.reset();
  CHECK(cluster.memory_comes_back());
  CHECK(cluster.no_failures());
  const Layout layout = cluster_layout(options.chunk_elements);
  CHECK(ReplicaCheckpoints(directory.path(), cluster_config(options), layout).newest() == Round(3));
  check_checkpoint(options, Round(3), reached);
}

TEST_CASE("a job goes on from what its second node has, to the bits of one that was not stopped") {
  for (const std::string optimizer : {"adamw", "sgd"}) {
    TempDir directory;
    ClusterOptions options{
        .nodes = 3, .optimizer = optimizer, .warmup_rounds = 10, .store = directory.path(), .keeper = 1};
    AllreduceCluster calm(options);
    calm.start();
    calm.train(1, 6);
    said_at_the_end(options);
    options.start = Round(3);
    AllreduceCluster cluster(options);
    cluster.resume(6);
    for (std::uint32_t n = 0; n < 3; ++n) CHECK(same_bits(cluster.parameters(n), calm.parameters(0)));
  }
}

TEST_CASE("a resumed job goes on to the bits of one that was not stopped") {
  TempDir directory;
  ClusterOptions options{.nodes = 2, .ranks = 2, .store = directory.path()};
  const SnapshotDone stopped = said_at_the_end(options);
  CHECK(stopped.ok);
  CHECK(stopped.round == Round(3));
  options.start = Round(3);
  AllreduceCluster cluster(options);
  cluster.resume(6);
  ServerReference servers(options);
  servers.rounds(6, 4);
  for (std::uint32_t n = 0; n < 2; ++n) CHECK(same_bits(cluster.parameters(n), servers.parameters()));
}

TEST_CASE("node 0 says what the end of a view left on its disk: nothing without a store, or why it could not") {
  const SnapshotDone without = said_at_the_end({.nodes = 2});
  CHECK(without.ok);
  CHECK(without.round == Round(0));
  TempDir directory;
  const std::string file = directory / "a-file";
  std::ofstream(file) << "no folder";
  const SnapshotDone failed = said_at_the_end({.nodes = 2, .store = file});
  CHECK_FALSE(failed.ok);
  CHECK(failed.message.find("node 0's checkpoint of round 3: ") == 0);
  CHECK(contains(failed.message, "this node has no other"));
  said_at_the_end({.nodes = 2, .store = directory.path()}, false);
  // A stop before the first parameters were there.
  const SnapshotDone early = said_at_the_end({.nodes = 2, .store = directory.path()}, true, 0);
  CHECK(early.ok);
  CHECK(early.round == Round(0));
}

TEST_CASE("checkpoints are written while training goes on, and hold one round each") {
  TempDir directory;
  const ClusterOptions options{.nodes = 2, .snapshot = {0, 2}, .store = directory.path()};
  AllreduceCluster cluster(options);
  cluster.start();
  ServerReference servers(options);
  const Layout layout = cluster_layout(options.chunk_elements);
  const ReplicaCheckpoints checkpoints(directory.path(), cluster_config(options), layout);
  std::vector<std::vector<float>> after{servers.parameters()};  // by round
  Round newest;
  std::size_t seen = 0;
  for (std::uint64_t round = 1; seen < 3; ++round) {
    REQUIRE(round < 1000);
    cluster.train(round, round);
    servers.round(round, 2, 2);
    after.push_back(servers.parameters());
    const auto found = required(checkpoints.newest());
    if (found == newest) continue;
    newest = found;
    ++seen;
    check_checkpoint(options, newest, after[newest.value]);
  }
  // The view ends without a good end: what was being written is finished, and no other is added.
  const std::uint64_t last = after.size() - 1;
  cluster.end();
  const auto standing = required(checkpoints.newest());
  CHECK(standing.value >= newest.value);
  CHECK(standing.value <= last);
}

TEST_CASE("a replica that is not the others' any more is noticed, and ends the view on all nodes") {
  check_that_other_bits_are_noticed({.nodes = 2});
  check_that_other_bits_are_noticed({.nodes = 3, .optimizer = "sgd"});
  check_that_other_bits_are_noticed({.nodes = 2, .ranks = 2, .algorithm = "flat"});
}

TEST_CASE("a lost node ends the view on its neighbour, while the coordinator's word is awaited") {
  AllreduceCluster cluster({.nodes = 2});
  cluster.start();
  cluster.train(1, 1);
  SUBCASE("in the middle of a collective") {
    cluster.ready_node(0, 2);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  SUBCASE("while nothing is under way") {}
  cluster.node(1).lane->close(cluster.node(1).job, false);
  const LaneFailure failure = cluster.node(0).failures.await();
  CHECK(failure.kind == LaneFailure::Kind::kViewOver);
  CHECK(contains(failure.error.message, "node 0 of 2"));
  cluster.end();
  CHECK(cluster.node(0).failures.all().size() == 1);
}

TEST_CASE("a node that never comes is named when its time is up") {
  AllreduceCluster cluster({.nodes = 2, .timeout_ms = 200});
  cluster.open([](std::uint32_t n) { return n == 0; });
  const LaneFailure failure = cluster.node(0).failures.await();
  CHECK(failure.kind == LaneFailure::Kind::kRefused);
  CHECK(contains(failure.error.message, "node 1 has not said its address for 200 ms"));
  cluster.end();
}

TEST_CASE("a view that ends while it is being opened gives its memory back at once") {
  AllreduceCluster cluster({.nodes = 2});
  SUBCASE("before the other node is there") {
    cluster.open([](std::uint32_t n) { return n == 0; });
  }
  SUBCASE("before the initial values are there") {
    cluster.open();
  }
  cluster.end();
  CHECK(cluster.no_failures());
}

TEST_CASE("a later view of the same job begins while the older one still ends") {
  AllreduceCluster cluster({.nodes = 2});
  for (int again = 0; again < 3; ++again) {
    cluster.start();
    cluster.train(1, 2);
    cluster.close(again % 2 == 0);
  }
  CHECK(cluster.memory_comes_back());
  CHECK(cluster.no_failures());
}

TEST_CASE("a trainer that calls ready twice is named") {
  AllreduceCluster cluster({.nodes = 1, .ranks = 2});
  cluster.start();
  cluster.ready(0, 1, 2);  // round 2 before round 1
  const LaneFailure failure = cluster.node(0).failures.await();
  CHECK(failure.kind == LaneFailure::Kind::kTrainer);
  CHECK(failure.local_rank == 1);
}

TEST_CASE("an address that is none of this machine's is refused with what to set") {
  const ClusterOptions options{.nodes = 2};
  Failures failures;
  struct Nobody final : AllreducePort {
    void publish(const PeerAddress&) override {}
    void checkpointed(const SnapshotDone&) override {}
  } nobody;
  WorkerConfig config;
  for (const char* address : {"192.0.2.1", "no such name"}) {
    config.address = address;
    auto lane = required(AllreduceLane::start(config, failures, nobody, quiet_logger()));
    NodeJobSpec spec;
    spec.view = cluster_view(options);
    auto job = required(NodeJob::create(std::move(spec), 1, std::make_shared<MemoryBudget>(64u << 20)));
    const std::size_t before = failures.all().size();
    lane->open(job);
    REQUIRE(eventually([&] { return failures.all().size() > before; }));
    const LaneFailure failure = failures.all().back();
    CHECK(failure.kind == LaneFailure::Kind::kRefused);
    CHECK(contains(failure.error.message, address));
    CHECK(contains(failure.error.message, "[worker] address"));
  }
}

}  // namespace tributary::allreduce_lane_test
