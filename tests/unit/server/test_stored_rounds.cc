// StoredRounds: snapshots that are being dropped, and those that cannot be.
#include "server/stored_rounds.h"
#include "tests/unit/server/control_jobs_fixture.h"

namespace tributary::control_jobs_test {
namespace {

// A store with rounds 5 and 10 of job 7.
struct TwoRounds {
  TwoRounds() {
    for (const std::uint64_t round : {5, 10}) {
      const auto snapshot = store.create({JobId(7), "job", Round(round), 0, "sgd", 1});
      REQUIRE(store.record(snapshot));
    }
    rounds.start(&orders);
  }
  std::size_t count() const { return rounds.all().empty() ? 0 : rounds.all()[0].snapshots.size(); }

  sim::Disk disk;
  sim::StoreSim store{disk, ShardIndex(0), true};
  FakeOrders orders;
  StoredRounds rounds{&store, ShardIndex(0), quiet_logger()};
};

}  // namespace

TEST_CASE("a snapshot that is being dropped does not count, and one that could not be dropped counts again") {
  TwoRounds server;
  CHECK(server.count() == 2);
  server.rounds.drop_before(JobId(7), Round(10));
  CHECK(server.count() == 1);
  CHECK_FALSE(server.rounds.has(JobId(7), Round(5)));
  CHECK(server.rounds.has(JobId(7), Round(10)));
  server.disk.full = true;
  server.orders.carry_out();
  CHECK(server.count() == 2);
  CHECK(server.rounds.has(JobId(7), Round(5)));
  server.disk.full = false;
  server.rounds.drop_before(JobId(7), Round(10));
  server.orders.carry_out();
  CHECK(server.count() == 1);
  CHECK(server.store.jobs()[0].snapshots.size() == 1);
}

TEST_CASE("no view opens beside snapshots of later rounds that are only about to go") {
  TwoRounds server;
  CHECK(server.rounds.any_from(JobId(7), Round(10)));
  CHECK_FALSE(server.rounds.any_from(JobId(7), Round(11)));
  CHECK_FALSE(server.rounds.any_from(JobId(8), Round(0)));
  server.rounds.drop(JobId(7), Round(10), Round(10));
  CHECK(server.rounds.any_from(JobId(7), Round(10)));
  server.orders.carry_out();
  CHECK_FALSE(server.rounds.any_from(JobId(7), Round(10)));
}

TEST_CASE("a server without a store has no rounds, and none to drop") {
  StoredRounds rounds(nullptr, ShardIndex(0), quiet_logger());
  rounds.drop_before(JobId(7), Round(10));
  rounds.drop(JobId(7), Round(1), Round(2));
  CHECK(rounds.all().empty());
  CHECK_FALSE(rounds.has(JobId(7), Round(5)));
  CHECK_FALSE(rounds.any_from(JobId(7), Round(0)));
}

}  // namespace tributary::control_jobs_test
