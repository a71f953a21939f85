// Copies of the registry on servers, and a coordinator that has lost it (docs/recovery.md, "The registry").
#include "server/coordinator/cluster/job_record_seal.h"
#include "tests/unit/expect.h"
#include "tests/unit/required.h"
#include "tests/unit/server/coordinator/known_records.h"

namespace tributary::coordinator_registry_test {
namespace {

using namespace testing;

using records::copy_of;

JobRecord record_in(const JobRecordCopy& copy) {
  return required(records::record_in(copy, "the copy"));
}

struct Searching : ClusterWithCopies {
  explicit Searching(std::uint16_t servers = 3, std::vector<JobRecord> begun = {})
      : ClusterWithCopies(servers, std::move(begun)) {}
  // The job that the only question is about, and whom it goes to.
  std::pair<std::uint16_t, std::uint64_t> asked() {
    std::vector<std::pair<std::uint16_t, std::uint64_t>> questions;
    for (const auto& [to, message] : sent) {
      const auto* want = std::get_if<WantRecord>(&message);
      if (want) questions.emplace_back(static_cast<std::uint16_t>(to.value - server_peer(0).value), want->job.value);
    }
    sent.clear();
    return questions.size() == 1 ? questions[0] : std::pair<std::uint16_t, std::uint64_t>(99, questions.size());
  }
  bool asks_nobody() { return asked() == std::pair<std::uint16_t, std::uint64_t>(99, 0); }
};

using Question = std::pair<std::uint16_t, std::uint64_t>;

}  // namespace

TEST_CASE("servers but server 0 get a copy of the record before a view opens, and before a snapshot counts") {
  FullCluster cluster({.workers = 1, .servers = 3});
  JoinOptions options;
  options.config.snapshot.every_rounds = 5;
  cluster.join(0, options);
  const auto before = [&](PeerId peer, auto what) {
    std::optional<JobRecordCopy> copy;
    for (const auto& [to, message] : cluster.sent) {
      if (to != peer) continue;
      if (const auto* m = std::get_if<JobRecordCopy>(&message)) copy = *m;
      if (std::holds_alternative<decltype(what)>(message)) return copy;
    }
    return std::optional<JobRecordCopy>();
  };
  std::uint64_t edition = 0;
  for (const std::uint16_t server : {1, 2}) {
    const auto copy = required(before(server_peer(server), OpenJob{}));
    CHECK(copy.job == cluster.open().job);
    CHECK(record_in(copy).view == cluster.open().view);
    CHECK(record_in(copy).owners == cluster.open().owners);
    edition = record_in(copy).edition;
  }
  CHECK(cluster.to<JobRecordCopy>(server_peer(0)).empty());
  cluster.all_ready();
  cluster.pass(20'000, 1, {}, 3);
  const auto at = only_one(cluster.to<SnapshotAt>(server_peer(0)));
  cluster.sent.clear();
  cluster.all_done(at.round.value);
  const auto copy = required(before(server_peer(2), SnapshotCommit{}));
  CHECK(record_in(copy).edition > edition);
  CHECK(record_in(copy).committed == at.round);
  CHECK(cluster.to<JobRecordCopy>(server_peer(0)).empty());
}

TEST_CASE("a server that lacks copies gets them after a while, and until it has acknowledged them") {
  const JobRecord first = known(5, 10), second = known(9, 20, 40, "other");
  Searching cluster(2, {first, second});
  cluster.server_with(0, {});
  cluster.server_with(1, {{JobId(30), 5}, {JobId(40), 8}});
  cluster.pass(1000, 0);
  const auto copy = only_one(cluster.to<JobRecordCopy>(server_peer(1)));
  CHECK(copy.job == JobId(40));
  CHECK(record_in(copy).edition == 9);
  cluster.sent.clear();
  cluster.pass(9000, 0);
  CHECK(cluster.to<JobRecordCopy>(server_peer(1)).empty());
  cluster.pass(2000, 0);
  CHECK(cluster.to<JobRecordCopy>(server_peer(1)).size() == 1);
  cluster.say(server_peer(1), HeldRecord{JobId(40), 9});
  cluster.sent.clear();
  cluster.pass(30'000, 0);
  CHECK(cluster.to<JobRecordCopy>(server_peer(1)).empty());
  CHECK(cluster.to<JobRecordCopy>(server_peer(0)).empty());
  // Another process on an empty disk.
  ServerHello hello = cluster.hello_of(1);
  hello.incarnation = 77;
  cluster.pass(20'000, 0, {server_peer(1)});
  cluster.say(PeerId(7777), hello);
  cluster.sent.clear();
  cluster.tick(cluster.now + 1000);
  CHECK(cluster.to<JobRecordCopy>(PeerId(7777)).size() == 2);
}

TEST_CASE("a registry that is lost comes from the servers: of each job the newest copy") {
  Searching cluster;
  const JobRecord old = known(4, 10), newer = known(5, 20), other = known(2, 7, 40, "other");
  cluster.server_with(0, {});
  cluster.server_with(1, {{JobId(30), 4}, {JobId(40), 2}});
  CHECK(cluster.asks_nobody());  // server 2 may have newer ones
  cluster.worker(0);
  cluster.join(0, {});
  cluster.server_with(2, {{JobId(30), 5}});
  CHECK(cluster.asked() == Question(2, 30));
  CHECK(contains(cluster.job().waiting_for, "newer copies"));
  cluster.say(server_peer(1), copy_of(old));  // nobody asked
  CHECK(cluster.asks_nobody());
  cluster.say(server_peer(2), copy_of(newer));
  CHECK(cluster.asked() == Question(1, 40));
  CHECK_FALSE(cluster.adopted);
  cluster.say(server_peer(1), copy_of(other));
  REQUIRE(cluster.adopted);
  REQUIRE(cluster.adopted->size() == 2);
  CHECK((*cluster.adopted)[0].committed == Round(20));
  CHECK((*cluster.adopted)[0].edition > newer.edition + 1000);  // than that of any record that was lost
  CHECK((*cluster.adopted)[1].job == JobId(40));
  CHECK_FALSE(cluster.last_open);
  // Nothing begins until it begins anew with them; what cannot be saved is tried again.
  cluster.adopted.reset();
  cluster.pass(3000, 0);
  CHECK_FALSE(cluster.adopted);
  cluster.core.not_adopted({ErrorCode::kStore, "the disk is full"});
  CHECK(contains(cluster.errors.back(), "the disk is full"));
  cluster.pass(2000, 0);
  REQUIRE(cluster.adopted);
  CHECK(cluster.adopted->size() == 2);
  CHECK_FALSE(cluster.last_open);
}

TEST_CASE("a registry that is older than its copies, as a disk of last week's, gets those of jobs that it knows") {
  const JobRecord old = known(4, 10);
  Searching cluster(2, {old});
  cluster.server_with(0, {});
  SUBCASE("a newer one") {
    cluster.server_with(1, {{JobId(30), 6}, {JobId(99), 3}});
    CHECK(cluster.asked() == Question(1, 30));
    cluster.say(server_peer(1), copy_of(known(6, 30)));
    REQUIRE(cluster.adopted);
    REQUIRE(cluster.adopted->size() == 1);
    CHECK((*cluster.adopted)[0].committed == Round(30));
  }
  SUBCASE("not the same") {
    cluster.server_with(1, {{JobId(30), 4}});
    CHECK(cluster.asks_nobody());
    cluster.worker(0);
    cluster.join(0, {});
    CHECK_FALSE(cluster.to<ControlError>(worker_peer(0)).empty());  // the search is over: the snapshot is missed
  }
}

TEST_CASE("in a cluster of which nobody has records jobs begin when all servers are there") {
  Searching cluster;
  cluster.worker(0);
  cluster.server_with(0, {});
  cluster.server_with(1, {});
  cluster.join(0, {});
  CHECK_FALSE(cluster.last_open);
  cluster.server_with(2, {});
  CHECK(cluster.last_open);
  CHECK_FALSE(cluster.adopted);
}

TEST_CASE("a question is repeated, and goes to a server that is back, or to another one") {
  Searching cluster;
  cluster.server_with(0, {});
  cluster.server_with(1, {{JobId(30), 4}});
  cluster.server_with(2, {{JobId(30), 4}});
  CHECK(cluster.asked() == Question(1, 30));
  cluster.pass(12'000, 0);
  CHECK(cluster.asked() == Question(1, 30));
  cluster.pass(20'000, 0, {server_peer(1)});
  cluster.sent.clear();
  cluster.pass(20'000, 0, {server_peer(1)});
  CHECK(cluster.asks_nobody());
  SUBCASE("with it") {
    cluster.server_with(1, {{JobId(30), 4}});
  }
  SUBCASE("without") {
    cluster.server_with(1, {});
  }
  const auto [server, job] = cluster.asked();
  CHECK(job == 30);
  cluster.say(server_peer(server), copy_of(known(4, 9)));
  REQUIRE(cluster.adopted);
}

TEST_CASE("a copy that cannot be read is left out for an older one") {
  Searching cluster;
  cluster.server_with(0, {});
  cluster.server_with(1, {{JobId(30), 6}});
  cluster.server_with(2, {{JobId(30), 5}});
  CHECK(cluster.asked() == Question(1, 30));
  JobRecordCopy damaged = copy_of(known(6, 9));
  SUBCASE("damaged") {
    damaged.record.back() ^= std::byte{1};
  }
  SUBCASE("the server cannot read it, which may pass") {
    damaged.record.clear();
    for (int i = 0; i < 2; ++i) {
      cluster.say(server_peer(1), damaged);
      cluster.pass(12'000, 0);
      CHECK(cluster.asked() == Question(1, 30));
    }
  }
  SUBCASE("of another job") {
    damaged = copy_of(known(6, 9, 31));
    damaged.job = JobId(30);
  }
  cluster.say(server_peer(1), damaged);
  REQUIRE_FALSE(cluster.warnings.empty());
  CHECK(contains(cluster.warnings.back(), "server 1's copy of the record of job id 30 is"));
  CHECK(cluster.asked() == Question(2, 30));
  cluster.say(server_peer(2), copy_of(known(5, 8)));
  REQUIRE(cluster.adopted);
  CHECK((*cluster.adopted)[0].committed == Round(8));
}

TEST_CASE("a copy that is older than the job's first snapshot does not let it begin anew") {
  const std::vector<StoredJob> first = {{JobId(30), "mnist", 1, {Round(8)}}},
                               more = {{JobId(30), "mnist", 1, {Round(8), Round(16)}}};
  Searching cluster;
  cluster.server_with(0, {});
  cluster.server_with(1, {{JobId(30), 1}}, first);
  cluster.server_with(2, {}, more);
  cluster.say(server_peer(1), copy_of(known(1, 0)));
  REQUIRE(cluster.adopted);
  CHECK((*cluster.adopted)[0].committed == Round(8));  // that both have
  Searching after(3, *cluster.adopted);
  after.server_with(0, {});
  after.server_with(1, {}, first);
  after.server_with(2, {}, more);
  after.worker(0);
  after.join(0, {});
  CHECK_FALSE(after.last_open);
  const auto refused = only_one(after.to<ControlError>(worker_peer(0)));
  CHECK(refused.code == ErrorCode::kStore);
  CHECK(contains(refused.message, "server 0"));
  CHECK(contains(refused.message, "round 8"));
}

TEST_CASE("a copy that is older than the commit takes the newest round of which there is a copy of server 0's part") {
  const StoredJob own{JobId(30), "mnist", 1, {Round(8), Round(16)}};
  StoredJob copy{JobId(30), "mnist", 1, {Round(8)}};
  copy.copy_of = ShardIndex(0);
  Searching cluster;
  cluster.server_with(0, {});
  cluster.server_with(1, {{JobId(30), 1}}, {copy, own});
  cluster.server_with(2, {}, {own});
  cluster.say(server_peer(1), copy_of(known(1, 0)));
  REQUIRE(cluster.adopted);
  CHECK((*cluster.adopted)[0].committed == Round(8));
}

TEST_CASE("where a snapshot counts only with what ranks kept, one that no record has does not count") {
  Searching cluster;
  cluster.server_with(0, {});
  cluster.server_with(1, {{JobId(30), 1}}, {{JobId(30), "mnist", 1, {Round(8)}}});
  cluster.server_with(2, {}, {{JobId(30), "mnist", 1, {Round(8)}}});
  JobRecord record = known(1, 0);
  JobConfig config = *job_from_json(record.job_json);
  config.membership.on_state_lost = OnStateLost::kRewind;
  record.job_json = to_canonical_json(config);
  cluster.say(server_peer(1), copy_of(record));
  REQUIRE(cluster.adopted);
  CHECK_FALSE((*cluster.adopted)[0].initialised);
}

TEST_CASE("a record that gets a newer round than it had gets nothing that ranks kept with the older one") {
  Searching cluster;
  JobRecord record = known(1, 4);
  record.rank_states[RankKey{0, 0}] = {std::byte{7}};
  cluster.server_with(0, {});
  cluster.server_with(1, {{JobId(30), 1}}, {{JobId(30), "mnist", 1, {Round(8)}}});
  cluster.server_with(2, {}, {{JobId(30), "mnist", 1, {Round(8)}}});
  cluster.say(server_peer(1), copy_of(record));
  REQUIRE(cluster.adopted);
  CHECK((*cluster.adopted)[0].committed == Round(8));
  CHECK((*cluster.adopted)[0].rank_states.empty());
}

TEST_CASE("of two records with one name the one with progress counts, whatever the views") {
  JobRecord left = known(9, 0, 30);
  left.view = ViewId(50);
  Searching cluster(2, {left, known(2, 7, 40)});
  CHECK(cluster.record().job == JobId(40));
}

TEST_CASE("while newer records are looked for, no job is removed or restored; workers are not heard") {
  Searching cluster(2);
  cluster.server_with(0, {});
  cluster.server_with(1, {{JobId(30), 4}});
  cluster.worker(0);
  const auto removed = failure_of(cluster.remove_job("mnist"));
  CHECK(removed.code == ErrorCode::kUnavailable);
  cluster.say(worker_peer(0), copy_of(known(4, 9)));
  CHECK_FALSE(cluster.adopted);
}

TEST_CASE("an all-reduce job does not wait for servers' copies") {
  Searching cluster(2);
  cluster.server_with(0, {});
  cluster.server_with(1, {{JobId(30), 4}});
  cluster.worker(0);
  JoinOptions options;
  options.job = "ring";
  options.config.mode = Mode::kAllreduce;
  cluster.join(0, options);
  CHECK(cluster.only<JobWelcome>(worker_peer(0)));
  CHECK(cluster.count<JobRecordCopy>() == 0);  // it has none
  // A process that begins in the middle of that knows only this job, and looks for the others.
  Searching again(2, cluster.records());
  again.server_with(0, {});
  again.server_with(1, {{JobId(30), 4}});
  CHECK(again.asked() == Question(1, 30));
}

TEST_CASE("a server that was thought lost, and says hello again, has said again what it has") {
  Searching cluster(3, {known(4, 10)});
  cluster.server_with(0, {});
  cluster.server_with(1, {{JobId(30), 6}});
  cluster.pass(20'000, 0, {server_peer(1)});
  cluster.server_with(1, {{JobId(30), 6}});
  cluster.sent.clear();
  cluster.server_with(2, {});
  CHECK(cluster.asked() == Question(1, 30));
}

TEST_CASE("an order that leaves out a server which has yet to come does not end the search") {
  Searching cluster(2);
  cluster.server_with(0, {});
  const auto order = [&](const std::set<std::uint16_t>& without) {
    return cluster.core.deal_job("mnist", without, cluster.now).error().message;
  };
  CHECK(order({0, 1}).find("no server would be left") == 0);
  CHECK_FALSE(order({1}).empty());
  cluster.pass(2000, 0);
  cluster.server_with(1, {{JobId(30), 6}});
  CHECK(cluster.asked() == Question(1, 30));
}

TEST_CASE("a copy that names a round that is nowhere any more takes the round that servers have in common") {
  Searching cluster(2);
  cluster.server_with(0, {});
  cluster.server_with(1, {{JobId(30), 4}}, {{JobId(30), "mnist", 1, {Round(20)}}});
  cluster.say(server_peer(1), copy_of(known(4, 10)));
  REQUIRE(cluster.adopted);
  CHECK((*cluster.adopted)[0].committed == Round(20));
}

TEST_CASE("what is removed goes on all servers, with the copies") {
  TrainingCluster cluster(1);
  const JobId job = cluster.open().job;
  cluster.leave(0, LeaveKind::kFinished, 3);
  cluster.all_done(3);
  cluster.sent.clear();
  REQUIRE(cluster.remove_job("mnist"));
  for (const std::uint16_t server : {0, 1}) {
    const auto dropped = only_one(cluster.to<DropCheckpoint>(server_peer(server)));
    CHECK(dropped.job == job);
  }
}

}  // namespace tributary::coordinator_registry_test
