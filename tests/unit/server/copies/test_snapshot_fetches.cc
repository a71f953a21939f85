// Parts of snapshots that a server reads from other servers.
#include "tests/unit/expect.h"
#include "tests/unit/required.h"
#include "tests/unit/server/control_jobs_fixture.h"

namespace tributary::control_jobs_test {
namespace {

ServerEntry entry(std::uint16_t index) {
  return {ShardIndex(index), "tcp://s" + std::to_string(index) + ":9", ""};
}

CopySnapshot order_of(std::uint64_t round, std::uint16_t shard = 3, bool paced = true) {
  return {JobId(7), Round(round), ShardIndex(shard), entry(shard), ViewId(2), paced};
}

// A complete part without chunks.
void store_part(Server& server, std::uint64_t round, std::uint16_t shard, std::uint64_t job = 7) {
  SnapshotInfo info{JobId(job), "job", Round(round), 0, "sgd", 0, ShardIndex(shard)};
  const auto handle = server.store.create(info);
  REQUIRE(server.store.record(handle));
}

void end(Server& server, std::size_t which, const Status& status) {
  server.fetches.all.at(which).second(status);
}

}  // namespace

TEST_CASE("a copy is read once, and acknowledged when it is there") {
  Server server;
  server.jobs.on(order_of(5));
  server.jobs.on(order_of(5));
  REQUIRE(server.fetches.all.size() == 1);
  const Fetch& fetch = *server.fetches.all[0].first;
  CHECK(fetch.from == entry(3));
  CHECK(fetch.paced);
  CHECK(server.sent.empty());
  SUBCASE("training is over: it is hurried") {
    server.jobs.on(order_of(5, 3, false));
    CHECK_FALSE(fetch.paced);
    CHECK(server.fetches.hurried == 1);
  }
  SUBCASE("a newer one is ordered") {
    server.jobs.on(order_of(9));
    CHECK_FALSE(fetch.wanted);
    CHECK(server.fetches.all[1].first->wanted);
  }
  SUBCASE("its server is at another address now") {
    ServerBook book;
    book.servers = {entry(1), entry(3)};
    server.jobs.on(book);
    CHECK(fetch.wanted);
    book.servers[1].copy_endpoint = "elsewhere";
    server.jobs.on(book);
    CHECK_FALSE(fetch.wanted);
    CHECK(server.fetches.withdrawn == 1);
  }
  SUBCASE("its server cannot read it") {
    server.fetches.all[0].first->unreadable = true;
    end(server, 0, fail(ErrorCode::kStore, "a checksum is wrong"));
    CHECK(server.take<SnapshotCopied>().at(0).unreadable);
  }
  SUBCASE("it is there") {
    store_part(server, 5, 3);
    end(server, 0, {});
    const auto copied = only_one(server.take<SnapshotCopied>());
    CHECK(copied.ok);
    CHECK_FALSE(copied.unreadable);
    CHECK(copied.shard == ShardIndex(3));
    CHECK(copied.view == ViewId(2));
    server.jobs.on(order_of(5));
    CHECK(server.take<SnapshotCopied>().size() == 1);
    CHECK(server.fetches.all.size() == 1);
  }
  SUBCASE("it cannot be had, and is asked for again") {
    end(server, 0, fail(ErrorCode::kUnavailable, "no answer"));
    const auto copied = only_one(server.take<SnapshotCopied>());
    CHECK_FALSE(copied.ok);
    CHECK(copied.message == "no answer");
    server.jobs.on(order_of(5));
    CHECK(server.fetches.all.size() == 2);
  }
}

TEST_CASE("a server's own part is no copy of another's") {
  Server server;
  store_part(server, 5, 0);
  server.jobs.on(order_of(5));
  CHECK(server.fetches.all.size() == 1);
}

TEST_CASE("a view does not open before copies of rounds beyond its start have ended and are dropped") {
  Server server;
  store_part(server, 5, 0);
  server.jobs.on(order_of(5));
  server.jobs.on(order_of(9, 2));
  server.jobs.on(server.resume_message(3));
  CHECK(server.fetches.all[0].first->wanted);
  CHECK_FALSE(server.fetches.all[1].first->wanted);
  REQUIRE(server.orders.loads.size() == 1);
  server.orders.loads[0].done(server.orders.loads[0].chunk());
  server.jobs.lane_opened(JobId(7), ViewId(3), {});
  CHECK(server.take<ShardReady>().empty());
  store_part(server, 9, 2);  // it was just complete
  end(server, 1, {});
  CHECK(server.take<ShardReady>().empty());
  server.orders.carry_out();
  CHECK(server.take<ShardReady>().size() == 1);
  const auto stored = only_one(server.store.jobs());
  CHECK(stored.own());
}

TEST_CASE("a part that the store lacks is read from its copy, and then loaded") {
  Server server;
  OpenJob open = server.resume_message(3);
  open.copy = entry(1);
  server.jobs.on(open);
  CHECK(server.orders.loads.empty());
  REQUIRE(server.fetches.all.size() == 1);
  const auto fetch = server.fetches.all[0].first;
  CHECK(fetch->shard == ShardIndex(0));
  CHECK(fetch->from == entry(1));
  CHECK_FALSE(fetch->paced);
  fetch->bytes = 400;
  CHECK(server.jobs.progress().at(0).loaded == 400);
  SUBCASE("it is there") {
    store_part(server, 5, 0);
    end(server, 0, {});
    REQUIRE(server.orders.loads.size() == 1);
    server.orders.loads[0].done(server.orders.loads[0].chunk());
    server.jobs.lane_opened(JobId(7), ViewId(3), {});
    const auto copied = only_one(server.take<SnapshotCopied>());
    CHECK(copied.shard == ShardIndex(0));
    CHECK(server.jobs.progress().at(0).loaded == 0);
  }
  SUBCASE("it cannot be had: the view may begin again") {
    end(server, 0, fail(ErrorCode::kStore, "the disk is full"));
    CHECK(server.lane.said.back() == "opened");
    server.jobs.lane_opened(JobId(7), ViewId(3), {});
    const auto ready = only_one(server.take<ShardReady>());
    CHECK_FALSE(ready.ok);
    CHECK(ready.code == ErrorCode::kUnavailable);
    CHECK(testing::contains(ready.message, "the disk is full"));
  }
  SUBCASE("the view is cut: the next one goes on with what comes") {
    server.restart(3);
    OpenJob again = server.resume_message(4);
    again.copy = entry(1);
    server.jobs.on(again);
    CHECK(server.fetches.all.size() == 1);
    store_part(server, 5, 0);
    end(server, 0, {});
    CHECK(server.orders.loads.size() == 1);
  }
}

TEST_CASE("a part that is damaged is read from its copy; chunks that lanes have stay theirs") {
  Server server;
  store_part(server, 5, 0);
  OpenJob open = server.resume_message(3);
  open.copy = entry(1);
  server.jobs.on(open);
  REQUIRE(server.orders.loads.size() == 1);
  REQUIRE(server.orders.loads[0].chunk());
  server.orders.loads[0].done(fail(ErrorCode::kStore, "chunk 1 is damaged"));
  REQUIRE(server.fetches.all.size() == 1);
  end(server, 0, {});
  REQUIRE(server.orders.loads.size() == 2);
  CHECK(server.orders.loads[1].chunk());
  server.orders.loads[1].done({});
  CHECK(std::ranges::count(server.lane.said, std::string("restore")) == 1);
  server.jobs.lane_opened(JobId(7), ViewId(3), {});
  CHECK(server.take<ShardReady>().at(0).ok);
}

TEST_CASE("a job that is removed takes what is read of it along") {
  Server server;
  server.jobs.on(order_of(5));
  server.jobs.on(DropCheckpoint{JobId(7), {}});
  CHECK_FALSE(server.fetches.all[0].first->wanted);
  store_part(server, 5, 3);  // it was just complete
  end(server, 0, {});
  server.orders.carry_out();
  CHECK(server.store.jobs().empty());
}

}  // namespace tributary::control_jobs_test
