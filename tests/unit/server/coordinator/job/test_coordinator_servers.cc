// CoordinatorCore: servers come and go, and a job's chunks go to those that are there (docs/failover.md).
#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include "tests/unit/expect.h"
#include "tests/unit/required.h"
#include "tests/unit/server/coordinator/coordinator_fixture.h"

namespace tributary::coordinator_servers_test {
namespace {

using namespace testing;

constexpr std::uint32_t kRejoinMs = 3000;

JoinOptions going_on() {
  JoinOptions options = with_snapshots(1, 0);
  options.tensors = {{"w", {6'000'000}}};  // all servers have chunks
  options.config.membership.on_server_loss = OnLoss::kContinue;
  options.config.membership.rejoin_ms = kRejoinMs;
  return options;
}

// Three servers on machines of their own, whose snapshots others read, and a worker whose job trains.
struct Three : Cluster {
  explicit Three(JoinOptions with = going_on(), const CoordinatorOptions& as = {3, 7, kTimeoutMs, 7000})
      : Cluster(as, {}), options(std::move(with)) {
    for (std::uint16_t i = 0; i < 3; ++i) meet(i);
    worker(0);
    run(1, options);
  }
  void meet(std::uint16_t index, std::uint64_t incarnation = 0, std::vector<StoredJob> stored = {}) {
    ServerHello hello = hello_of(index);
    if (incarnation != 0) hello.incarnation = incarnation;
    hello.host = "machine-" + std::to_string(index);
    hello.copy_endpoint = "copies-" + std::to_string(index);
    hello.stored = std::move(stored);
    say(server_peer(index), hello);
  }
  // Trains until a snapshot is named; the servers write their parts.
  Round written(const std::set<std::uint16_t>& on = {0, 1, 2}) {
    sent.clear();
    for (int i = 0; i < 20 && count<SnapshotAt>() == 0; ++i) {
      now += 1000;
      version += 50;
      for (const std::uint16_t server : on) beat_server(server, version, version, true);
      beat_worker(0);
      tick(now);
    }
    const auto at = required(only<SnapshotAt>(server_peer(*on.begin())));
    for (const std::uint16_t server : on) done(server, at.round.value);
    return at.round;
  }
  // And have copies of each other's.
  Round snapshot(const std::set<std::uint16_t>& on = {0, 1, 2}) {
    const Round round = written(on);
    copy(on);
    return round;
  }
  void copy(const std::set<std::uint16_t>& on) {
    for (const std::uint16_t server : on) {
      for (const CopySnapshot& order : to<CopySnapshot>(server_peer(server))) {
        say(server_peer(server), SnapshotCopied{order.job, order.round, order.shard, order.view, true});
      }
    }
  }
  // The others are heard meanwhile.
  void wait(std::uint64_t ms, std::uint16_t without) {
    for (std::uint64_t passed = 0; passed < ms; passed += 500) {
      now += 500;
      for (std::uint16_t i = 0; i < 3; ++i) {
        if (i != without) beat_server(i, version, version);
      }
      beat_worker(0);
      tick(now);
    }
  }
  // A process takes this one's place, and ends at once: the server is away.
  void lose(std::uint16_t index) {
    wait(kTimeoutMs + 1000, index);
    CHECK(std::ranges::any_of(
        warnings, [&](const std::string& line) { return line.starts_with("lost server " + std::to_string(index)); }));
  }
  void join_again() {
    options.nodes = 1;
    join(0, options);
  }
  std::set<std::uint16_t> dealt_to() const {
    std::set<std::uint16_t> all;
    for (std::uint16_t i = 0; i < 3; ++i) {
      if (!to<DealChunks>(server_peer(i)).empty()) all.insert(i);
    }
    return all;
  }
  void dealt(std::uint16_t server, const std::string& failure = {}) {
    CheckpointDone done;
    done.operation = to<DealChunks>(server_peer(server)).back().operation;
    done.ok = failure.empty();
    done.message = failure;
    say(server_peer(server), done);
    copy({0, 1, 2});  // when all are done
  }
  std::set<std::uint16_t> owners() const {
    std::set<std::uint16_t> all;
    for (const ChunkOwner& owner : record().owners) all.insert(owner.shard.value);
    return all;
  }
  JoinOptions options;
  std::uint64_t version = 0;
};

}  // namespace

TEST_CASE("the chunks of a job go to the servers that are there when one stays away") {
  Three cluster;
  const Round round = cluster.snapshot();
  const JobId before = cluster.record().job;
  cluster.lose(2);
  CHECK(cluster.phase() == "idle");
  cluster.sent.clear();
  cluster.join_again();
  CHECK(cluster.dealt_to().empty());  // it may come back
  cluster.wait(kRejoinMs, 2);
  REQUIRE(cluster.dealt_to() == std::set<std::uint16_t>{0, 1});
  const DealChunks deal = *cluster.only<DealChunks>(server_peer(1));
  CHECK(deal.before == before);
  CHECK(deal.round == round);
  REQUIRE(deal.parts.size() == 3);
  CHECK(deal.parts[1].from.copy_endpoint == "copies-1");  // its own
  CHECK(deal.parts[2].shard == ShardIndex(2));
  CHECK(deal.parts[2].from.copy_endpoint == "copies-0");  // the copy
  CHECK(std::ranges::none_of(deal.owners, [](const ChunkOwner& owner) { return owner.shard == ShardIndex(2); }));
  // Nobody joins meanwhile, and hears why.
  cluster.sent.clear();
  cluster.join_again();
  check_error(cluster, worker_peer(0), ErrorCode::kUnavailable,
              {"is being dealt to server 0 and server 1 (server 2 is lost)", "attach again in a moment"});
  SUBCASE("it begins there") {
    cluster.say(server_peer(0), CheckpointDone{deal.operation, true});
    CHECK(cluster.record().job == before);  // until all have their chunks
    cluster.say(server_peer(1), CheckpointDone{deal.operation, true});
    CHECK(cluster.record().job == before);  // and each part a copy
    for (const std::uint16_t server : {0, 1}) {
      const auto order = required(cluster.only<CopySnapshot>(server_peer(server)));
      CHECK(order.job == deal.job);
      CHECK_FALSE(order.paced);
    }
    SUBCASE("a server that is lost before that ends it") {
      cluster.lose(1);
      CHECK(cluster.record().job == before);
      CHECK(cluster.only<DropCheckpoint>(server_peer(0))->job == deal.job);
      return;
    }
    cluster.copy({0, 1});
    CHECK(cluster.record().job == deal.job);
    CHECK(cluster.owners() == std::set<std::uint16_t>{0, 1});
    cluster.sent.clear();
    cluster.join_again();
    CHECK(required(cluster.only<OpenJob>(server_peer(1))).resume_round == round);
    CHECK(cluster.to<OpenJob>(server_peer(2)).empty());
    cluster.ready(0);
    cluster.ready(1);
    const auto welcome = required(cluster.only<JobWelcome>(worker_peer(0)));
    CHECK(welcome.resume_round == round);
    CHECK(welcome.endpoints.size() == 3);
    CHECK(welcome.endpoints[2].empty());
    CHECK(cluster.phase() == "running");
  }
  SUBCASE("one of them cannot: the job stays as it was, and it is tried again") {
    cluster.say(server_peer(0), CheckpointDone{deal.operation, true});
    CheckpointDone failed{deal.operation, false, ErrorCode::kStore, "the disk is full"};
    cluster.say(server_peer(1), failed);
    CHECK(cluster.record().job == before);
    for (std::uint16_t i = 0; i < 2; ++i) CHECK(cluster.only<DropCheckpoint>(server_peer(i))->job == deal.job);
    cluster.sent.clear();
    cluster.join_again();
    cluster.wait(JobServers::kAgainMs - 1000, 2);
    CHECK(cluster.dealt_to().empty());
    cluster.wait(1500, 2);
    REQUIRE(cluster.dealt_to() == std::set<std::uint16_t>{0, 1});
    CHECK(cluster.to<DealChunks>(server_peer(0)).back().job != deal.job);
  }
}

TEST_CASE("chunks are dealt out of the last snapshot that has its copies, where a view had begun with a later one") {
  Three cluster;
  const Round copied = cluster.snapshot();
  const Round later = cluster.written();
  CHECK(later > copied);
  cluster.leave(0, LeaveKind::kFailed, later.value);
  cluster.join_again();
  CHECK(cluster.phase() == "opening");
  cluster.lose(2);  // with the part of that one which nobody has a copy of
  cluster.join_again();
  cluster.wait(kRejoinMs, 2);
  REQUIRE(cluster.dealt_to() == std::set<std::uint16_t>{0, 1});
  CHECK(cluster.only<DealChunks>(server_peer(1))->round == copied);
}

TEST_CASE("a job that is to wait for its servers does, and so does one whose coordinator has too few of them") {
  JoinOptions options = going_on();
  CoordinatorOptions as{3, 7, kTimeoutMs, 7000};
  bool two_away = false;
  SUBCASE("on_server_loss = \"wait\"") {
    options.config.membership.on_server_loss = OnLoss::kWait;
  }
  SUBCASE("one of three, where others may have the coordinator") {
    as.term = Term(32);
    two_away = true;
  }
  Three cluster(options, as);
  cluster.snapshot();
  cluster.lose(2);
  if (two_away) {
    for (std::uint64_t passed = 0; passed <= kTimeoutMs; passed += 1000) {
      cluster.now += 1000;
      cluster.beat_server(0, cluster.version, cluster.version);
      cluster.beat_worker(0);
      cluster.tick(cluster.now);
    }
  }
  cluster.sent.clear();
  cluster.join_again();
  cluster.now += 20 * kRejoinMs;
  cluster.beat_worker(0);
  cluster.beat_server(0);
  if (!two_away) cluster.beat_server(1);
  cluster.tick(cluster.now);
  CHECK(cluster.dealt_to().empty());
  CHECK(cluster.phase() == "gathering");
  CHECK(contains(cluster.job().waiting_for, "server 2"));
}

TEST_CASE("a server that comes gets chunks, out of a snapshot that is made for that") {
  Three cluster;
  cluster.snapshot();
  cluster.lose(2);
  cluster.join_again();
  cluster.wait(kRejoinMs, 2);
  for (const std::uint16_t server : {0, 1}) cluster.dealt(server);
  cluster.join_again();
  cluster.ready(0);
  cluster.ready(1);
  REQUIRE(cluster.phase() == "running");
  cluster.sent.clear();
  cluster.meet(2, 99);
  // The next view has it, as a server without chunks.
  CHECK(cluster.only<StopJob>(worker_peer(0))->kind == StopKind::kRestart);
  cluster.join_again();
  for (std::uint16_t i = 0; i < 3; ++i) cluster.ready(i);
  REQUIRE(cluster.phase() == "running");
  CHECK(cluster.owners() == std::set<std::uint16_t>{0, 1});
  cluster.now += kRejoinMs;
  const Round round = cluster.snapshot({0, 1});
  cluster.tick(cluster.now += 100);
  CHECK(cluster.dealt_to() == std::set<std::uint16_t>{0, 1, 2});
  CHECK(cluster.only<DealChunks>(server_peer(2))->round == round);
}

TEST_CASE("a server that chunks were read from is not needed for a deal that is being recorded") {
  Three cluster;
  cluster.snapshot();
  const JobId before = cluster.record().job;
  cluster.say(server_peer(1), DrainRequest{server_incarnation(1)});
  cluster.snapshot();
  cluster.tick(cluster.now += 100);
  REQUIRE(cluster.dealt_to() == std::set<std::uint16_t>{0, 2});
  const JobId dealt = cluster.to<DealChunks>(server_peer(0)).back().job;
  cluster.dealt(0);
  SUBCASE("before all is read it is") {
    cluster.lose(1);
    CHECK(cluster.only<DropCheckpoint>(server_peer(0))->job == dealt);
    CHECK(cluster.record().job == before);
    return;
  }
  cluster.disk_stands = true;
  cluster.dealt(2);
  cluster.lose(1);
  cluster.disk_goes_on();
  CHECK(cluster.record().job == dealt);
  CHECK(cluster.owners() == std::set<std::uint16_t>{0, 2});
}

TEST_CASE("a server that is told to stop, whose chunks nobody can take, stops the job cleanly") {
  Three cluster;
  cluster.snapshot();
  REQUIRE(cluster.core.deal_job("mnist", {1, 2}, cluster.now) == 1u);  // the others are to have none of it
  cluster.snapshot();
  cluster.tick(cluster.now += 100);
  cluster.dealt(0);
  REQUIRE(cluster.owners() == std::set<std::uint16_t>{0});
  cluster.join_again();
  for (std::uint16_t i = 0; i < 3; ++i) cluster.ready(i);
  REQUIRE(cluster.phase() == "running");
  cluster.sent.clear();
  cluster.say(server_peer(0), DrainRequest{server_incarnation(0)});
  CHECK(cluster.count<StopRequest>() == 1);
}

TEST_CASE("an order where a server is away says so; one that is refused weakens nothing") {
  CoordinatorOptions as{3, 7, kTimeoutMs, 7000};
  as.term = Term(32);  // others may have the coordinator
  JoinOptions options = going_on();
  options.config.membership.on_server_loss = OnLoss::kWait;
  Three cluster(options, as);
  cluster.snapshot();
  cluster.lose(2);
  for (std::uint64_t passed = 0; passed <= kTimeoutMs; passed += 1000) {
    cluster.now += 1000;
    cluster.beat_server(0, cluster.version, cluster.version);
    cluster.tick(cluster.now);
  }
  const auto order = [&](const std::string& job, const std::set<std::uint16_t>& without) {
    const auto dealt = cluster.core.deal_job(job, without, cluster.now);
    return dealt ? std::string() : dealt.error().message;
  };
  CHECK(order("other", {1, 2}) == "nobody in the cluster has a job 'other'");
  CHECK(order("mnist", {3}) == "there is no server 3: the cluster has 3");
  const std::string refused = order("mnist", {});
  CHECK(contains(refused, "server 1, which has chunks of job 'mnist', is away"));
  CHECK(contains(refused, "order --without 1"));
  CHECK(order("mnist", {1, 2}).empty());
}

TEST_CASE("a server that is told to stop is let go when its chunks are on others, with copies") {
  Three cluster;
  cluster.snapshot();
  const JobId before = cluster.record().job;
  cluster.sent.clear();
  cluster.say(server_peer(1), DrainRequest{server_incarnation(1)});
  CHECK(cluster.count<StopRequest>() == 0);  // the job goes on
  cluster.snapshot();
  cluster.tick(cluster.now += 100);
  REQUIRE(cluster.dealt_to() == std::set<std::uint16_t>{0, 2});
  for (const std::uint16_t server : {0, 2}) cluster.dealt(server);
  CHECK(cluster.owners() == std::set<std::uint16_t>{0, 2});
  CHECK(cluster.to<DrainDone>(server_peer(1)).empty());  // what it has of the job is still wanted
  CHECK(cluster.count<DropCheckpoint>() == 0);
  cluster.sent.clear();
  cluster.say(server_peer(2), HeldRecord{cluster.record().job, 1});  // most servers have the record then
  CHECK(required(cluster.only<DropCheckpoint>(server_peer(1))).job == before);
  CHECK(cluster.to<DrainDone>(server_peer(1)).empty());
  cluster.meet(1);  // it has dropped it
  CHECK(cluster.to<DrainDone>(server_peer(1)).size() == 1);
}

TEST_CASE("an order deals a job's chunks to the servers that are there, but for some") {
  JoinOptions options = going_on();
  options.config.membership.on_server_loss = OnLoss::kWait;
  Three cluster(options);
  const auto refused = [&](const std::string& job, const std::set<std::uint16_t>& without) {
    const auto dealt = cluster.core.deal_job(job, without, cluster.now);
    return dealt ? std::string() : dealt.error().message;
  };
  CHECK(refused("other", {}) == "nobody in the cluster has a job 'other'");
  CHECK(refused("mnist", {0, 1, 2}) == "no server would be left for job 'mnist'");
  cluster.snapshot();
  REQUIRE(cluster.core.deal_job("mnist", {0}, cluster.now) == 2u);
  CHECK(cluster.job().deal == "ordered; it waits for a snapshot");
  cluster.snapshot();
  cluster.tick(cluster.now += 100);
  CHECK(cluster.dealt_to() == std::set<std::uint16_t>{1, 2});
  CHECK(cluster.job().deal == "dealt to server 1 and server 2 (by order)");
  CHECK(refused("mnist", {}).find("order it when that is over") != std::string::npos);
  for (const std::uint16_t server : {1, 2}) cluster.dealt(server);
  CHECK(cluster.owners() == std::set<std::uint16_t>{1, 2});
  CHECK(cluster.job().deal.empty());
  // It stays there, and an order that would change nothing ends at once.
  cluster.wait(2 * kRejoinMs, 3);
  REQUIRE(cluster.core.deal_job("mnist", {0}, cluster.now) == 2u);
  cluster.sent.clear();
  cluster.tick(cluster.now += 100);
  CHECK(cluster.dealt_to().empty());
  CHECK(cluster.job().deal.empty());
}

TEST_CASE("a node that has yet to hear how its stop ended hears it also when chunks have gone to other servers since") {
  Three cluster;
  const Round round = cluster.snapshot();
  const OpenJob before = cluster.open();
  REQUIRE(cluster.core.deal_job("mnist", {0}, cluster.now));
  cluster.snapshot();
  cluster.tick(cluster.now += 100);
  for (const std::uint16_t server : {1, 2}) cluster.dealt(server);
  REQUIRE(cluster.record().job != before.job);
  cluster.sent.clear();
  const auto leave = [&](Round at) {
    cluster.say(worker_peer(0),
                LeaveJob{before.job, before.view, NodeRank(0), LeaveKind::kStopped, at, {}, "mnist", {}});
  };
  leave(round);
  CHECK(cluster.only<SnapshotDone>(worker_peer(0))->ok);
  leave(Round(cluster.record().committed.value + 1));  // this one is lost
  CHECK(cluster.only<StopJob>(worker_peer(0))->kind == StopKind::kRestart);
}

TEST_CASE("a job without a snapshot begins anew on the servers that are there") {
  Three cluster;
  cluster.lose(1);
  cluster.sent.clear();
  cluster.join_again();
  cluster.wait(kRejoinMs, 1);
  REQUIRE(cluster.only<OpenJob>(server_peer(0)));
  CHECK_FALSE(cluster.open().resume);
  cluster.ready(0);
  cluster.ready(2);
  CHECK(cluster.phase() == "running");
  CHECK(cluster.owners() == std::set<std::uint16_t>{0, 2});
}

}  // namespace tributary::coordinator_servers_test
