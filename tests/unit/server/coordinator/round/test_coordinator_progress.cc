// A job that anybody in the cluster has progress of never opens fresh, unless that was asked for by name.
#include <doctest/doctest.h>

#include "tests/unit/expect.h"
#include "tests/unit/required.h"
#include "tests/unit/server/coordinator/coordinator_fixture.h"

namespace tributary::coordinator_progress_test {

using namespace testing;

namespace {

// Server 0 begins with an empty store, the other one has the job's.
void begin_without_registry(Cluster& cluster, const Stopped& before) {
  cluster.everybody(1);
  cluster.server(1, before.stored);
  cluster.sent.clear();
}

}  // namespace

TEST_CASE("a job whose registry is lost is not begun anew while a server has its snapshots") {
  const Stopped before = stopped_at(500);
  Cluster cluster(2, {}, 8);
  begin_without_registry(cluster, before);
  for (int attempt = 0; attempt < 2; ++attempt) {
    cluster.sent.clear();
    cluster.join(0, {});
    CHECK(cluster.count<OpenJob>() == 0);
    check_error(cluster, worker_peer(0), ErrorCode::kStore,
                {"server 1", "round 500", "'mnist'", "[store] path", "checkpoint restore", "job remove mnist"});
    CHECK(cluster.phase() == "idle");
  }
  SUBCASE("another job opens") {
    cluster.sent.clear();
    cluster.join(0, {.job = "other"});
    CHECK(cluster.count<OpenJob>() == 2);
  }
  SUBCASE("server 0 comes back with the store that it had") {
    Cluster again(2, before.records, 9);
    restarted(again, before.stored);
    again.join(0, {});
    CHECK(again.open().resume_round == Round(500));
  }
  SUBCASE("it is removed by name") {
    cluster.sent.clear();
    REQUIRE(cluster.remove_job("mnist"));
    for (std::uint16_t i = 0; i < 2; ++i) {
      const auto drops = cluster.to<DropCheckpoint>(server_peer(i));
      CHECK(std::ranges::count(drops, before.stored[0].job, &DropCheckpoint::job) == 1);
    }
    cluster.join(0, {});
    REQUIRE(cluster.last_open);
    CHECK_FALSE(cluster.open().resume);
    CHECK(cluster.open().job != before.stored[0].job);
  }
}

TEST_CASE("a job that another cluster's store has under an id of its own is not begun anew either") {
  const Stopped before = stopped_at(500);
  TrainingCluster cluster(1);
  Cluster again(2, cluster.records(), 8);  // a record without a snapshot
  again.everybody(1);
  again.server(1, {StoredJob{JobId(4711), "mnist", 0, before.stored[0].snapshots}});
  again.sent.clear();
  again.join(0, {});
  CHECK(again.count<OpenJob>() == 0);
  check_error(again, worker_peer(0), ErrorCode::kStore, {"server 1", "round 500", "4711"});
}

TEST_CASE("what nobody will name is named in the log when its server comes") {
  Cluster cluster(2);
  cluster.server(1, {StoredJob{JobId(4711), "forgotten", 0, stopped_at(30).stored[0].snapshots}});
  CHECK(std::ranges::any_of(cluster.logged, [](const std::string& line) {
    return contains(line, "job remove forgotten") && contains(line, "round 30");
  }));
}

TEST_CASE("a job is removed with its record and with what servers have of it, unless it is in use") {
  const Stopped before = stopped_at(20);
  Cluster cluster(2, before.records, 8);
  cluster.registry[before.records[0].job.value] = before.records[0];
  cluster.server(0, before.stored);
  cluster.worker(0);
  CHECK(cluster.remove_job("mnist").error().code == ErrorCode::kUnavailable);  // server 1 is not there
  cluster.server(1, before.stored);
  CHECK(cluster.remove_job("mnits").error().code == ErrorCode::kUnknownJob);
  SUBCASE("in use") {
    cluster.run(1);
    CHECK(cluster.remove_job("mnist").error().message.find("in use") != std::string::npos);
  }
  SUBCASE("the registry's disk is full") {
    cluster.save_fails = true;
    CHECK(cluster.remove_job("mnist"));
    CHECK(cluster.count<DropCheckpoint>() == 0);
    REQUIRE(cluster.errors.size() == 1);
    CHECK(contains(cluster.errors[0], "the disk is full; what there is of it stays"));
    cluster.save_fails = false;
    cluster.join(0, {});
    CHECK(cluster.open().resume_round == Round(20));
  }
  SUBCASE("while the disk takes its time nobody has a part in it") {
    cluster.disk_stands = true;
    REQUIRE(cluster.remove_job("mnist"));
    CHECK(cluster.count<DropCheckpoint>() == 0);
    cluster.sent.clear();
    cluster.join(0, {});
    check_error(cluster, worker_peer(0), ErrorCode::kUnavailable, {"is being removed"});
    cluster.disk_goes_on();
    CHECK(cluster.count<DropCheckpoint>() == 2);
  }
  SUBCASE("stopped") {
    REQUIRE(cluster.remove_job("mnist"));
    CHECK(cluster.registry.empty());
    CHECK(cluster.count<DropCheckpoint>() == 2);
    const JobId removed = cluster.only<DropCheckpoint>(server_peer(0))->job;
    cluster.join(0, {});
    CHECK_FALSE(cluster.open().resume);
    CHECK(cluster.open().view == ViewId(1));
    CHECK(cluster.open().job != removed);  // servers may not have dropped that yet
  }
}

TEST_CASE("a job that a server's store has no place for is refused with words") {
  Cluster cluster(1);
  std::vector<StoredJob> stored;
  for (std::uint64_t id = 1; id <= kMaxJobs; ++id) stored.push_back({JobId(id), "over", 0, {Round(1)}});
  cluster.server(0, stored);
  cluster.worker(0);
  cluster.join(0, {});
  CHECK_FALSE(cluster.last_open);
  check_error(cluster, worker_peer(0), ErrorCode::kLimit, {"server 0's store has", "65536", "tributary job remove"});
  stored.pop_back();
  cluster.server(0, stored);
  cluster.join(0, {});
  CHECK(cluster.last_open);
}

TEST_CASE("a training that never got to a snapshot is known until no server has anything of it") {
  TrainingCluster cluster(1);
  const JobId id = cluster.open().job;
  Cluster again(2, cluster.records(), 8);
  again.registry = cluster.registry;
  again.everybody(1);
  const std::vector<StoredJob> part{StoredJob{id, "mnist", 0, stopped_at(9).stored[0].snapshots}};
  again.server(1, part);  // a part, which nobody can go on from
  again.sent.clear();
  JoinOptions changed;
  changed.config.optimizer.lr = 0.5;
  again.join(0, changed);
  REQUIRE(again.last_open);
  CHECK(again.open().job != id);
  CHECK(required(again.only<DropCheckpoint>(server_peer(1))).job == id);
  CHECK(again.registry.contains(id.value));
  SUBCASE("the server could not drop it: the job opens again") {
    Cluster third(2, again.records(), 9);
    third.everybody(1);
    third.server(1, part);
    third.sent.clear();
    third.join(0, changed);
    REQUIRE(third.last_open);
    CHECK(third.count<ControlError>() == 0);
    CHECK(third.only<DropCheckpoint>(server_peer(1)));
  }
  SUBCASE("it has") {
    Cluster third(2, again.records(), 9);
    third.registry = again.registry;
    third.everybody(1);
    third.join(0, changed);
    REQUIRE(third.last_open);
    CHECK_FALSE(third.registry.contains(id.value));
  }
}

}  // namespace tributary::coordinator_progress_test
