// A coordinator in another server than before (docs/failover.md).
#include "server/coordinator/cluster/job_record_seal.h"
#include "tests/unit/server/coordinator/known_records.h"
#include "tests/unit/server/coordinator/large_states.h"

namespace tributary::coordinator_moved_test {
namespace {

using namespace testing;

using records::copy_of;

CoordinatorOptions options_of(std::uint16_t servers, bool moved = true) {
  CoordinatorOptions options{servers, 9, kTimeoutMs, 9000};
  options.home = ShardIndex(1);
  options.moved = moved;
  options.term = Term(17);
  return options;
}

using Moved = ClusterWithCopies;

}  // namespace

TEST_CASE("a coordinator that has moved adopts its records with later editions and views, though none is newer") {
  Moved cluster(options_of(3), {known(5, 10, 30, "mnist", 3), known(6, 20, 40, "other", 3)});
  cluster.clock_ms = 1'800'000'000'000;
  cluster.server_with(0, {{JobId(30), 5}, {JobId(40), 6}});
  cluster.server_with(1, {});
  CHECK_FALSE(cluster.adopted);
  cluster.server_with(2, {{JobId(30), 5}, {JobId(40), 6}});
  REQUIRE(cluster.adopted);
  REQUIRE(cluster.adopted->size() == 2);
  for (const JobRecord& record : *cluster.adopted) {
    CHECK(record.edition >= cluster.clock_ms);
    CHECK(record.view >= ViewId(1'800'000'000));
  }
  CHECK((*cluster.adopted)[0].committed == Round(10));
}

TEST_CASE("a coordinator that has moved takes newer copies, and jobs that its own server has no record of") {
  Moved cluster(options_of(3), {known(5, 10, 30, "mnist", 3)});
  cluster.server_with(0, {{JobId(30), 7}, {JobId(40), 2}});
  cluster.server_with(1, {});
  cluster.server_with(2, {{JobId(30), 6}});
  REQUIRE(cluster.only<WantRecord>(server_peer(0))->job == JobId(30));
  cluster.sent.clear();
  cluster.say(server_peer(0), copy_of(known(7, 12, 30, "mnist", 3)));
  REQUIRE(cluster.only<WantRecord>(server_peer(0))->job == JobId(40));
  cluster.say(server_peer(0), copy_of(known(2, 8, 40, "other", 3)));
  REQUIRE(cluster.adopted);
  REQUIRE(cluster.adopted->size() == 2);
  CHECK((*cluster.adopted)[0].committed == Round(12));
  CHECK((*cluster.adopted)[1].job == JobId(40));
}

TEST_CASE("a coordinator that has moved does not wait again for a server that nobody has heard since long") {
  JoinOptions options;
  options.tensors = {{"w", {6'000'000}}};  // all servers have chunks
  options.config.membership.on_server_loss = OnLoss::kContinue;
  Cluster before(3);
  before.everybody(1);
  before.run(1, options);
  JobRecord record = before.record();
  record.initialised = true;
  record.committed = Round(10);
  CoordinatorOptions as = options_of(3);
  const std::uint64_t now = before.now;
  as.known = {.heard_ms = {{0, now - kTimeoutMs}, {1, now}}, .since_ms = now, .given_up = {}};
  const auto meet = [&](Moved& cluster) {
    for (const std::uint16_t index : {1, 2}) {
      ServerHello hello = cluster.hello_of(index);
      hello.copy_endpoint = "copies-" + std::to_string(index);
      hello.copies = {{record.job, record.edition}};
      hello.stored = {{record.job, "mnist", 0, {Round(10)}}};
      if (index == 1) hello.stored.push_back({record.job, "mnist", 0, {Round(10)}, ShardIndex(0)});
      cluster.say(server_peer(index), hello);
    }
    cluster.tick(cluster.now);
  };
  Moved cluster(as, {record});
  const auto adopts_at = [&](std::uint64_t heard_ms) {
    as.known.heard_ms[0] = heard_ms;
    Moved other(as, {record});
    meet(other);
    return other.adopted.has_value();
  };
  CHECK_FALSE(adopts_at(now - kTimeoutMs + 1));
  REQUIRE(adopts_at(now - kTimeoutMs));
  meet(cluster);
  const KnownServers known = cluster.core.known_servers();
  CHECK(known.heard_ms == std::map<std::uint16_t, std::uint64_t>{{0, now - kTimeoutMs}, {1, now}, {2, now}});
  // Nor does the one that comes after it, with what it has adopted.
  as.moved = false;
  as.known = known;
  as.known.heard_ms[0] = now - options.config.membership.rejoin_ms;
  Moved next(as, *cluster.adopted);
  meet(next);
  next.worker(0);
  options.nodes = 1;
  next.join(0, options);
  next.tick(next.now);
  CHECK(next.only<DealChunks>(server_peer(1)));
  CHECK(next.only<DealChunks>(server_peer(2)));
}

TEST_CASE("a coordinator that has moved and finds no job has an empty registry of its own") {
  Moved cluster(options_of(2), {});
  cluster.worker(0);
  cluster.join(0, {});
  cluster.server_with(0, {});
  CHECK_FALSE(cluster.adopted);
  cluster.server_with(1, {});
  REQUIRE(cluster.adopted);
  CHECK(cluster.adopted->empty());
  CHECK(cluster.to<OpenJob>(server_peer(0)).empty());  // before that is saved
}

TEST_CASE("of two records of one name the later one counts also after a move, whatever their ids") {
  JobRecord old = known(9, 50, 90), later = known(5, 10, 30);
  later.view = ViewId(old.view.value + 4);
  Moved cluster(options_of(2), {later});
  cluster.clock_ms = 1'800'000'000'000;
  cluster.server_with(0, {{JobId(90), 9}});
  cluster.server_with(1, {});
  cluster.say(server_peer(0), copy_of(old));
  REQUIRE(cluster.adopted);
  REQUIRE(cluster.adopted->size() == 2);
  CHECK((*cluster.adopted)[0].job == JobId(90));
  CHECK((*cluster.adopted)[1].view > (*cluster.adopted)[0].view);
}

TEST_CASE("a snapshot that a view began with before it had copies does not count while servers are away") {
  JobRecord record = known(5, 10);
  record.provisional = true;
  Moved cluster(options_of(2, false), {record});
  for (int s = 0; s < 30; ++s) cluster.tick(cluster.now += 1000);
  CHECK(cluster.registry.empty());  // nothing was saved
  cluster.server_with(0, {{JobId(30), 5}});
  cluster.server_with(1, {});
  for (int s = 0; s < 30; ++s) {
    cluster.beat_server(0);
    cluster.beat_server(1);
    cluster.tick(cluster.now += 1000);
  }
  CHECK(cluster.registry.empty());  // nobody has its parts
}

TEST_CASE("a record whose snapshot is not whole any more gets the newest one that is") {
  Moved cluster(options_of(2), {});
  const StoredJob own{JobId(30), "mnist", 0, {Round(10), Round(20)}};
  const StoredJob copy{JobId(30), "mnist", 0, {Round(20)}, ShardIndex(1)};
  cluster.server_with(0, {{JobId(30), 5}}, {own, copy});  // server 1 has lost its store
  cluster.server_with(1, {});
  cluster.say(server_peer(0), copy_of(known(5, 10)));
  REQUIRE(cluster.adopted);
  CHECK((*cluster.adopted)[0].committed == Round(20));
}

TEST_CASE("records are copied to all servers but the coordinator's own, which the hello's reply names by its term") {
  Moved cluster(options_of(3, false), {});
  cluster.everybody(1);
  CHECK(cluster.to<HelloReply>(server_peer(0)).back().term == Term(17));
  CHECK(cluster.to<HelloReply>(worker_peer(0)).back().term == Term(17));
  cluster.join(0, {});
  CHECK(cluster.to<JobRecordCopy>(server_peer(0)).size() == 1);
  CHECK(cluster.to<JobRecordCopy>(server_peer(1)).empty());
  CHECK(cluster.to<JobRecordCopy>(server_peer(2)).size() == 1);
}

TEST_CASE("large parts that another coordinator had ordered stay until all records are there") {
  const LargeState state = large_state('a');
  const LargePart large = state.large;
  PartsInMemory stored;
  for (const std::uint64_t job : {30, 99}) stored.parts[{JobId(job), large}].complete = true;
  Moved cluster(options_of(2), {}, std::move(stored));
  cluster.server_with(0, {{JobId(30), 7}});
  cluster.server_with(1, {});
  CHECK(cluster.parts.complete().size() == 2);
  // The record comes, and with it another core.
  JobRecord record = known(7, 12);
  record.rank_states[{0, 0}] = state.state;
  cluster.say(server_peer(0), copy_of(record));
  REQUIRE(cluster.adopted);
  CHECK(cluster.parts.complete().size() == 2);
  Moved next(options_of(2, false), *cluster.adopted, std::move(cluster.parts));
  next.server_with(0, {{JobId(30), 7}});
  next.server_with(1, {});
  CHECK(next.parts.complete().size() == 1);
  CHECK(next.parts.complete().contains(JobId(30)));
}

}  // namespace tributary::coordinator_moved_test
