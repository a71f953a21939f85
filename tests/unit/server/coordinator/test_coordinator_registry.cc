// Copies of the registry on servers, and a coordinator that has lost it (docs/recovery.md, "The registry").
#include "server/coordinator/cluster/job_record_seal.h"
#include "server/coordinator/cluster/registry_search.h"
#include "tests/unit/server/coordinator/coordinator_fixture.h"

namespace tributary::coordinator_registry_test {
namespace {

using namespace testing;

JobRecordCopy copy_of(const JobRecord& record) {
  const std::string sealed = records::seal(record);
  const auto bytes = std::as_bytes(std::span(sealed));
  return {record.job, {bytes.begin(), bytes.end()}};
}

JobRecord record_in(const JobRecordCopy& copy) {
  const std::string_view bytes(reinterpret_cast<const char*>(copy.record.data()), copy.record.size());
  const Result<JobRecord> record = records::unseal_job(bytes, "the copy");
  REQUIRE_MESSAGE(record.has_value(), record.error().message);
  return *record;
}

// As a job's that has run on two servers.
JobRecord known(std::uint32_t view, std::uint64_t committed, std::uint64_t job = 30) {
  Cluster cluster;
  cluster.everybody(1);
  cluster.run(1);
  JobRecord record = cluster.record();
  record.job = JobId(job);
  record.view = ViewId(view);
  record.committed = Round(committed);
  record.initialised = committed != 0;
  return record;
}

struct Searching : Cluster {
  explicit Searching(std::uint16_t servers = 3) : Cluster(servers) {}
  void server_with(std::uint16_t index, bool records, std::vector<StoredJob> stored = {}) {
    ServerHello hello = hello_of(index);
    hello.records = records;
    hello.stored = std::move(stored);
    say(server_peer(index), hello);
  }
  std::optional<JobId> asked(std::uint16_t index) {
    const auto questions = to<WantRecord>(server_peer(index));
    sent.clear();
    return questions.empty() ? std::nullopt : std::optional(questions.back().after);
  }
};

}  // namespace

TEST_CASE("servers but server 0 get a copy of the record before a view opens, and before a snapshot counts") {
  Cluster cluster(3);
  cluster.everybody(1);
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
  CHECK(cluster.to<JobRecordCopy>(server_peer(0)).empty());
  for (const std::uint16_t server : {1, 2}) {
    const auto copy = before(server_peer(server), OpenJob{});
    REQUIRE(copy);
    CHECK(copy->job == cluster.open().job);
    CHECK(record_in(*copy).view == cluster.open().view);
    CHECK(record_in(*copy).owners == cluster.open().owners);
  }
  cluster.all_ready();
  cluster.pass(20'000, 1, {}, 3);
  const auto at = cluster.to<SnapshotAt>(server_peer(0));
  REQUIRE(at.size() == 1);
  cluster.sent.clear();
  cluster.all_done(at[0].round.value);
  const auto copy = before(server_peer(2), SnapshotCommit{});
  REQUIRE(copy);
  CHECK(record_in(*copy).committed == at[0].round);
  CHECK(cluster.to<JobRecordCopy>(server_peer(0)).empty());
}

TEST_CASE("an empty registry is looked for on all servers, and the newest record of each job counts") {
  Searching cluster;
  const JobRecord old = known(4, 20), newer = known(5, 10), other = known(2, 7, 40);
  cluster.server_with(0, false);
  cluster.server_with(1, true);
  CHECK(cluster.asked(1) == JobId(0));
  cluster.worker(0);
  cluster.join(0, {});
  cluster.server_with(2, true);
  CHECK(cluster.asked(2) == JobId(0));
  cluster.say(server_peer(1), copy_of(newer));
  CHECK(cluster.asked(1) == JobId(30));
  cluster.say(server_peer(1), copy_of(other));
  CHECK(cluster.asked(1) == JobId(40));
  cluster.say(server_peer(2), copy_of(old));
  CHECK(cluster.asked(2) == JobId(30));
  cluster.say(server_peer(2), copy_of(old));  // a repeated question was answered twice
  CHECK_FALSE(cluster.asked(2));
  cluster.say(server_peer(1), JobRecordCopy{});
  CHECK_FALSE(cluster.adopted);
  CHECK_FALSE(cluster.last_open);
  CHECK(cluster.job().waiting_for.find("registry in server 0's store is empty") != std::string::npos);
  cluster.say(server_peer(2), JobRecordCopy{});
  REQUIRE(cluster.adopted);
  REQUIRE(cluster.adopted->size() == 2);
  CHECK((*cluster.adopted)[0].view == ViewId(5));
  CHECK((*cluster.adopted)[0].committed == Round(10));
  CHECK((*cluster.adopted)[1].job == JobId(40));
  // Until it begins anew with them, nothing begins.
  cluster.adopted.reset();
  cluster.tick(cluster.now + 5000);
  CHECK_FALSE(cluster.last_open);
  CHECK_FALSE(cluster.adopted);
}

TEST_CASE("in a cluster of which nobody has records jobs begin when all servers are there") {
  Searching cluster;
  cluster.worker(0);
  cluster.server_with(0, false);
  cluster.server_with(1, false);
  cluster.join(0, {});
  CHECK_FALSE(cluster.last_open);
  cluster.server_with(2, true);
  CHECK_FALSE(cluster.last_open);
  cluster.say(server_peer(2), JobRecordCopy{});
  CHECK(cluster.last_open);
  CHECK_FALSE(cluster.adopted);
}

TEST_CASE("a question is repeated, and a server that is lost is asked again when it is back") {
  Searching cluster(2);
  cluster.server_with(0, false);
  cluster.server_with(1, true);
  CHECK(cluster.asked(1) == JobId(0));
  cluster.pass(2000, 0);
  CHECK(cluster.asked(1) == JobId(0));
  cluster.pass(20'000, 0, {server_peer(1)});
  cluster.sent.clear();
  cluster.pass(20'000, 0, {server_peer(1)});
  CHECK_FALSE(cluster.asked(1));
  CHECK_FALSE(cluster.adopted);
  cluster.server_with(1, true);
  CHECK(cluster.asked(1) == JobId(0));
  cluster.say(server_peer(1), copy_of(known(3, 9)));
  cluster.say(server_peer(1), JobRecordCopy{});
  REQUIRE(cluster.adopted);
}

TEST_CASE("a damaged copy is left out") {
  Searching cluster(2);
  cluster.server_with(0, false);
  cluster.server_with(1, true);
  JobRecordCopy damaged = copy_of(known(3, 9));
  damaged.record.back() ^= std::byte{1};
  cluster.sent.clear();
  cluster.say(server_peer(1), damaged);
  CHECK(cluster.asked(1) == JobId(30));
  REQUIRE(!cluster.warnings.empty());
  CHECK(cluster.warnings.back().find("server 1's copy of the record of job id 30 is damaged") != std::string::npos);
  cluster.say(server_peer(1), copy_of(known(2, 5, 31)));
  cluster.say(server_peer(1), JobRecordCopy{});
  REQUIRE(cluster.adopted);
  REQUIRE(cluster.adopted->size() == 1);
  CHECK((*cluster.adopted)[0].job == JobId(31));
}

TEST_CASE("a copy that is older than the job's first snapshot does not let it begin anew") {
  Searching cluster(2);
  cluster.server_with(0, false);
  cluster.server_with(1, true, {{JobId(30), "mnist", 1, {Round(8)}}});
  cluster.say(server_peer(1), copy_of(known(1, 0)));
  cluster.say(server_peer(1), JobRecordCopy{});
  REQUIRE(cluster.adopted);
  REQUIRE(cluster.adopted->size() == 1);
  Cluster after(2, *cluster.adopted);
  after.server(0);
  after.server(1, {{JobId(30), "mnist", 1, {Round(8)}}});
  after.worker(0);
  after.join(0, {});
  CHECK_FALSE(after.last_open);
  const auto refused = after.to<ControlError>(worker_peer(0));
  REQUIRE(refused.size() == 1);
  CHECK(refused[0].code == ErrorCode::kStore);
  CHECK(refused[0].message.find("server 0") != std::string::npos);
  CHECK(refused[0].message.find("round 8") != std::string::npos);
}

TEST_CASE("while the registry is looked for, no job is removed or restored, and others than servers are not heard") {
  Searching cluster(2);
  cluster.server_with(0, false);
  cluster.server_with(1, true);
  cluster.worker(0);
  const auto removed = cluster.remove_job("mnist");
  REQUIRE_FALSE(removed);
  CHECK(removed.error().code == ErrorCode::kUnavailable);
  cluster.say(worker_peer(0), copy_of(known(3, 9)));
  cluster.say(worker_peer(0), JobRecordCopy{});
  CHECK_FALSE(cluster.adopted);
}

TEST_CASE("what is removed goes on all servers, with the copies") {
  Cluster cluster(2);
  cluster.everybody(1);
  cluster.run(1);
  const JobId job = cluster.open().job;
  cluster.leave(0, LeaveKind::kFinished, 3);
  cluster.all_done(3);
  cluster.sent.clear();
  REQUIRE(cluster.remove_job("mnist"));
  for (const std::uint16_t server : {0, 1}) {
    const auto drops = cluster.to<DropCheckpoint>(server_peer(server));
    REQUIRE(drops.size() == 1);
    CHECK(drops[0].job == job);
  }
}

}  // namespace tributary::coordinator_registry_test
