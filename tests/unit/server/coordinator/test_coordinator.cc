// CoordinatorCore: peers, rendezvous, and how a view opens. Running views are in test_coordinator_life.cc.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <set>

#include "tests/unit/expect.h"
#include "tests/unit/required.h"
#include "tests/unit/server/coordinator/coordinator_fixture.h"

namespace tributary::coordinator_test {

using namespace testing;

TEST_CASE("hellos are answered with the coordinator's incarnation, and peers are listed") {
  FullCluster cluster({.workers = 1});
  for (const PeerId peer : {server_peer(0), server_peer(1), worker_peer(0)}) {
    const auto reply = required(cluster.only<HelloReply>(peer));
    CHECK(reply.coordinator_incarnation == 7);
  }
  CHECK(cluster.core.peers().size() == 3);
  CHECK(cluster.core.idle());
}

// Watchers ask often, and each request occupies the coordinator's thread.
template <class Record>
constexpr bool grows_with_the_model = requires(Record record) {
  record.tensors;
}
|| requires(Record record) {
  record.owners;
}
|| requires(Record record) {
  record.rank_states;
}
|| requires(Record record) {
  record.job_json;
};

TEST_CASE("a status has nothing that grows with the model or with what ranks keep") {
  static_assert(grows_with_the_model<JobRecord>);
  static_assert(!grows_with_the_model<decltype(CoordinatorCore::JobStatus::record)>);
  TrainingCluster cluster(2);
  CHECK(cluster.job().chunks == cluster.record().owners.size());
  CHECK(cluster.job().record.job == cluster.record().job);
}

TEST_CASE("a server of a cluster of another size is refused in words") {
  Cluster cluster(2);
  ServerHello hello = cluster.hello_of(1);
  SUBCASE("another number of servers") {
    hello.servers = 3;
    cluster.say(server_peer(1), hello);
    check_error(cluster, server_peer(1), ErrorCode::kTopology, {"server 1", "3 servers", "coordinator for 2", "index"});
  }
  SUBCASE("an index beyond it") {
    hello.shard = ShardIndex(2);
    cluster.say(server_peer(1), hello);
    check_error(cluster, server_peer(1), ErrorCode::kTopology, {"server 2"});
  }
  SUBCASE("no lanes") {
    hello.lane_endpoints.clear();
    cluster.say(server_peer(1), hello);
    check_error(cluster, server_peer(1), ErrorCode::kInvalidArgument, {"names no lane"});
  }
  SUBCASE("a bandwidth that is no weight") {
    for (const double bandwidth : {0.0, -1.0, 1e-300, 1e300, std::numeric_limits<double>::infinity(), std::nan("")}) {
      cluster.sent.clear();
      hello.bandwidth = bandwidth;
      cluster.say(server_peer(1), hello);
      check_error(cluster, server_peer(1), ErrorCode::kInvalidArgument, {"server 1", "bandwidth"});
    }
  }
  CHECK(cluster.count<HelloReply>() == 0);
  CHECK(cluster.core.peers().empty());
}

TEST_CASE("messages that only the coordinator sends are refused, errors are never answered") {
  FullCluster cluster({.workers = 0, .servers = 1});
  for (const ControlMessage& message :
       {ControlMessage(HelloReply{}), ControlMessage(HeartbeatReply{}), ControlMessage(OpenJob{}),
        ControlMessage(JobWelcome{}), ControlMessage(SnapshotAt{}), ControlMessage(SnapshotCommit{}),
        ControlMessage(StopRequest{}), ControlMessage(StopJob{}), ControlMessage(DrainDone{})}) {
    cluster.sent.clear();
    cluster.say(server_peer(0), message);
    check_error(cluster, server_peer(0), ErrorCode::kMalformed, {"only the coordinator sends"});
  }
  cluster.sent.clear();
  cluster.say(server_peer(0), ControlError{ErrorCode::kInternal, "?", {}});
  CHECK(cluster.sent.empty());
}

TEST_CASE("what cannot be decoded is answered to its author and not logged again") {
  Cluster cluster(1);
  cluster.core.on_bad_message(PeerId(5), Error{ErrorCode::kMalformed, "no message of ours"});
  check_error(cluster, PeerId(5), ErrorCode::kMalformed, {"no message of ours"});
  CHECK(cluster.logged.empty());
}

TEST_CASE("a job opens when all nodes and all servers are there, and runs when all shards are ready") {
  Cluster cluster(2);
  cluster.worker(0);
  cluster.worker(1);
  cluster.join(1, {.node = 1, .nodes = 2});
  CHECK(cluster.phase() == "gathering");
  CHECK(cluster.job().waiting_for == "node 0, server 0, server 1");
  cluster.join(0, {.node = 0, .nodes = 2});
  cluster.server(1);
  CHECK(cluster.job().waiting_for == "server 0");
  CHECK(cluster.count<OpenJob>() == 0);
  cluster.server(0);
  CHECK(cluster.phase() == "opening");
  for (std::uint16_t i = 0; i < 2; ++i) {
    const auto open = required(cluster.only<OpenJob>(server_peer(i)));
    CHECK(open.nodes == 2);
    CHECK_FALSE(open.resume);
    CHECK(open.view == ViewId(1));
    CHECK(open.job.value != 0);
    const auto layout = required(Layout::with_owners(open.tensors, open.chunk_elements, open.owners));
    for (std::uint16_t lane = 0; lane < 2; ++lane)
      CHECK_FALSE(layout.chunks_owned_by(ShardIndex(i), LaneIndex(lane)).empty());
  }
  CHECK(cluster.registry.begin()->second.view == ViewId(1));  // durable before anybody heard of it
  cluster.ready(0);
  CHECK(cluster.count<JobWelcome>() == 0);
  cluster.ready(0);
  CHECK(cluster.count<JobWelcome>() == 0);
  cluster.ready(1);
  CHECK(cluster.phase() == "running");
  for (std::uint32_t w = 0; w < 2; ++w) {
    const auto welcome = required(cluster.only<JobWelcome>(worker_peer(w)));
    CHECK(welcome.name == "mnist");
    CHECK(welcome.job == cluster.open().job);
    CHECK(welcome.view == ViewId(1));
    CHECK(welcome.owners == cluster.open().owners);
    REQUIRE(welcome.endpoints.size() == 2);
    CHECK(welcome.endpoints[1][0] == "tcp://s1:1");
    CHECK(welcome.locals == std::vector<std::vector<std::string>>{{"local-0-1", ""}, {"local-1-1", ""}});
  }
  CHECK_FALSE(cluster.core.idle());
}

TEST_CASE("a model smaller than the cluster leaves servers without chunks, and they do not hold it up") {
  TrainingCluster cluster({.workers = 1, .servers = 3}, {.tensors = {{"w", {10}}}});
  CHECK(cluster.open().owners.size() == 1);
  cluster.leave(0, LeaveKind::kStopped, 4);
  CHECK(cluster.phase() == "stopping");
  cluster.done(1, 4, false);  // it has nothing to keep, whatever it says
  CHECK(cluster.phase() == "stopping");
  cluster.done(0, 4);
  CHECK(cluster.phase() == "idle");
  CHECK(cluster.job().record.committed == Round(4));
}

TEST_CASE("a model that is too large for the smallest chunks opens with those that the job asks for") {
  FullCluster cluster({.workers = 1, .servers = 1});
  JoinOptions options{.tensors = {{"w", {3ull << 30}}}};
  options.config.chunk_bytes = 1u << 20;
  cluster.join(0, options);
  CHECK(cluster.count<ControlError>() == 0);
  REQUIRE(cluster.last_open);
  CHECK(cluster.open().owners.size() == (3u << 30) / (1u << 18));
}

TEST_CASE("numbers that contradict each other are refused with the numbers") {
  FullCluster cluster({.workers = 1, .servers = 1});
  SUBCASE("world_size") {
    cluster.join(0, {.node = 1, .nodes = 3, .ranks = 2, .world_size = 5});
    check_error(cluster, worker_peer(0), ErrorCode::kTopology,
                {"node 1 of 3", "2 ranks", "world_size 5", "nproc-per-node"});
  }
  SUBCASE("node rank") {
    cluster.join(0, {.node = 3, .nodes = 3});
    check_error(cluster, worker_peer(0), ErrorCode::kTopology, {"node 3 of 3"});
  }
  SUBCASE("no nodes") {
    cluster.join(0, {.nodes = 0});
    check_error(cluster, worker_peer(0), ErrorCode::kTopology, {"node 0 of 0"});
  }
  SUBCASE("no ranks") {
    cluster.join(0, {.ranks = 0});
    check_error(cluster, worker_peer(0), ErrorCode::kTopology, {"0 ranks"});
  }
  SUBCASE("more nodes than a sum can have") {
    cluster.join(0, {.nodes = 4'000'000'000u, .ranks = 1});
    check_error(cluster, worker_peer(0), ErrorCode::kLimit, {"4000000000", "1024"});
  }
  SUBCASE("no configuration") {
    JoinJob join = cluster.join_of({});
    join.job_json = "{\"job\":{\"nmae\":\"x\"}}";
    cluster.say(worker_peer(0), join);
    check_error(cluster, worker_peer(0), ErrorCode::kConfig, {"nmae"});
  }
  CHECK(cluster.core.jobs().empty());
}

TEST_CASE("a worker that has not said hello is told to come again") {
  Cluster cluster(1);
  cluster.server(0);
  cluster.join(0, {});
  check_error(cluster, worker_peer(0), ErrorCode::kUnavailable, {"hello"});
  CHECK(cluster.core.jobs().empty());
}

TEST_CASE("a node that was refused is no longer told of when it has joined") {
  FullCluster cluster({.workers = 3, .servers = 1});
  cluster.join(0, {.node = 0, .nodes = 3});
  JoinOptions other{.node = 1, .nodes = 3};
  other.config.optimizer.lr = 0.5;
  cluster.join(1, other);
  CHECK(cluster.job().waiting_for.starts_with("node 1, node 2; node 1 was refused: "));
  cluster.join(1, {.node = 1, .nodes = 3});
  CHECK(cluster.job().waiting_for == "node 2");
}

TEST_CASE("a worker takes part in a bounded number of jobs") {
  FullCluster cluster({.workers = 2, .servers = 1});
  const auto joins = [&](std::uint32_t w, std::int64_t job) {
    cluster.join(w, {.job = "job-" + std::to_string(job), .node = 0, .nodes = 2});
  };
  for (std::int64_t i = 0; i < CoordinatorCore::kMaxJobsOfWorker; ++i) joins(0, i);
  CHECK(cluster.core.jobs().size() == CoordinatorCore::kMaxJobsOfWorker);
  joins(0, 1000);
  check_error(cluster, worker_peer(0), ErrorCode::kLimit, {"worker host0", "64 jobs"});
  CHECK(cluster.core.jobs().size() == CoordinatorCore::kMaxJobsOfWorker);
  joins(1, 1000);
  CHECK(cluster.core.jobs().size() == CoordinatorCore::kMaxJobsOfWorker + 1);
}

TEST_CASE("nodes of one job must agree, and the odd one is told how") {
  FullCluster cluster({.workers = 2, .servers = 1});
  cluster.join(0, {.node = 0, .nodes = 2});
  const PeerId odd = worker_peer(1);
  JoinOptions other{.node = 1, .nodes = 2};
  SUBCASE("other tensors") {
    other.tensors = {{"w", {100'001}}};
    cluster.join(1, other);
    check_error(cluster, odd, ErrorCode::kLayoutMismatch,
                {"'mnist'", "node 1", "tensor 0", "100000", "100001", "same model"});
  }
  SUBCASE("another optimizer") {
    other.config.optimizer.lr = 0.5;
    cluster.join(1, other);
    check_error(cluster, odd, ErrorCode::kConfigMismatch, {"'mnist'", "optimizer.lr", "0.01", "0.5", "same job file"});
    const std::string waits = cluster.job().waiting_for;
    CHECK(waits.starts_with("node 1; node 1 was refused: job 'mnist' was opened with another configuration"));
    CHECK(contains(waits, "optimizer.lr"));
  }
  SUBCASE("a training of another length") {
    other.config.train.epochs = 9;
    cluster.join(1, other);
    check_error(cluster, odd, ErrorCode::kConfigMismatch, {"train.epochs = 5", "train.epochs = 9", "node 1"});
  }
  SUBCASE("other numbers of nodes") {
    other.nodes = 3;
    cluster.join(1, other);
    check_error(cluster, odd, ErrorCode::kTopology, {"node 1", "3 nodes", "2 nodes"});
  }
  SUBCASE("the same node rank") {
    other.node = 0;
    cluster.join(1, other);
    check_error(cluster, odd, ErrorCode::kTopology, {"node rank 0", "taken by worker host0", "--node-rank"});
  }
  CHECK(cluster.only<ControlError>(odd).value_or(ControlError{{}, {}, "mnist"}).job == "mnist");
  CHECK(cluster.phase() == "gathering");
  // Nobody else is disturbed: the right one completes it.
  cluster.join(1, {.node = 1, .nodes = 2});
  CHECK(cluster.phase() == "opening");
}

TEST_CASE(
    "snapshots and evaluation may differ between nodes, and the same node may join anew with another configuration") {
  FullCluster cluster({.workers = 2, .servers = 1});
  JoinOptions options{.nodes = 2};
  options.config.optimizer.lr = 0.5;
  cluster.join(0, options);  // its trainers are started again with another file
  cluster.join(0, {.nodes = 2});
  JoinOptions other{.node = 1, .nodes = 2};
  other.config.snapshot.every_rounds = 10;
  other.config.train.eval_every_epochs = 3;
  cluster.join(1, other);
  CHECK(cluster.count<ControlError>() == 0);
  CHECK(cluster.phase() == "opening");
}

TEST_CASE("a node that gives up while the job gathers makes room") {
  FullCluster cluster({.workers = 2, .servers = 1});
  cluster.join(0, {.node = 0, .nodes = 2});
  const LeaveJob leave{{}, {}, NodeRank(0), LeaveKind::kFailed, {}, "trainer died", "mnist"};
  cluster.say(worker_peer(1), leave);  // not its own
  CHECK(cluster.phase() == "gathering");
  cluster.say(worker_peer(0), leave);
  CHECK(cluster.phase() == "idle");
  cluster.join(1, {.node = 0, .nodes = 1});
  CHECK(cluster.phase() == "opening");
}

TEST_CASE("a worker with two jobs leaves the one that it names") {
  FullCluster cluster({.workers = 1, .servers = 1});
  cluster.join(0, {.job = "a", .nodes = 2});
  cluster.join(0, {.job = "b", .nodes = 2});
  cluster.say(worker_peer(0), LeaveJob{{}, {}, NodeRank(0), LeaveKind::kFailed, {}, {}, "a"});
  const auto jobs = cluster.core.jobs();
  REQUIRE(jobs.size() == 2);
  CHECK(jobs[0].phase == "idle");
  CHECK(jobs[1].phase == "gathering");
}

TEST_CASE("two jobs have different ids, in whatever order they open") {
  FullCluster cluster({.workers = 3, .servers = 1});
  cluster.join(0, {.job = "a", .node = 0, .nodes = 2});
  cluster.join(2, {.job = "b"});
  const JobId b = cluster.open().job;
  cluster.join(1, {.job = "a", .node = 1, .nodes = 2});
  const JobId a = cluster.open().job;
  cluster.join(1, {.job = "c"});
  CHECK(std::set<std::uint64_t>{a.value, b.value, cluster.open().job.value}.size() == 3);
}

TEST_CASE("a node that leaves while the shards load takes the job back to gathering, and the others wait on") {
  FullCluster cluster({.workers = 2, .servers = 1});
  cluster.join(0, {.node = 0, .nodes = 2});
  cluster.join(1, {.node = 1, .nodes = 2});
  const ViewId first = cluster.open().view;
  cluster.sent.clear();
  SUBCASE("its trainers died") {
    cluster.say(worker_peer(1), LeaveJob{{}, {}, NodeRank(1), LeaveKind::kFailed, {}, "trainer died", "mnist"});
  }
  SUBCASE("its worker is being stopped") {
    cluster.say(worker_peer(1), DrainRequest{worker_incarnation(1)});
    CHECK(cluster.only<DrainDone>(worker_peer(1)));
  }
  SUBCASE("its worker is lost") {
    cluster.pass(kTimeoutMs + 2000, 1);
  }
  CHECK(cluster.phase() == "gathering");
  CHECK(cluster.job().waiting_for == "node 1");
  CHECK(required(cluster.only<StopJob>(server_peer(0))).kind == StopKind::kRestart);
  CHECK(cluster.to<StopJob>(worker_peer(0)).empty());                                // it never heard of that view
  cluster.say(server_peer(0), ShardReady{cluster.open().job, first, true, {}, {}});  // late
  CHECK(cluster.count<JobWelcome>() == 0);
  cluster.worker(1);
  cluster.join(1, {.node = 1, .nodes = 2});
  CHECK(cluster.open().view == first.next());
  cluster.all_ready();
  CHECK(cluster.only<JobWelcome>(worker_peer(0)));
}

TEST_CASE("nodes that wait for shards to load hear how far these are") {
  FullCluster cluster({.workers = 1});
  cluster.join(0, {.node = 0, .nodes = 1});
  REQUIRE(cluster.phase() == "opening");
  const auto told = [&](std::uint64_t loaded) {
    cluster.now += CoordinatedJob::kTellWaitsMs;
    Heartbeat beat{server_incarnation(1), {}};
    beat.progress = {{.job = cluster.open().job, .view = cluster.open().view, .loaded = loaded}};
    cluster.say(server_peer(1), beat);
    cluster.beat_server(0);
    cluster.beat_worker(0);
    cluster.sent.clear();
    cluster.tick(cluster.now);
    return cluster.only<JobWaits>(worker_peer(0)).value_or(JobWaits{});
  };
  const JobWaits first = told(1'500'000'000), second = told(2'000'000'000), third = told(2'000'000'000);
  CHECK(contains(first.missing, "server 1, which loads its part (1.5"));
  CHECK(first.progress > 0);
  CHECK(second.progress > first.progress);
  CHECK(third.progress == second.progress);
}

TEST_CASE("a server that is lost while the shards load is waited for") {
  FullCluster cluster({.workers = 1});
  cluster.join(0, {});
  cluster.ready(0);
  cluster.pass(kTimeoutMs + 2000, 1, {server_peer(1)});
  CHECK(cluster.phase() == "gathering");
  cluster.sent.clear();
  cluster.beat_server(1);
  CHECK(cluster.only<HeartbeatReply>(server_peer(1))->coordinator_incarnation == 0);
  cluster.server(1);
  CHECK(cluster.phase() == "opening");
  CHECK(cluster.open().view == ViewId(2));
}

TEST_CASE("a shard that cannot open a job fails it with its own words") {
  FullCluster cluster({.workers = 1});
  cluster.join(0, {});
  cluster.say(server_peer(1),
              ShardReady{cluster.open().job, cluster.open().view, false, ErrorCode::kStore, "checksum of chunk 3"});
  check_error(cluster, worker_peer(0), ErrorCode::kStore, {"checksum of chunk 3"});
  CHECK(cluster.phase() == "idle");
  CHECK(cluster.to<StopJob>(worker_peer(0)).empty());
  CHECK(cluster.only<StopJob>(server_peer(0)));
  cluster.join(0, {});
  CHECK(cluster.phase() == "opening");
}

TEST_CASE("a job that cannot be recorded does not open") {
  FullCluster cluster({.workers = 1, .servers = 1});
  cluster.save_fails = true;
  cluster.join(0, {});
  // Workers try that again by themselves.
  check_error(cluster, worker_peer(0), ErrorCode::kUnavailable, {"cannot record it", "the disk is full"});
  CHECK(cluster.count<OpenJob>() == 0);
  CHECK(cluster.phase() == "idle");
  cluster.save_fails = false;
  cluster.join(0, {});
  CHECK(cluster.phase() == "opening");
}

TEST_CASE("a declaration that is no layout fails everybody with the reason") {
  FullCluster cluster({.workers = 1, .servers = 1});
  cluster.join(0, {.tensors = {{"w", {0}}}});
  CHECK(required(cluster.only<ControlError>(worker_peer(0))).code == ErrorCode::kInvalidArgument);
  CHECK(cluster.phase() == "idle");
}

}  // namespace tributary::coordinator_test
