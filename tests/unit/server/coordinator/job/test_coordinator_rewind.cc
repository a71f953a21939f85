// CoordinatorCore: membership.on_state_lost = "rewind": no state of servers without a state of ranks.
#include <doctest/doctest.h>

#include "tests/unit/expect.h"
#include "tests/unit/required.h"
#include "tests/unit/server/coordinator/large_states.h"

namespace tributary::coordinator_rewind_test {

using namespace testing;

namespace {

// Trains until a snapshot is named. Its round.
std::uint64_t named_snapshot(Cluster& cluster, std::uint32_t workers, std::uint64_t from = 10) {
  cluster.sent.clear();
  for (std::uint64_t version = from; version < from + 200; version += 10) {
    cluster.pass(1000, workers, {}, version);
    const auto named = cluster.to<SnapshotAt>(server_peer(0));
    if (!named.empty()) return named[0].round.value;
  }
  return 0;
}

bool warned_of(const Cluster& cluster, const std::string& what) {
  return std::ranges::any_of(cluster.warnings, [&](const std::string& line) { return contains(line, what); });
}

JoinOptions rewinding_with_snapshots() {
  JoinOptions options = with_snapshots(1, 0);
  options.config.membership.on_state_lost = OnStateLost::kRewind;
  return options;
}

}  // namespace

TEST_CASE("nodes that do not agree on on_state_lost are not one job") {
  FullCluster cluster({.workers = 2});
  JoinOptions options = rewinding();
  options.nodes = 2;
  cluster.join(0, options);
  options = {};
  options.nodes = 2;
  options.node = 1;
  cluster.join(1, options);
  check_error(cluster, worker_peer(1), ErrorCode::kConfigMismatch, {"on_state_lost = \"rewind\"", "\"continue\""});
}

TEST_CASE("a snapshot is committed when a whole state of its round is there, with its large part") {
  TrainingCluster cluster({.workers = 2}, rewinding_with_snapshots());
  const std::uint64_t round = named_snapshot(cluster, 2);
  REQUIRE(round != 0);
  give(cluster, 0, round, StateHead{{}, false}.before(bytes_of("not whole")));
  cluster.all_done(round);
  CHECK(cluster.job().record.committed == Round(0));
  const LargeState large = large_state('a');
  give(cluster, 1, round, large.state);
  CHECK(cluster.job().record.committed == Round(0));
  deliver(cluster, 1, large);
  CHECK(cluster.job().record.committed == Round(round));
  CHECK(cluster.only<SnapshotCommit>(worker_peer(0)));
  CHECK(cluster.registry.begin()->second.rank_states.size() == 2);
}

TEST_CASE("a state that is there before the snapshot is written holds nothing up") {
  TrainingCluster cluster({.workers = 1}, rewinding_with_snapshots());
  const std::uint64_t round = named_snapshot(cluster, 1);
  give(cluster, 0, round, bytes_of("whole"));
  cluster.all_done(round);
  CHECK(cluster.job().record.committed == Round(round));
}

TEST_CASE("a state that never comes: the snapshot is given up, and the next one named") {
  TrainingCluster cluster({.workers = 1}, rewinding_with_snapshots());
  const std::uint64_t round = named_snapshot(cluster, 1);
  cluster.all_done(round);
  cluster.pass(AwaitedState::kPatienceMs / 2, 1, {}, round + 1);
  CHECK(cluster.job().not_saved.empty());
  cluster.pass(AwaitedState::kPatienceMs, 1, {}, round + 1);
  CHECK(contains(cluster.job().not_saved, "no rank's whole state of round"));
  CHECK(cluster.job().record.committed == Round(0));
  const std::uint64_t next = cluster.to<SnapshotAt>(server_peer(0)).back().round.value;
  CHECK(next > round);
  give(cluster, 0, next, bytes_of("whole"));
  cluster.all_done(next);
  CHECK(cluster.job().record.committed == Round(next));
  CHECK(cluster.job().not_saved.empty());
}

TEST_CASE("the wait for a large part lasts as long as it gets on") {
  TrainingCluster cluster({.workers = 1}, rewinding_with_snapshots());
  const std::uint64_t round = named_snapshot(cluster, 1);
  const LargeState large = large_state('a', 6 * kPartBytes);
  give(cluster, 0, round, large.state);
  cluster.all_done(round);
  for (std::uint64_t piece = 0; piece < 6; ++piece) {
    cluster.pass(PartFetch::kPatienceMs - 2000, 1, {}, round + 1);
    CHECK(cluster.job().record.committed == Round(0));
    cluster.say(worker_peer(0),
                StatePart{{cluster.open().job, large.large, piece * kPartBytes}, large.piece(piece * kPartBytes)});
  }
  CHECK(cluster.job().record.committed == Round(round));
}

TEST_CASE("a stop waits for it as well") {
  TrainingCluster cluster({.workers = 1}, rewinding());
  const LargeState large = large_state('a');
  SUBCASE("it comes") {
    cluster.stop_at(0, 40);
    CHECK(cluster.phase() == "stopping");
    give(cluster, 0, 40, large.state);
    CHECK(cluster.phase() == "stopping");
    deliver(cluster, 0, large);
    CHECK(cluster.phase() == "idle");
    CHECK(cluster.only<SnapshotDone>(worker_peer(0))->ok);
    CHECK(cluster.job().record.committed == Round(40));
  }
  SUBCASE("it never comes") {
    cluster.stop_at(0, 40);
    cluster.pass(AwaitedState::kPatienceMs + 2000, 1, {}, 40);
    CHECK(cluster.phase() == "idle");
    const auto outcome = required(cluster.only<SnapshotDone>(worker_peer(0)));
    CHECK_FALSE(outcome.ok);
    CHECK(contains(outcome.message, "no rank's whole state of round 40"));
    CHECK(cluster.job().record.committed == Round(0));
  }
  SUBCASE("it is there already") {
    give(cluster, 0, 40, large.state);
    deliver(cluster, 0, large);
    cluster.stop_at(0, 40);
    CHECK(cluster.job().record.committed == Round(40));
  }
}

TEST_CASE("a stop where the view began is saved with what it began with") {
  TrainingCluster cluster({.workers = 1}, rewinding());
  give(cluster, 0, 40, bytes_of("whole"));
  cluster.stop_at(0, 40);
  cluster.run(1, rewinding());
  cluster.stop_at(0, 40);
  CHECK(cluster.phase() == "idle");
  CHECK(cluster.job().not_saved.empty());
  CHECK(cluster.registry.begin()->second.rank_states.size() == 1);
}

namespace {

// Stopped at round 40 with a whole state, then again in a view that servers have in memory at round 50.
ViewStart restarted_at_50(Cluster& cluster, bool lives, bool held, bool gives) {
  cluster.run(1, rewinding());
  give(cluster, 0, 40, bytes_of("of 40"));
  cluster.stop_at(0, 40);
  cluster.run(1, rewinding());
  if (gives) give(cluster, 0, 50, bytes_of("of 50"));
  for (std::uint16_t i = 0; i < 2; ++i) cluster.keep(i, 50, 50);
  cluster.leave(0, LeaveKind::kFailed, 50, "a trainer died");
  JoinJob join = cluster.join_of(rewinding());
  join.held_job = cluster.open().job;
  if (lives) join.living = {0};
  if (held) {
    join.held_rounds = {Round(50)};
    join.held_ranks = {1};
  }
  cluster.say(worker_peer(0), join);
  cluster.all_ready();
  const auto welcome = required(cluster.only<JobWelcome>(worker_peer(0)));
  ViewStart start;
  start.round = welcome.resume_round;
  return start;
}

}  // namespace

TEST_CASE("a view begins where somebody has what ranks kept, else at the snapshot") {
  FullCluster cluster({.workers = 1});
  SUBCASE("a rank lived") {
    CHECK(restarted_at_50(cluster, true, false, false).round == Round(50));
  }
  SUBCASE("its worker holds it") {
    CHECK(restarted_at_50(cluster, false, true, false).round == Round(50));
  }
  SUBCASE("it was given") {
    CHECK(restarted_at_50(cluster, false, false, true).round == Round(50));
  }
  SUBCASE("it is lost") {
    CHECK(restarted_at_50(cluster, false, false, false).round == Round(40));
    CHECK(cluster.only<JobWelcome>(worker_peer(0))->first_state == bytes_of("of 40"));
    CHECK(warned_of(cluster, "goes back to the snapshot of round 40"));
  }
}

TEST_CASE("before its first snapshot it goes back to its beginning") {
  TrainingCluster cluster({.workers = 1}, rewinding());
  for (std::uint16_t i = 0; i < 2; ++i) cluster.keep(i, 5, 5);
  cluster.leave(0, LeaveKind::kFailed, 5, "a trainer died");
  cluster.join(0, rewinding());
  cluster.all_ready();
  const auto welcome = required(cluster.only<JobWelcome>(worker_peer(0)));
  CHECK_FALSE(welcome.resume);
  CHECK(welcome.giver == 0);
}

TEST_CASE("where the last snapshot has lost it, the job is not begun, and says what would help") {
  TrainingCluster before({.workers = 1}, rewinding());
  const LargeState large = large_state('a');
  give(before, 0, 40, large.state);
  deliver(before, 0, large);
  before.stop_at(0, 40);
  Cluster cluster(2, before.records(), 8);  // without its parts
  restarted(cluster, {StoredJob{before.open().job, "mnist", 0, {Round(40)}}});
  cluster.join(0, rewinding());
  check_error(cluster, worker_peer(0), ErrorCode::kStore,
              {"round 40", "on_state_lost", "checkpoint restore", "--fresh"});
  cluster.sent.clear();
  JoinOptions options = rewinding();
  SUBCASE("a rank that lived has it") {
    JoinJob join = cluster.join_of(options);
    join.held_job = before.open().job;
    join.living = {1};
    cluster.say(worker_peer(0), join);
    cluster.all_ready();
    CHECK(cluster.only<JobWelcome>(worker_peer(0))->giver == 1);
  }
  SUBCASE("it goes on without") {
    options.config.membership.on_state_lost = OnStateLost::kContinue;
    cluster.join(0, options);
    cluster.all_ready();
    CHECK(cluster.only<JobWelcome>(worker_peer(0))->giver == kNobody);
  }
}

TEST_CASE("a snapshot that never had what ranks kept is gone on from without") {
  TrainingCluster before(1);
  before.stop_at(0, 40);
  Cluster cluster(2, before.records(), 8);
  restarted(cluster, {StoredJob{before.open().job, "mnist", 0, {Round(40)}}});
  cluster.run(1, rewinding());
  CHECK(cluster.open().resume_round == Round(40));
  CHECK(warned_of(cluster, "never had it"));
  // It ends where it began: what is committed stands.
  cluster.leave(0, LeaveKind::kFinished, 40);
  cluster.all_done(40);
  CHECK(cluster.phase() == "idle");
  CHECK(cluster.job().not_saved.empty());
}

TEST_CASE("a snapshot that is complete and was not committed is none") {
  TrainingCluster before({.workers = 1}, rewinding());
  give(before, 0, 40, bytes_of("of 40"));
  before.stop_at(0, 40);
  Cluster cluster(2, before.records(), 8);
  restarted(cluster, {StoredJob{before.open().job, "mnist", 0, {Round(40), Round(60)}}});
  cluster.run(1, rewinding());
  CHECK(cluster.open().resume_round == Round(40));
}

}  // namespace tributary::coordinator_rewind_test
