// CoordinatorCore: each part of a snapshot has a copy on another server, and views begin with copies.
#include <doctest/doctest.h>

#include <algorithm>

#include "tests/unit/expect.h"
#include "tests/unit/required.h"
#include "tests/unit/server/coordinator/coordinator_fixture.h"

namespace tributary::snapshot_copies_test {
namespace {

using namespace testing;

// Servers on machines of their own, or on those that are named.
struct Copying : Cluster {
  explicit Copying(std::uint16_t servers = 3, std::vector<std::string> machines = {}, std::vector<JobRecord> known = {},
                   std::uint64_t incarnation = 7)
      : Cluster(servers, std::move(known), incarnation), count_of(servers), machines_(std::move(machines)) {}
  ServerHello hello(std::uint16_t index, std::vector<StoredJob> stored = {}) const {
    ServerHello hello = hello_of(index);
    hello.host = machines_.empty() ? "machine-" + std::to_string(index) : machines_.at(index);
    hello.copy_endpoint = "copies-" + std::to_string(index);
    hello.key = "key-" + std::to_string(index);
    hello.stored = std::move(stored);
    return hello;
  }
  // All servers and a worker, whose job runs.
  void begin(JoinOptions options = {}) {
    for (std::uint16_t i = 0; i < count_of; ++i) say(server_peer(i), hello(i));
    worker(0);
    options.tensors = {{"w", {6'000'000}}};  // all servers have chunks
    run(1, options);
  }
  // Trains until a snapshot is named; all servers write their parts of it.
  Round write_snapshot() {
    sent.clear();
    for (int i = 0; i < 20 && count<SnapshotAt>() == 0; ++i) {
      now += 1000;
      version += 50;
      for (std::uint16_t server = 0; server < count_of; ++server) beat_server(server, version, version, true);
      beat_worker(0);
      tick(now);
    }
    const auto at = required(only<SnapshotAt>(server_peer(0)));
    all_done(at.round.value);
    return at.round;
  }
  const std::uint16_t count_of;
  std::uint64_t version = 0;

 private:
  const std::vector<std::string> machines_;
};

SnapshotCopied answer(const CopySnapshot& order, const std::string& failure = {}) {
  SnapshotCopied answer{order.job, order.round, order.shard, order.view, failure.empty()};
  answer.code = ErrorCode::kStore;
  answer.message = failure;
  return answer;
}

}  // namespace

TEST_CASE("servers hear of each other, with how to read each other's snapshots") {
  Copying cluster(2);
  cluster.say(server_peer(0), cluster.hello(0));
  cluster.sent.clear();
  cluster.say(server_peer(1), cluster.hello(1));
  for (std::uint16_t i = 0; i < 2; ++i) {
    const auto book = required(cluster.only<ServerBook>(server_peer(i)));
    REQUIRE(book.servers.size() == 2);
    CHECK(book.servers[1] == ServerEntry{ShardIndex(1), "copies-1", "key-1"});
  }
}

TEST_CASE("a job's last snapshot is committed when the next server has a copy of each part") {
  Copying cluster;
  cluster.begin();
  cluster.leave(0, LeaveKind::kStopped, 9);
  cluster.done(1, 9);
  // A copy is read as soon as its part is there.
  const auto order = required(cluster.only<CopySnapshot>(server_peer(2)));
  CHECK(order.shard == ShardIndex(1));
  CHECK(order.from == ServerEntry{ShardIndex(1), "copies-1", "key-1"});
  CHECK(order.round == Round(9));
  CHECK_FALSE(order.paced);
  cluster.done(0, 9);
  cluster.done(2, 9);
  REQUIRE(cluster.only<CopySnapshot>(server_peer(0)));
  REQUIRE(cluster.only<CopySnapshot>(server_peer(1)));
  cluster.say(server_peer(2), answer(order));
  cluster.say(server_peer(1), answer(*cluster.only<CopySnapshot>(server_peer(1))));
  cluster.tick(cluster.now);
  CHECK(cluster.count<SnapshotCommit>() == 0);
  CHECK(cluster.phase() == "stopping");
  SUBCASE("the last copy is there") {
    cluster.say(server_peer(0), answer(*cluster.only<CopySnapshot>(server_peer(0))));
    CHECK(cluster.job().not_copied.empty());
    CHECK(cluster.job().copies == 2);
  }
  SUBCASE("it cannot be had") {
    cluster.say(server_peer(0), answer(*cluster.only<CopySnapshot>(server_peer(0)), "no room"));
    CHECK(contains(cluster.job().not_copied, "no room"));
    CHECK(cluster.job().copies == 1);
    CHECK(std::ranges::any_of(cluster.warnings, [](const auto& line) { return line.find("no room") != line.npos; }));
  }
  SUBCASE("its holder is lost: the next one is to have it") {
    cluster.now += kTimeoutMs + 1000;
    for (const std::uint16_t alive : {1, 2}) cluster.beat_server(alive);
    cluster.beat_worker(0);
    cluster.tick(cluster.now);
    const auto orders = cluster.to<CopySnapshot>(server_peer(1));
    REQUIRE(orders.size() == 2);
    CHECK(orders[1].shard == ShardIndex(2));
    cluster.say(server_peer(1), answer(orders[1]));
  }
  CHECK(cluster.count<SnapshotCommit>() >= 3);
  CHECK(cluster.phase() == "idle");
}

TEST_CASE("a copy that gave way to a newer one is no failure: the newer one is waited for") {
  Copying cluster(2);
  cluster.begin();
  cluster.stop_at(0, 9);
  const auto order = required(cluster.only<CopySnapshot>(server_peer(1)));
  cluster.say(server_peer(0), answer(*cluster.only<CopySnapshot>(server_peer(0))));
  SnapshotCopied gave_way = answer(order, "nobody wants it any more");
  gave_way.code = ErrorCode::kStopped;
  cluster.say(server_peer(1), gave_way);
  CHECK(cluster.count<SnapshotCommit>() == 0);
  const auto fewer = [](const std::string& line) { return contains(line, "fewer copies"); };
  CHECK(std::ranges::none_of(cluster.warnings, fewer));
  cluster.tick(cluster.now);
  REQUIRE(cluster.to<CopySnapshot>(server_peer(1)).size() == 2);
  cluster.say(server_peer(1), answer(order));
  CHECK(cluster.count<SnapshotCommit>() == 3);
}

TEST_CASE("a last snapshot whose part is lost with its server before it was copied is none") {
  Copying cluster;
  cluster.begin();
  cluster.stop_at(0, 9);
  cluster.say(server_peer(1), answer(*cluster.only<CopySnapshot>(server_peer(1))));
  cluster.say(server_peer(2), answer(*cluster.only<CopySnapshot>(server_peer(2))));
  cluster.now += kTimeoutMs + 1000;
  for (const std::uint16_t alive : {0, 1}) cluster.beat_server(alive);
  cluster.beat_worker(0);
  cluster.tick(cluster.now);  // server 2's copy was to be server 0's
  CHECK(cluster.count<SnapshotCommit>() == 0);
  CHECK(cluster.phase() == "idle");
  CHECK(cluster.record().committed == Round(0));
}

TEST_CASE("a part that its server has written and cannot read is no part: its snapshot is not committed") {
  Copying cluster(2);
  const auto copy = [&](Round round, bool readable) {
    for (std::uint16_t holder = 0; holder < 2; ++holder) {
      CopySnapshot order{cluster.open().job, round, ShardIndex(1 - holder), {}, cluster.open().view, true};
      SnapshotCopied done = answer(order, holder == 0 || readable ? "" : "a checksum is wrong");
      done.unreadable = !done.ok;
      cluster.say(server_peer(holder), done);
    }
  };
  SUBCASE("the last one, of a stop") {
    cluster.begin();
    cluster.stop_at(0, 9);
    copy(Round(9), false);
    CHECK(cluster.count<SnapshotCommit>() == 0);
    CHECK(cluster.phase() == "idle");
    CHECK(contains(cluster.job().not_saved, "server 0: its part is written, and cannot be read"));
  }
  SUBCASE("of a job that goes on: the one before stays") {
    cluster.begin(with_snapshots(10, 0));
    const Round first = cluster.write_snapshot();
    copy(first, true);
    REQUIRE(cluster.record().committed == first);
    const Round second = cluster.write_snapshot();
    cluster.sent.clear();
    copy(second, false);
    CHECK(cluster.record().committed == first);
    const auto dropped = required(cluster.only<SnapshotCommit>(server_peer(0)));
    CHECK(dropped.superseded == second);
    const Round third = cluster.write_snapshot();
    copy(third, true);
    CHECK(cluster.record().committed == third);
  }
}

TEST_CASE("an order for a copy is repeated until it is answered, and after a failure later") {
  Copying cluster(2);
  cluster.begin();
  cluster.leave(0, LeaveKind::kStopped, 9);
  cluster.done(0, 9);
  const auto orders = [&] { return cluster.to<CopySnapshot>(server_peer(1)); };
  REQUIRE(orders().size() == 1);
  cluster.pass(9'000, 1);
  CHECK(orders().size() == 1);
  cluster.pass(2'000, 1);
  CHECK(orders().size() == 2);
  cluster.say(server_peer(1), answer(orders()[0], "no room"));
  cluster.pass(50'000, 1);
  CHECK(orders().size() == 2);
  cluster.pass(12'000, 1);
  CHECK(orders().size() == 3);
}

TEST_CASE("a snapshot of a running job is committed with its copies; a holder that failed is not waited for again") {
  Copying cluster(2);
  cluster.begin(with_snapshots(10, 0));
  const Round first = cluster.write_snapshot();
  CHECK(cluster.count<SnapshotCommit>() == 0);
  const auto to_one = cluster.only<CopySnapshot>(server_peer(1));
  const auto to_zero = cluster.only<CopySnapshot>(server_peer(0));
  REQUIRE(to_one);
  REQUIRE(to_zero);
  CHECK(to_one->paced);
  cluster.say(server_peer(1), answer(*to_one));
  CHECK(cluster.count<SnapshotCommit>() == 0);
  cluster.say(server_peer(0), answer(*to_zero, "no room"));
  CHECK(cluster.count<SnapshotCommit>() == 3);
  CHECK(cluster.record().committed == first);
  const Round second = cluster.write_snapshot();
  CHECK(cluster.count<SnapshotCommit>() == 0);
  cluster.say(server_peer(1), answer(*cluster.only<CopySnapshot>(server_peer(1))));
  CHECK(cluster.record().committed == second);
  // It can again.
  cluster.say(server_peer(0), answer(*cluster.only<CopySnapshot>(server_peer(0))));
  cluster.write_snapshot();
  cluster.say(server_peer(1), answer(*cluster.only<CopySnapshot>(server_peer(1))));
  CHECK(cluster.count<SnapshotCommit>() == 0);
}

TEST_CASE("the next snapshot does not wait for copies: the newest that is written stays beside the one being copied") {
  Copying cluster(2);
  cluster.begin(with_snapshots(10, 0));
  const auto copy = [&](Round round) {
    for (std::uint16_t holder = 0; holder < 2; ++holder) {
      CopySnapshot order{cluster.open().job, round, ShardIndex(1 - holder), {}, cluster.open().view, true};
      cluster.say(server_peer(holder), answer(order));
    }
  };
  const Round first = cluster.write_snapshot(), second = cluster.write_snapshot();
  CHECK(cluster.count<SnapshotCommit>() == 0);
  const Round third = cluster.write_snapshot();  // the second one gives way to it
  const auto superseded = required(cluster.only<SnapshotCommit>(server_peer(0)));
  CHECK(superseded.superseded == second);
  CHECK(superseded.round == Round(0));
  CHECK(cluster.record().committed == Round(0));
  cluster.sent.clear();
  copy(first);
  CHECK(cluster.record().committed == first);
  cluster.tick(cluster.now);
  const auto next = required(cluster.only<CopySnapshot>(server_peer(1)));
  CHECK(next.round == third);
  SUBCASE("a view begins at the newest; until that has copies the one before stays") {
    cluster.leave(0, LeaveKind::kFailed, third.value, "lost");
    JoinOptions options = with_snapshots(10, 0);
    options.tensors = {{"w", {6'000'000}}};
    cluster.join(0, options);
    REQUIRE(cluster.open().resume);
    CHECK(cluster.open().resume_round == third);
    CHECK(cluster.record().provisional);
    cluster.all_ready();
    cluster.sent.clear();
    cluster.pass(12'000, 1, {}, cluster.version);
    CHECK(cluster.count<SnapshotCommit>() == 0);
    CHECK(std::ranges::any_of(cluster.to<CopySnapshot>(server_peer(1)),
                              [&](const CopySnapshot& order) { return order.round == third; }));
    cluster.sent.clear();
    copy(third);
    cluster.pass(11'000, 1, {}, cluster.version);
    CHECK_FALSE(cluster.record().provisional);
    CHECK(cluster.only<SnapshotCommit>(server_peer(1))->round == third);
  }
}

TEST_CASE("copies are on other machines, where these have a store; [snapshot] copies says whether") {
  JoinOptions options;
  const auto orders = [&](std::vector<std::string> machines) {
    Copying cluster(static_cast<std::uint16_t>(machines.size()), machines);
    cluster.begin(options);
    cluster.stop_at(0, 9);
    std::vector<std::pair<std::uint16_t, std::uint16_t>> found;  // holder and shard
    for (std::uint16_t i = 0; i < machines.size(); ++i) {
      for (const CopySnapshot& order : cluster.to<CopySnapshot>(server_peer(i))) {
        found.emplace_back(i, order.shard.value);
      }
    }
    CHECK((cluster.count<SnapshotCommit>() != 0) == found.empty());
    return found;
  };
  using Pairs = std::vector<std::pair<std::uint16_t, std::uint16_t>>;
  CHECK(orders({"a", "a", "b", "b"}) == Pairs{{0, 2}, {1, 3}, {2, 0}, {3, 1}});
  CHECK(orders({"a", "a"}).empty());
  CHECK(orders({"a"}).empty());
  options.config.snapshot.copies = 2;
  CHECK(orders({"a", "a"}) == Pairs{{0, 1}, {1, 0}});
  options.config.snapshot.copies = 1;
  CHECK(orders({"a", "b"}).empty());
}

TEST_CASE("a view begins with the copy of a part whose store was lost") {
  Copying before(2);
  before.begin();
  before.stop_at(0, 9);
  for (std::uint16_t i = 0; i < 2; ++i) before.say(server_peer(i), answer(*before.only<CopySnapshot>(server_peer(i))));
  REQUIRE(before.phase() == "idle");
  const JobId job = before.open().job;

  Copying cluster(2, {}, before.records(), 8);
  const StoredJob own{job, "mnist", 0, {Round(9)}}, copy{job, "mnist", 0, {Round(9)}, ShardIndex(1)};
  cluster.say(server_peer(0), cluster.hello(0, {own, copy}));
  cluster.worker(0);
  JoinOptions options;
  options.tensors = {{"w", {6'000'000}}};
  SUBCASE("it is filled from there") {
    cluster.say(server_peer(1), cluster.hello(1));
    cluster.join(0, options);
    const auto lost = required(cluster.only<OpenJob>(server_peer(1)));
    CHECK(lost.resume);
    CHECK(lost.resume_round == Round(9));
    CHECK(lost.copy == ServerEntry{ShardIndex(0), "copies-0", "key-0"});
    CHECK(cluster.only<OpenJob>(server_peer(0))->copy.copy_endpoint.empty());
    // The part is there again; then server 1 is to have its copy of server 0's.
    cluster.say(server_peer(1), SnapshotCopied{job, Round(9), ShardIndex(1), lost.view});
    cluster.all_ready();
    cluster.pass(5'000, 1);
    const auto order = required(cluster.only<CopySnapshot>(server_peer(1)));
    CHECK(order.shard == ShardIndex(0));
    CHECK(cluster.to<CopySnapshot>(server_peer(0)).empty());
    CHECK(cluster.job().copies == 1);
    cluster.say(server_peer(1), answer(order));
    CHECK(cluster.job().copies == 2);
  }
  SUBCASE("the copy is lost, too") {
    cluster.say(server_peer(0), cluster.hello(0, {own}));
    cluster.say(server_peer(1), cluster.hello(1));
    cluster.join(0, options);
    check_error(cluster, worker_peer(0), ErrorCode::kStore,
                {"server 1's store lacks", "round 9", "checkpoint restore"});
  }
}

TEST_CASE("a job whose only copy of a part may be on a server that is away waits for that server") {
  Copying before(2);
  before.begin();
  before.stop_at(0, 9);
  for (std::uint16_t i = 0; i < 2; ++i) before.say(server_peer(i), answer(*before.only<CopySnapshot>(server_peer(i))));
  const JobId job = before.open().job;

  Copying cluster(3, {}, before.records(), 8);  // server 2 has none of the job's chunks
  const StoredJob copy{job, "mnist", 0, {Round(9)}, ShardIndex(1)};
  cluster.say(server_peer(0), cluster.hello(0, {{job, "mnist", 0, {Round(9)}}}));
  cluster.say(server_peer(1), cluster.hello(1));
  cluster.say(server_peer(2), cluster.hello(2, {copy}));
  cluster.worker(0);
  cluster.pass(15'000, 1, {server_peer(2)});
  JoinOptions options;
  options.tensors = {{"w", {6'000'000}}};
  cluster.join(0, options);
  check_error(cluster, worker_peer(0), ErrorCode::kUnavailable,
              {"server 1's store lacks", "round 9", "a server that is away may have a copy", "start all 3 servers"});
  cluster.sent.clear();
  cluster.say(server_peer(2), cluster.hello(2, {copy}));
  cluster.join(0, options);
  CHECK(required(cluster.only<OpenJob>(server_peer(1))).copy == ServerEntry{ShardIndex(2), "copies-2", "key-2"});
}

TEST_CASE("a stopped job gets the copies that a loss has cost") {
  Copying before(2);
  before.begin();
  before.stop_at(0, 9);
  for (std::uint16_t i = 0; i < 2; ++i) before.say(server_peer(i), answer(*before.only<CopySnapshot>(server_peer(i))));
  Copying cluster(2, {}, before.records(), 8);
  const StoredJob own{before.open().job, "mnist", 0, {Round(9)}};
  for (std::uint16_t i = 0; i < 2; ++i) cluster.say(server_peer(i), cluster.hello(i, {own}));
  cluster.pass(5'000, 0);
  for (std::uint16_t i = 0; i < 2; ++i) CHECK(cluster.to<CopySnapshot>(server_peer(i)).size() == 1);
}

}  // namespace tributary::snapshot_copies_test
