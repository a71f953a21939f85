// CoordinatorCore: jobs of mode "allreduce", which have no part on servers, in clusters with and without them.
#include <doctest/doctest.h>

#include "common/wire/codec.h"
#include "server/coordinator/job/view_addresses.h"
#include "tests/unit/expect.h"
#include "tests/unit/required.h"
#include "tests/unit/server/coordinator/coordinator_fixture.h"

namespace tributary::coordinator_allreduce_test {

using namespace testing;

namespace {

JoinOptions ring(std::uint32_t node, std::uint32_t nodes, std::uint64_t checkpoint = 0) {
  JoinOptions options{.node = node, .nodes = nodes, .checkpoint = checkpoint};
  options.config.mode = Mode::kAllreduce;
  options.config.snapshot.every_s = 1;
  return options;
}

void join_all(Cluster& cluster, std::uint32_t nodes, std::uint64_t checkpoint = 0) {
  for (std::uint32_t w = 0; w < nodes; ++w) cluster.join(w, ring(w, nodes, w == 0 ? checkpoint : 0));
}

LeaveJob leaving(const JobWelcome& welcome, std::uint32_t node, LeaveKind kind, std::uint64_t round) {
  return {welcome.job, welcome.view, NodeRank(node), kind, Round(round), {}, {}};
}

SnapshotDone kept(const JobWelcome& welcome, std::uint64_t round) {
  return {welcome.job, welcome.view, Round(round), true, 0, {}};
}

// Node 0, the only one, is stopped after `round` and has written it.
void stop_and_keep(Cluster& cluster, std::uint64_t round) {
  const JobWelcome welcome = welcome_of(cluster, 0);
  cluster.say(worker_peer(0), leaving(welcome, 0, LeaveKind::kStopped, round));
  cluster.say(worker_peer(0), kept(welcome, round));
  cluster.sent.clear();
}

PeerAddress address(const JobWelcome& welcome, std::uint32_t node, const std::string& key = "k") {
  return {welcome.job, welcome.view, NodeRank(node), key, {std::byte{1}, std::byte{2}}};
}

TEST_CASE("without servers an all-reduce job runs as soon as its nodes are there") {
  FullCluster cluster({.workers = 2, .servers = 0});
  cluster.join(1, ring(1, 2));
  CHECK(cluster.phase() == "gathering");
  CHECK(cluster.job().waiting_for == "node 0");
  cluster.join(0, ring(0, 2));
  CHECK(cluster.phase() == "running");
  for (std::uint32_t w = 0; w < 2; ++w) {
    const JobWelcome welcome = welcome_of(cluster, w);
    CHECK(welcome.name == "mnist");
    CHECK(welcome.endpoints.empty());
    CHECK_FALSE(welcome.resume);
    CHECK(welcome.resume_round == Round());
    REQUIRE_FALSE(welcome.owners.empty());
    for (const ChunkOwner& owner : welcome.owners) {
      CHECK(owner.shard == ShardIndex(0));
      CHECK(owner.lane == LaneIndex(0));
    }
    CHECK(Layout::with_owners({{"w", {100'000}}}, welcome.chunk_elements, welcome.owners));
  }
}

TEST_CASE("with servers an all-reduce job neither waits for them nor tells them anything") {
  Cluster cluster(2);
  cluster.worker(0);
  join_all(cluster, 1);
  CHECK(cluster.phase() == "running");
  cluster.server(0);
  cluster.server(1);
  cluster.sent.clear();
  cluster.pass(5000, 1);
  // It survives the loss of servers, too.
  cluster.pass(kTimeoutMs + 2000, 1, {server_peer(0), server_peer(1)});
  CHECK(cluster.phase() == "running");
  CHECK(cluster.count<SnapshotAt>() == 0);
  CHECK(cluster.count<StopJob>() == 0);
  CHECK(cluster.count<OpenJob>() == 0);
}

TEST_CASE("a server that is stopped does not stop all-reduce jobs") {
  FullCluster cluster({.workers = 1});
  join_all(cluster, 1);
  cluster.say(server_peer(1), DrainRequest{server_incarnation(1)});
  CHECK(cluster.only<DrainDone>(server_peer(1)));
  CHECK(cluster.count<StopRequest>() == 0);
}

TEST_CASE("without servers a job of mode sync is refused with what would help") {
  FullCluster cluster({.workers = 1, .servers = 0});
  cluster.join(0, {});
  const auto error = required(cluster.only<ControlError>(worker_peer(0)));
  CHECK(error.code == ErrorCode::kTopology);
  CHECK(error.job == "mnist");
  for (const char* word : {"'mnist'", "\"sync\"", "no servers", "job.mode = \"allreduce\""}) {
    CAPTURE(word);
    CHECK(contains(error.message, word));
  }
  CHECK(cluster.core.jobs().empty());
}

TEST_CASE("a server that believes in a cluster without servers is refused") {
  Cluster cluster(0);
  cluster.say(server_peer(0), Cluster(2).hello_of(0));
  const auto error = required(cluster.only<ControlError>(server_peer(0)));
  CHECK(contains(error.message, "2 servers, the coordinator for 0"));
}

TEST_CASE("an all-reduce job goes on from the checkpoint of node 0") {
  FullCluster cluster({.workers = 2, .servers = 0});
  cluster.join(0, ring(0, 2, 40));
  cluster.join(1, ring(1, 2, 30));  // of a time when it was node 0
  for (std::uint32_t w = 0; w < 2; ++w) {
    CHECK(welcome_of(cluster, w).resume);
    CHECK(welcome_of(cluster, w).resume_round == Round(40));
  }
  CHECK(cluster.job().record.committed == Round(40));
}

TEST_CASE("an all-reduce job goes on from the newest checkpoint that any node has, which that node passes on") {
  for (const std::uint64_t node_0 : {0, 40, 90}) {
    CAPTURE(node_0);
    FullCluster cluster({.workers = 3, .servers = 0});
    cluster.join(0, ring(0, 3, node_0));
    cluster.join(1, ring(1, 3, 90));
    cluster.join(2, ring(2, 3, 20));
    for (std::uint32_t w = 0; w < 3; ++w) {
      const JobWelcome welcome = welcome_of(cluster, w);
      CHECK(welcome.resume);
      CHECK(welcome.resume_round == Round(90));
      CHECK(welcome.values_from == NodeRank(node_0 == 90 ? 0 : 1));
    }
  }
}

TEST_CASE("a node whose checkpoints are damaged keeps no all-reduce job from the checkpoint of another node") {
  for (const std::uint64_t other : {0, 30}) {
    CAPTURE(other);
    FullCluster cluster({.workers = 2, .servers = 0});
    cluster.join(0, ring(0, 2, other));
    JoinOptions damaged = ring(1, 2);
    damaged.checkpoint_flaw = "checkpoint '/store/mnist-round-40': a checksum is wrong";
    cluster.join(1, damaged);
    for (std::uint32_t w = 0; w < 2; ++w) {
      if (other != 0) {
        CHECK(welcome_of(cluster, w).resume_round == Round(other));
      } else {
        CHECK_FALSE(cluster.only<JobWelcome>(worker_peer(w)));
        const auto refused = required(cluster.only<ControlError>(worker_peer(w)));
        CHECK(contains(refused.message, "node 1 (worker host1)"));
        CHECK(contains(refused.message, "'/store/mnist-round-40': a checksum is wrong"));
      }
    }
  }
}

TEST_CASE("an all-reduce job that was at some round does not begin anew when no node has a checkpoint") {
  for (const bool changed : {false, true}) {
    CAPTURE(changed);
    FullCluster cluster({.workers = 1});
    join_all(cluster, 1);
    stop_and_keep(cluster, 4000);
    JoinOptions again = ring(0, 1);
    if (changed) again.config.train.seed = 5;
    cluster.join(0, again);
    CHECK_FALSE(cluster.only<JobWelcome>(worker_peer(0)));
    const auto error = required(cluster.only<ControlError>(worker_peer(0)));
    CHECK(contains(error.message, changed ? "train.seed" : "was at round 4000"));
    if (!changed) CHECK(contains(error.message, "tributary job remove mnist"));
    // Asked to by name.
    CHECK(cluster.remove_job("mnist"));
    cluster.sent.clear();
    cluster.join(0, again);
    CHECK_FALSE(welcome_of(cluster, 0).resume);
  }
}

TEST_CASE("an all-reduce job whose last checkpoint is gone goes on from the one before") {
  FullCluster cluster({.workers = 1, .servers = 0});
  join_all(cluster, 1);
  stop_and_keep(cluster, 70);
  join_all(cluster, 1, 40);
  CHECK(welcome_of(cluster, 0).resume_round == Round(40));
}

TEST_CASE("nodes are told what they need to connect to each other when all have said it, and nobody else is") {
  FullCluster cluster({.workers = 4, .servers = 0});
  join_all(cluster, 3);
  const JobWelcome welcome = welcome_of(cluster, 0);
  cluster.sent.clear();
  cluster.say(worker_peer(1), address(welcome, 1, "ring/1"));
  cluster.say(worker_peer(1), address(welcome, 1, "ring/1"));  // again: it is one node all the same
  cluster.say(worker_peer(0), address(welcome, 0));
  CHECK(cluster.sent.empty());
  cluster.say(worker_peer(2), address(welcome, 2));
  for (std::uint32_t w = 0; w < 3; ++w) {
    const auto got = required(cluster.only<PeerAddresses>(worker_peer(w)));
    REQUIRE(got.addresses.size() == 2);
    for (const PeerAddress& one : got.addresses) {
      CHECK(one.node != NodeRank(w));
      CHECK(one.key == (one.node == NodeRank(1) ? "ring/1" : "k"));
      CHECK(one.value == std::vector{std::byte{1}, std::byte{2}});
    }
  }
  CHECK(cluster.count<PeerAddresses>() == 3);

  cluster.sent.clear();
  JobWelcome stale = welcome;
  stale.view = ViewId(welcome.view.value + 1);
  cluster.say(worker_peer(1), address(stale, 1));
  CHECK(cluster.sent.empty());
  // Worker 3 is no member, and worker 2 is not node 1.
  for (const std::uint32_t w : {3u, 2u}) {
    cluster.sent.clear();
    cluster.say(worker_peer(w), address(welcome, 1, "another"));
    CHECK(cluster.only<ControlError>(worker_peer(w)));
    cluster.pass(200, 3);
    CHECK(cluster.count<PeerAddresses>() == 0);
  }
}

TEST_CASE("1000 nodes cost a few messages each, with the values of those beside a node and the keys of all") {
  constexpr std::uint32_t kNodes = 1000;
  FullCluster cluster({.workers = kNodes, .servers = 0});
  join_all(cluster, kNodes);
  const JobWelcome welcome = welcome_of(cluster, 0);
  for (const bool for_all : {true, false}) {
    CAPTURE(for_all);
    cluster.sent.clear();
    for (std::uint32_t w = 0; w < kNodes; ++w) {
      PeerAddress said = address(welcome, w, for_all ? "offer" : "ring");
      said.for_all = for_all;
      cluster.say(worker_peer(w), said);
    }
    CHECK(cluster.count<PeerAddresses>() == kNodes);
    for (const std::uint32_t w : {0u, 1u, 500u, kNodes - 1}) {
      const auto got = required(cluster.only<PeerAddresses>(worker_peer(w)));
      CHECK(got.addresses.size() == kNodes - 1);
      std::vector<std::uint32_t> with_values;
      for (const PeerAddress& one : got.addresses) {
        if (!one.value.empty()) with_values.push_back(one.node.value);
      }
      if (for_all) {
        CHECK(with_values.size() == kNodes - 1);
      } else {
        std::vector<std::uint32_t> beside = {(w + kNodes - 1) % kNodes, (w + 1) % kNodes};
        std::ranges::sort(beside);
        CHECK(with_values == beside);
      }
    }
  }
}

TEST_CASE("what some nodes say later than others is told with the next tick, as a node's word ends another's wait") {
  FullCluster cluster({.workers = 3, .servers = 0});
  join_all(cluster, 3);
  const JobWelcome welcome = welcome_of(cluster, 0);
  cluster.sent.clear();
  cluster.say(worker_peer(2), address(welcome, 2));
  CHECK(cluster.count<PeerAddresses>() == 0);
  cluster.pass(200, 3);
  for (const std::uint32_t w : {0u, 1u}) {
    const auto got = required(cluster.only<PeerAddresses>(worker_peer(w)));
    REQUIRE(got.addresses.size() == 1);
    CHECK(got.addresses[0].node == NodeRank(2));
  }
  CHECK(cluster.count<PeerAddresses>() == 2);
  // The addresses are sent again only to a worker that may have missed them.
  cluster.sent.clear();
  cluster.say(worker_peer(0), address(welcome, 0));
  cluster.say(worker_peer(1), address(welcome, 1));
  cluster.pass(200, 3);
  CHECK(cluster.count<PeerAddresses>() == 3);
  CHECK(cluster.only<PeerAddresses>(worker_peer(0))->addresses.size() == 1);
  CHECK(cluster.only<PeerAddresses>(worker_peer(2))->addresses.size() == 2);
  cluster.sent.clear();
  cluster.pass(1000, 3);
  CHECK(cluster.count<PeerAddresses>() == 0);
  cluster.say(PeerId(999), Heartbeat{worker_incarnation(0), {}});
  const auto again = required(cluster.only<PeerAddresses>(PeerId(999)));
  CHECK(again.addresses.size() == 2);
}

TEST_CASE("a node cannot flood the others with addresses") {
  FullCluster cluster({.workers = 2, .servers = 0});
  join_all(cluster, 2);
  const JobWelcome welcome = welcome_of(cluster, 0);
  cluster.sent.clear();
  const auto say = [&](const JobWelcome& view, std::size_t kinds) {
    for (std::size_t i = 0; i < kinds; ++i) {
      PeerAddress large = address(view, 1, "kind " + std::to_string(i));
      large.value.resize(kMaxPeerAddressBytes);
      cluster.say(worker_peer(1), large);
    }
    cluster.pass(200, 2);
  };
  say(welcome, ViewAddresses::kMaxOfNode + 10);
  const auto told = [&] {
    std::size_t count = 0;
    for (const PeerAddresses& list : cluster.to<PeerAddresses>(worker_peer(0))) count += list.addresses.size();
    return count;
  };
  CHECK(told() == ViewAddresses::kMaxOfNode);
  CHECK(cluster.to<ControlError>(worker_peer(1)).at(0).code == ErrorCode::kLimit);
  // The next view starts with none.
  cluster.say(worker_peer(0), leaving(welcome, 0, LeaveKind::kFailed, 0));
  cluster.sent.clear();
  join_all(cluster, 2);
  say(welcome_of(cluster, 1), 1);
  CHECK(told() == 1);
}

TEST_CASE("a list of addresses that is too long for a message goes in several") {
  constexpr std::uint32_t kNodes = 100;
  ViewAddresses addresses(kNodes);
  for (std::uint32_t node = 0; node < kNodes; ++node) {
    PeerAddress large{JobId(1), ViewId(1), NodeRank(node), "offer", {}, true};
    large.value.resize(kMaxPeerAddressBytes);
    REQUIRE(addresses.add(large));
  }
  REQUIRE(addresses.complete());
  std::size_t count = 0;
  addresses.tell_news(7, [&](const PeerAddresses& list) {
    CHECK(encode_control(list).size() < kMaxControlBytes / 2);
    count += list.addresses.size();
  });
  CHECK(count == kNodes - 1);
}

TEST_CASE("addresses of a job on servers are not passed on") {
  TrainingCluster cluster(2, 1);
  cluster.say(worker_peer(1), PeerAddress{cluster.open().job, cluster.open().view, NodeRank(1), "k", {}});
  CHECK(cluster.sent.empty());
}

TEST_CASE("an all-reduce job that stops is over when node 0 has written it, and can be joined again") {
  FullCluster cluster({.workers = 2, .servers = 0});
  join_all(cluster, 2);
  const JobWelcome welcome = welcome_of(cluster, 0);
  cluster.sent.clear();
  cluster.say(worker_peer(1), leaving(welcome, 1, LeaveKind::kStopped, 70));
  for (std::uint32_t w = 0; w < 2; ++w) {
    const auto stop = required(cluster.only<StopJob>(worker_peer(w)));
    CHECK(stop.kind == StopKind::kStopped);
    CHECK(stop.round == Round(70));
  }
  CHECK(cluster.phase() == "stopping");
  CHECK(cluster.count<SnapshotDone>() == 0);
  cluster.sent.clear();
  cluster.say(worker_peer(0), kept(welcome, 70));
  for (std::uint32_t w = 0; w < 2; ++w) {
    const auto done = required(cluster.only<SnapshotDone>(worker_peer(w)));
    CHECK(done.ok);
  }
  CHECK(cluster.phase() == "idle");
  CHECK_FALSE(cluster.job().record.finished);
  // Said again, because it was not answered in time.
  cluster.sent.clear();
  cluster.say(worker_peer(0), kept(welcome, 70));
  CHECK(cluster.only<SnapshotDone>(worker_peer(0)));
  // The other node's words come late, and change nothing.
  cluster.sent.clear();
  cluster.say(worker_peer(0), leaving(welcome, 0, LeaveKind::kStopped, 70));
  CHECK(cluster.only<SnapshotDone>(worker_peer(0)));  // what it waits for, should the first one be lost
  CHECK(cluster.sent.size() == 1);
  CHECK(cluster.phase() == "idle");

  join_all(cluster, 2, 70);
  CHECK(welcome_of(cluster, 1).resume_round == Round(70));
  CHECK(welcome_of(cluster, 1).view.value == welcome.view.value + 1);
  CHECK(welcome_of(cluster, 1).job == welcome.job);
}

TEST_CASE("an all-reduce job is finished when all nodes have finished") {
  FullCluster cluster({.workers = 2, .servers = 0});
  join_all(cluster, 2);
  const JobWelcome welcome = welcome_of(cluster, 0);
  cluster.say(worker_peer(0), leaving(welcome, 0, LeaveKind::kFinished, 100));
  CHECK(cluster.phase() == "running");
  bool early = false;
  SUBCASE("and node 0's checkpoint is written when they have") {}
  SUBCASE("and was before") {
    early = true;
  }
  if (early) cluster.say(worker_peer(0), kept(welcome, 100));
  CHECK(cluster.phase() == "running");
  cluster.say(worker_peer(1), leaving(welcome, 1, LeaveKind::kFinished, 100));
  if (!early) {
    CHECK(cluster.phase() == "stopping");
    cluster.pass(30 * kMinute, 2);  // as long as it takes
    CHECK(cluster.phase() == "stopping");
    cluster.say(worker_peer(0), kept(welcome, 100));
  }
  CHECK(cluster.phase() == "idle");
  CHECK(cluster.job().record.finished);
  CHECK(cluster.job().record.committed == Round(100));
  CHECK(cluster.errors.empty());
}

TEST_CASE("a last checkpoint that is not written is told to all nodes, and the job goes on from the one before") {
  FullCluster cluster({.workers = 2, .servers = 0});
  join_all(cluster, 2, 40);
  const JobWelcome welcome = welcome_of(cluster, 0);
  cluster.have_answers = false;
  cluster.say(worker_peer(1), leaving(welcome, 1, LeaveKind::kStopped, 100));
  cluster.sent.clear();
  std::string why;
  SUBCASE("the disk is full") {
    why = "node 0's checkpoint of round 100: disk full";
    cluster.say(worker_peer(0), SnapshotDone{welcome.job, welcome.view, Round(40), false, 0, why});
  }
  SUBCASE("its worker is lost") {
    why = "node 0 is lost";
    cluster.pass(kTimeoutMs + 2000, 2, {worker_peer(0)});
  }
  SUBCASE("its trainers fail in the last moment") {
    why = "node 0 failed: out of memory";
    LeaveJob failed = leaving(welcome, 0, LeaveKind::kFailed, 100);
    failed.message = "out of memory";
    cluster.say(worker_peer(0), failed);
  }
  SUBCASE("there is no store, and snapshots were asked for") {
    why = "set [store] path";
    cluster.say(worker_peer(0), kept(welcome, 0));
  }
  const auto done = required(cluster.only<SnapshotDone>(worker_peer(1)));
  CHECK_FALSE(done.ok);
  CHECK(contains(done.message, why));
  CHECK(cluster.phase() == "idle");
  CHECK(contains(cluster.job().not_saved, why));
  CHECK_FALSE(cluster.job().record.finished);
  CHECK(cluster.job().record.committed == Round(40));
  REQUIRE(cluster.errors.size() == 1);
  CHECK(contains(cluster.errors[0], "is not saved"));
}

TEST_CASE("a node that is lost after it finished, with all that was to be kept, is told of when the others have") {
  FullCluster cluster({.workers = 2, .servers = 0});
  join_all(cluster, 2);
  const JobWelcome welcome = welcome_of(cluster, 0);
  cluster.say(worker_peer(0), leaving(welcome, 0, LeaveKind::kFinished, 100));
  cluster.pass(kTimeoutMs + 2000, 2, {worker_peer(0)});
  CHECK(cluster.phase() == "running");
  cluster.say(worker_peer(1), leaving(welcome, 1, LeaveKind::kFinished, 100));
  CHECK(cluster.phase() == "idle");
  CHECK(contains(cluster.job().not_saved, "node 0 is lost"));
}

TEST_CASE("without a store a job of which nobody asked to keep anything ends well") {
  FullCluster cluster({.workers = 1, .servers = 0});
  JoinOptions options = ring(0, 1);
  options.config.snapshot = {};
  cluster.join(0, options);
  const JobWelcome welcome = welcome_of(cluster, 0);
  cluster.say(worker_peer(0), leaving(welcome, 0, LeaveKind::kFinished, 100));
  cluster.sent.clear();
  cluster.say(worker_peer(0), kept(welcome, 0));
  const auto done = required(cluster.only<SnapshotDone>(worker_peer(0)));
  CHECK(done.ok);
  CHECK(cluster.phase() == "idle");
  CHECK(cluster.job().not_saved.empty());
  // It begins anew when it is started again: there is nothing to go on from, and nothing that is lost.
  cluster.sent.clear();
  cluster.join(0, options);
  CHECK_FALSE(welcome_of(cluster, 0).resume);
}

TEST_CASE("what a worker says of a job that nobody knows is answered, so that it stops saying it") {
  FullCluster cluster({.workers = 1, .servers = 0});
  cluster.sent.clear();
  cluster.say(worker_peer(0), SnapshotDone{JobId(5), ViewId(1), Round(7), true, 0, {}});
  CHECK(cluster.only<StopJob>(worker_peer(0)));
}

TEST_CASE("a lost node ends the view of an all-reduce job; everybody is told who it was") {
  FullCluster cluster({.workers = 2, .servers = 0});
  join_all(cluster, 2);
  cluster.sent.clear();
  cluster.pass(kTimeoutMs + 2000, 2, {worker_peer(1)});
  const auto stop = required(cluster.only<StopJob>(worker_peer(0)));
  CHECK(stop.kind == StopKind::kRestart);
  CHECK(contains(stop.reason, "node 1 is lost"));
  CHECK(contains(stop.reason, "host1"));
  CHECK(cluster.phase() == "idle");
}

TEST_CASE("a worker that is stopped takes its all-reduce jobs to the end of a round first") {
  FullCluster cluster({.workers = 2, .servers = 0});
  join_all(cluster, 2);
  const JobWelcome welcome = welcome_of(cluster, 0);
  cluster.sent.clear();
  cluster.say(worker_peer(1), DrainRequest{worker_incarnation(1)});
  CHECK(cluster.count<StopRequest>() == 2);
  CHECK(cluster.count<DrainDone>() == 0);
  cluster.say(worker_peer(0), leaving(welcome, 0, LeaveKind::kStopped, 9));
  CHECK(cluster.count<DrainDone>() == 0);  // trainers wait to hear whether it is saved
  cluster.say(worker_peer(0), kept(welcome, 9));
  CHECK(cluster.only<DrainDone>(worker_peer(1)));
}

TEST_CASE("workers say how far an all-reduce job is") {
  FullCluster cluster({.workers = 2, .servers = 0});
  join_all(cluster, 2);
  const JobWelcome welcome = welcome_of(cluster, 0);
  for (std::uint32_t w = 0; w < 2; ++w) {
    Heartbeat beat{worker_incarnation(w), {{welcome.job, welcome.view, Version(5 + w), Version(6 + w)}}};
    cluster.say(worker_peer(w), beat);
  }
  CHECK(cluster.job().min_version == Version(5));
  CHECK(cluster.job().max_version == Version(7));
}

TEST_CASE("a changed training under the same name and without a checkpoint begins afresh, in a view of its own") {
  FullCluster cluster({.workers = 1, .servers = 0});
  join_all(cluster, 1);
  const JobWelcome first = welcome_of(cluster, 0);
  cluster.say(worker_peer(0), leaving(first, 0, LeaveKind::kFailed, 3));
  cluster.sent.clear();
  JoinOptions other = ring(0, 1);
  other.config.train.seed = 5;
  cluster.join(0, other);
  CHECK_FALSE(welcome_of(cluster, 0).resume);
  CHECK(welcome_of(cluster, 0).view.value > first.view.value);
  CHECK(job_from_json(cluster.record().job_json)->train.seed == 5);
}

TEST_CASE("two coordinators without a registry never give the same id and view") {
  const auto first_view = [](std::uint64_t incarnation) {
    Cluster cluster(0, {}, incarnation);
    cluster.everybody(1);
    join_all(cluster, 1);
    return welcome_of(cluster, 0);
  };
  CHECK(first_view(7).job != first_view(8).job);
}

}  // namespace
}  // namespace tributary::coordinator_allreduce_test
