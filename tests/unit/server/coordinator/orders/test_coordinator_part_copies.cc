// CoordinatorCore: a second server has copies of the large parts of what ranks keep.
#include <doctest/doctest.h>

#include "tests/unit/required.h"
#include "tests/unit/server/coordinator/large_states.h"

namespace tributary::coordinator_part_copies_test {

using namespace testing;

namespace {

// Servers, each on a machine of its own, and a node.
struct Copying : Cluster {
  explicit Copying(std::vector<JobRecord> known = {}, PartsInMemory stored = {}, std::uint64_t incarnation = 7,
                   std::uint16_t servers = 2)
      : Cluster(servers, std::move(known), incarnation, std::move(stored)), count_(servers) {}
  // copies: of the last one.
  void servers(const std::vector<HeldParts>& copies = {}, const std::vector<StoredJob>& snapshots = {}) {
    for (std::uint16_t i = 0; i < count_; ++i) {
      ServerHello hello = hello_of(i);
      hello.host = "machine-" + std::to_string(i);
      hello.copy_endpoint = "copies-" + std::to_string(i);
      hello.stored = snapshots;
      if (i + 1 == count_) hello.parts = copies;
      say(server_peer(i), hello);
    }
    worker(0);
  }
  // After the loss of server 0's store: the last server has the only copy of the state's part.
  void servers_with_copy(const JobRecord& record, const LargeState& state) {
    servers({{record.job, {state.large}, false}}, {{record.job, "mnist", 0, {Round(40)}}});
  }
  void second() {
    now += 1000;
    for (std::uint16_t i = 0; i < count_; ++i) beat_server(i);
    beat_worker(0);
    tick(now);
  }
  std::vector<CopyParts> orders_for(std::uint16_t server) const { return to<CopyParts>(server_peer(server)); }

 private:
  const std::uint16_t count_;
};

// A job whose rank 0 has kept this with the snapshot of round 40, which is committed.
JobRecord trained(Copying& cluster, const LargeState& state) {
  cluster.servers();
  cluster.run(1);
  cluster.second();
  give(cluster, 0, 40, state.state);
  deliver(cluster, 0, state);
  cluster.second();
  cluster.stop_at(0, 40);
  for (std::uint16_t shard = 0; shard < 2; ++shard) {
    for (const CopySnapshot& order : cluster.to<CopySnapshot>(server_peer(shard)))
      cluster.say(server_peer(shard), SnapshotCopied{order.job, order.round, order.shard, order.view, true});
  }
  cluster.second();
  REQUIRE(cluster.phase() == "idle");
  const JobRecord record = cluster.registry.begin()->second;
  REQUIRE(record.rank_states.contains(RankKey{0, 0}));
  return record;
}

// The record of such a job, whose coordinator is gone.
JobRecord trained(const LargeState& state) {
  Copying before;
  return trained(before, state);
}

}  // namespace

TEST_CASE("a server on another machine gets the large parts that a record names, and only it") {
  Copying cluster;
  const LargeState state = large_state('a', kPartBytes + 1);
  const JobRecord record = trained(cluster, state);
  REQUIRE_FALSE(cluster.orders_for(1).empty());
  CHECK(cluster.orders_for(0).empty());
  CHECK(cluster.orders_for(1).back().parts == std::vector{state.large});
  cluster.sent.clear();
  cluster.say(server_peer(1), WantPart{record.job, state.large, kPartBytes});
  CHECK(required(cluster.only<StatePart>(server_peer(1))).data == state.piece(kPartBytes));
}

TEST_CASE("an order for copies is repeated until the server has them, and no longer") {
  Copying cluster;
  const LargeState state = large_state('a');
  const JobRecord record = trained(cluster, state);
  cluster.sent.clear();
  for (int i = 0; i < 11; ++i) cluster.second();
  CHECK(cluster.orders_for(1).size() == 1);
  cluster.say(server_peer(1), HeldParts{record.job, {state.large}, false});
  cluster.sent.clear();
  for (int i = 0; i < 30; ++i) cluster.second();
  CHECK(cluster.orders_for(1).empty());
}

TEST_CASE("a store that has lost a large part gets the copy back, which nobody drops") {
  const LargeState state = large_state('a', 2 * kPartBytes);
  const JobRecord record = trained(state);
  Copying cluster({record}, {}, 8);
  cluster.servers_with_copy(record, state);
  for (int i = 0; i < 12; ++i) {
    cluster.second();
    for (const WantPart& want : cluster.to<WantPart>(server_peer(1)))
      cluster.say(server_peer(1), StatePart{want, state.piece(want.offset)});
  }
  for (const CopyParts& order : cluster.orders_for(1)) CHECK(order.parts == std::vector{state.large});
  CHECK(cluster.parts.parts.at({record.job, state.large}).complete);
}

TEST_CASE("a server that keeps copies no more drops one when the part is in the store and on the other server") {
  const LargeState state = large_state('a', 2 * kPartBytes);
  const JobRecord record = trained(state);
  Copying cluster({record}, {}, 8, 3);  // server 1 keeps copies, and server 2 has the only one
  cluster.servers_with_copy(record, state);
  for (int i = 0; i < 12; ++i) cluster.second();
  CHECK(cluster.orders_for(2).empty());
  for (int i = 0; i < 3; ++i) {
    for (const WantPart& want : cluster.to<WantPart>(server_peer(2)))
      cluster.say(server_peer(2), StatePart{want, state.piece(want.offset)});
  }
  REQUIRE(cluster.parts.parts.at({record.job, state.large}).complete);
  for (int i = 0; i < 12; ++i) cluster.second();
  CHECK(cluster.orders_for(2).empty());
  REQUIRE_FALSE(cluster.orders_for(1).empty());
  CHECK(cluster.orders_for(1).back().parts == std::vector{state.large});
  cluster.say(server_peer(1), HeldParts{record.job, {state.large}, false});
  for (int i = 0; i < 12; ++i) cluster.second();
  REQUIRE_FALSE(cluster.orders_for(2).empty());
  CHECK(cluster.orders_for(2).back().parts.empty());
}

TEST_CASE("a job's state under the id of before stays until the server that came anew has copies of its large parts") {
  const LargeState state = large_state('a');
  const JobRecord before = trained(state);
  JobRecord record = before;  // its chunks went to other servers
  record.job = before.job.next();
  record.view = before.view.next();
  PartsInMemory stored;
  stored.parts[{record.job, state.large}] = {{{0, state.bytes}}, true};
  Copying cluster({before, record}, stored, 8);
  const auto meet = [&](std::uint16_t index, std::uint64_t incarnation) {
    ServerHello hello = cluster.hello_of(index);
    hello.incarnation = incarnation;
    hello.exclusive = "store-" + std::to_string(index);  // the next process has it: this one is gone
    hello.host = "machine-" + std::to_string(index);
    hello.copy_endpoint = "copies-" + std::to_string(index);
    for (const JobId job : {before.job, record.job}) {
      hello.stored.push_back({job, "mnist", 0, {Round(40)}});
      hello.stored.push_back({job, "mnist", 0, {Round(40)}, ShardIndex(1 - index)});
    }
    if (index == 1) {
      hello.copies = {{before.job, before.edition}, {record.job, record.edition}};
      hello.parts = {{before.job, {state.large}, false}};
    }
    cluster.say(server_peer(index), hello);
  };
  meet(0, 100);
  meet(1, 101);
  for (int i = 0; i < 12; ++i) cluster.second();
  REQUIRE_FALSE(cluster.orders_for(1).empty());
  CHECK(cluster.orders_for(1).back().job == record.job);
  meet(1, 102);  // before it could fetch the part
  cluster.worker(0);
  cluster.join(0, {.nodes = 1});
  CHECK(cluster.phase() == "opening");
  cluster.say(server_peer(1), HeldRecord{record.job, cluster.record().edition});
  CHECK(cluster.count<DropCheckpoint>() == 0);
  for (const std::uint16_t server : {0, 1}) cluster.ready(server);
  CHECK(cluster.phase() == "running");
  for (int i = 0; i < 12; ++i) cluster.second();
  CHECK(cluster.count<DropCheckpoint>() == 0);
  cluster.say(server_peer(1), HeldParts{record.job, {state.large}, false});
  for (int i = 0; i < 12; ++i) cluster.second();
  CHECK(cluster.only<DropCheckpoint>(server_peer(1))->job == before.job);
}

TEST_CASE("a part that the store cannot take from its copy is tried again after a while, and nothing begins without") {
  const LargeState state = large_state('a');
  const JobRecord record = trained(state);
  PartsInMemory full;
  full.full = true;
  Copying cluster({record}, std::move(full), 8);
  cluster.servers_with_copy(record, state);
  for (int i = 0; i < 40; ++i) cluster.second();
  CHECK(cluster.errors.size() == 1);
  cluster.join(0, rewinding());
  check_error(cluster, worker_peer(0), ErrorCode::kUnavailable, {"from the copy on server 1"});
  for (const CopyParts& order : cluster.orders_for(1)) CHECK(order.parts == std::vector{state.large});
}

TEST_CASE("where a view needs what ranks kept it waits until that has come from the copy") {
  const LargeState state = large_state('a', 2 * kPartBytes);
  const JobRecord record = trained(state);
  Copying cluster({record}, {}, 8);
  cluster.servers_with_copy(record, state);
  cluster.join(0, rewinding());
  check_error(cluster, worker_peer(0), ErrorCode::kUnavailable, {"kept of round 40", "from the copy on server 1"});
  for (const WantPart& want : cluster.to<WantPart>(server_peer(1)))
    cluster.say(server_peer(1), StatePart{want, state.piece(want.offset)});
  REQUIRE(cluster.parts.parts.at({record.job, state.large}).complete);
  cluster.join(0, rewinding());
  cluster.all_ready();
  const auto welcome = required(cluster.only<JobWelcome>(worker_peer(0)));
  CHECK(welcome.resume_round == Round(40));
  REQUIRE_FALSE(welcome.rank_states.empty());
  CHECK(welcome.rank_states[0] == state.state);
}

TEST_CASE("a job that goes on without what ranks kept gives them the part as the copy has it") {
  const LargeState state = large_state('a', 2 * kPartBytes);
  const JobRecord record = trained(state);
  Copying cluster({record}, {}, 8);
  cluster.servers_with_copy(record, state);
  cluster.join(0, {});
  cluster.all_ready();
  REQUIRE_FALSE(required(cluster.only<JobWelcome>(worker_peer(0))).rank_states.empty());
  cluster.say(worker_peer(0), WantPart{record.job, state.large, 0});
  REQUIRE_FALSE(cluster.to<WantPart>(server_peer(1)).empty());
  CHECK(cluster.only<StatePart>(worker_peer(0))->comes);
}

TEST_CASE("copies of jobs that nobody knows go, when the records are known") {
  Copying cluster;
  const LargePart some{5, 1, 2};
  cluster.servers({{JobId(77), {some}, false}});
  cluster.sent.clear();
  for (int i = 0; i < 3; ++i) cluster.second();
  REQUIRE_FALSE(cluster.orders_for(1).empty());
  CHECK(cluster.orders_for(1)[0].job == JobId(77));
  CHECK(cluster.orders_for(1)[0].parts.empty());
}

TEST_CASE("a stop waits for the copies of large parts, and not for a server that cannot keep them") {
  Copying cluster;
  const LargeState state = large_state('a');
  const JobRecord record = trained(cluster, state);  // and the order for the copy is younger than it may take
  cluster.core.drain(cluster.now);
  cluster.say(server_peer(1), DrainRequest{server_incarnation(1)});
  cluster.second();
  CHECK(cluster.count<DrainDone>() == 0);
  CHECK_FALSE(cluster.core.idle());
  SUBCASE("until they are there") {
    cluster.say(server_peer(1), HeldParts{record.job, {state.large}, false});
  }
  SUBCASE("the server's disk is full") {
    REQUIRE_FALSE(cluster.orders_for(1).empty());
    cluster.say(server_peer(1), HeldParts{record.job, {}, false, cluster.orders_for(1).back().number});
  }
  SUBCASE("the server says nothing more") {
    for (int i = 0; i < 31; ++i) cluster.second();
  }
  cluster.second();
  CHECK(cluster.to<DrainDone>(server_peer(1)).size() == 1);
  CHECK(cluster.core.idle());
}

}  // namespace tributary::coordinator_part_copies_test
