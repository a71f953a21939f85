// Checkpoints of what servers have in memory, where a store is broken.
#include <doctest/doctest.h>

#include "tests/unit/required.h"
#include "tests/unit/server/coordinator/coordinator_fixture.h"

namespace tributary::testing::coordinator_broken_store_test {
namespace {

// A job of one node and two servers with a committed snapshot of round 20. Server 1's disk fails after that.
struct BrokenStore : Cluster {
  explicit BrokenStore(CheckpointConfig config = {}, JoinOptions options = with_snapshots(10, 0)) {
    options.config.checkpoint = std::move(config);
    everybody(1);
    run(1, options);
    all_done(next_snapshot().value);
  }
  Round next_snapshot() {
    sent.clear();
    for (int s = 0; s < 60 && count<SnapshotAt>() == 0; ++s) pass(1000, 1, {}, version += 2);
    const auto at = required(only<SnapshotAt>(worker_peer(0)));
    version = at.round.value;
    return at.round;
  }
  void fails(std::uint16_t server, Round round) {
    say(server_peer(server),
        SnapshotDone{open().job, open().view, round, false, 0, "store /disk: cannot write", ErrorCode::kStore});
  }
  void break_store() {
    const Round round = next_snapshot();
    REQUIRE(only<SnapshotAt>(server_peer(1)));
    done(0, round.value);
    fails(1, round);
    broken = true;
    sent.clear();
  }
  std::uint64_t order_save() {
    return required(core.save_checkpoint({"mnist", "/shared", "2030-01-02T03:04:05Z"}, now));
  }
  // The order to write a checkpoint; none: there is none within that time. A broken store refuses snapshots until then.
  std::optional<WriteCheckpoint> ordered_within(std::uint64_t ms) {
    for (; ms != 0 && count<WriteCheckpoint>() == 0; ms -= 1000) {
      pass(1000, 1, {}, version += trains ? 2 : 0);
      for (const SnapshotAt& at : to<SnapshotAt>(server_peer(1))) {
        if (at.round <= refused || !broken) continue;
        refused = at.round;
        version = std::max(version, at.round.value);
        fails(1, at.round);
      }
    }
    return only<WriteCheckpoint>(server_peer(1));
  }
  Round refused;
  bool broken = false;
  void answer(std::uint16_t server, std::uint64_t id, ErrorCode failure = ErrorCode::kInternal) {
    CheckpointDone done;
    done.operation = id;
    done.ok = failure == ErrorCode::kInternal;
    done.code = failure;
    done.message = done.ok ? "" : "lane 0 is past the round";
    done.bytes = 100u + server;
    done.checksum = std::string(32, static_cast<char>('a' + server));
    say(server_peer(server), done);
  }
  // All shards have written it, and server 0 seals it; returns its manifest.
  Manifest finish(std::uint64_t id) {
    answer(0, id);
    answer(1, id);
    const auto seal = required(only<SealCheckpoint>(server_peer(0)));
    const auto manifest = required(manifest_from_json(seal.manifest));
    answer(0, id);
    tick(now);
    return manifest;
  }
  // Training stops at a round that server 1 cannot write; all servers keep it in memory.
  Round stop() {
    trains = false;
    const Round last(version + 5);
    keep(0, last.value, last.value);
    keep(1, last.value, last.value);
    leave(0, LeaveKind::kStopped, last.value);
    sent.clear();
    done(0, last.value);
    fails(1, last);
    say_what_is_kept();
    CHECK(phase() == "idle");
    return last;
  }
  void server_1_loses_it() { say(server_peer(1), ShardKept{open().job, open().view, false, {}, {}}); }
  bool trains = true;
  std::uint64_t version = 10;
};

TEST_CASE("a save of a running job whose disk is broken is of a round that is named, and goes around the stores") {
  BrokenStore cluster;
  const Round committed = cluster.job().record.committed;
  cluster.break_store();
  const std::uint64_t id = cluster.order_save();
  const auto write = required(cluster.ordered_within(30'000));
  CHECK(write.operation == id);
  CHECK(write.view == cluster.open().view);
  CHECK(write.round > committed);
  CHECK(write.directory == "/shared/mnist-round-" + std::to_string(write.round.value) + ".partial");
  CHECK(cluster.only<WriteCheckpoint>(server_peer(0))->round == write.round);
  CHECK(cluster.to<SnapshotAt>(server_peer(0)).empty());
  CHECK(cluster.only<SnapshotAt>(worker_peer(0))->round == write.round);  // ranks give their states
  cluster.sent.clear();
  cluster.pass(30'000, 1, {}, cluster.version);
  CHECK(cluster.count<SnapshotAt>() == 0);  // one at a time
  const Manifest manifest = cluster.finish(id);
  CHECK(manifest.round == write.round);
  CHECK(manifest.shards.size() == 2);
  CHECK(cluster.core.checkpoint(id)->step == CheckpointStep::kDone);
  CHECK(cluster.job().record.committed == committed);  // no store has it
  // The store is tried again.
  const Round next = cluster.next_snapshot();
  CHECK(cluster.only<SnapshotAt>(server_peer(0))->round == next);
  cluster.all_done(next.value);
  CHECK(cluster.job().record.committed == next);
  cluster.sent.clear();
  cluster.order_save();
  CHECK(cluster.next_snapshot() > next);
  CHECK(cluster.only<SnapshotAt>(server_peer(0)));
}

TEST_CASE("a round that is over on some server before it is named is followed by another one") {
  BrokenStore cluster;
  cluster.break_store();
  const std::uint64_t id = cluster.order_save();
  const auto first = required(cluster.ordered_within(30'000));
  cluster.sent.clear();
  cluster.answer(1, first.operation, ErrorCode::kStopped);
  CHECK(cluster.only<DropCheckpoint>(server_peer(0))->directory == first.directory);
  CHECK(cluster.core.checkpoint(id)->step == CheckpointStep::kWaiting);
  cluster.sent.clear();
  cluster.break_store();  // which is tried again first
  const auto second = required(cluster.ordered_within(30'000));
  CHECK(second.round > first.round);
  // Words about the first attempt, however they end, say nothing about the second one.
  cluster.answer(0, first.operation);
  cluster.answer(0, first.operation, ErrorCode::kStopped);
  CHECK(cluster.core.checkpoint(id)->step == CheckpointStep::kWriting);
  CHECK(cluster.core.checkpoint(id)->awaited.size() == 2);
  cluster.finish(second.operation);
  CHECK(cluster.core.checkpoint(id)->step == CheckpointStep::kDone);
}

TEST_CASE("a save from memory waits for its round as long as the job takes") {
  BrokenStore cluster;
  cluster.break_store();
  const std::uint64_t id = cluster.order_save();
  const auto write = required(cluster.ordered_within(30'000));
  cluster.pass(1'200'000, 1, {}, write.round.value - 1);
  CHECK(cluster.core.checkpoint(id)->step == CheckpointStep::kWriting);
  cluster.pass(700'000, 1, {}, write.round.value);
  CHECK(cluster.core.checkpoint(id)->step == CheckpointStep::kFailed);
}

TEST_CASE("a checkpoint's disk that is broken, too, fails the save") {
  BrokenStore cluster;
  cluster.break_store();
  const std::uint64_t id = cluster.order_save();
  REQUIRE(cluster.ordered_within(30'000));
  cluster.answer(1, id, ErrorCode::kIo);
  CHECK(cluster.core.checkpoint(id)->step == CheckpointStep::kFailed);
}

TEST_CASE("checkpoints by schedule go on where a store is broken") {
  BrokenStore cluster({"/shared", 60, 2});
  const auto of_snapshot = required(cluster.ordered_within(120'000));
  CHECK_FALSE(of_snapshot.from_memory());
  cluster.finish(of_snapshot.operation);
  cluster.break_store();
  const auto write = required(cluster.ordered_within(120'000));
  CHECK(write.from_memory());
  cluster.finish(write.operation);
  CHECK(cluster.job().checkpoint == "/shared/mnist-round-" + std::to_string(write.round.value));
  cluster.break_store();
  const auto next = required(cluster.ordered_within(120'000));
  CHECK(next.round > write.round);
}

TEST_CASE("a checkpoint from memory that fails is tried again after a pause, and a snapshot is still owed at the end") {
  BrokenStore cluster({"/shared", 60, 2});
  const Round committed = cluster.job().record.committed;
  cluster.break_store();
  const auto first = required(cluster.ordered_within(120'000));
  CHECK(first.from_memory());
  cluster.answer(1, first.operation, ErrorCode::kIo);
  cluster.sent.clear();
  SUBCASE("tried again") {
    CHECK_FALSE(cluster.ordered_within(55'000));
    CHECK(cluster.ordered_within(60'000));
  }
  SUBCASE("training stops, and server 1 has lost what the stop left") {
    cluster.stop();
    cluster.server_1_loses_it();
    cluster.sent.clear();
    const auto last = required(cluster.ordered_within(5'000));
    CHECK(last.round == committed);
    CHECK_FALSE(last.from_memory());
  }
}

TEST_CASE("servers that are told to stop while the last state is written wait for it, and try their stores once more") {
  BrokenStore cluster({"/shared", 0, 2});
  cluster.break_store();
  const Round last = cluster.stop();
  const auto write = required(cluster.ordered_within(5'000));
  cluster.sent.clear();
  cluster.core.drain(cluster.now);
  CHECK(cluster.count<StopJob>() == 0);
  CHECK_FALSE(cluster.core.idle());
  cluster.finish(write.operation);
  cluster.core.drain(cluster.now);
  CHECK(cluster.to<StopJob>(server_peer(1)).size() == 1);
  cluster.all_done(last.value);
  cluster.core.drain(cluster.now);
  CHECK(cluster.job().record.committed == last);
}

TEST_CASE("a last state that no rank's goes with is not saved from memory, where a job goes back without one") {
  JoinOptions options = with_snapshots(10, 0);
  options.config.membership.on_state_lost = OnStateLost::kRewind;
  FullCluster cluster({.workers = 1});
  options.config.checkpoint = {"/shared", 0, 2};
  cluster.run(1, options);
  cluster.keep({30, 30}, {30, 30});
  cluster.leave(0, LeaveKind::kStopped, 30);
  cluster.done(0, 30);
  cluster.say(server_peer(1), SnapshotDone{cluster.open().job, cluster.open().view, Round(30), false, 0, "cannot write",
                                           ErrorCode::kStore});
  cluster.say_what_is_kept();
  CHECK(cluster.phase() == "idle");
  cluster.core.drain(cluster.now);
  cluster.done(0, 30);
  cluster.done(1, 30, false);
  cluster.pass(5'000, 1);
  CHECK(cluster.count<WriteCheckpoint>() == 0);
  CHECK(cluster.core.idle());
}

TEST_CASE("a state that a stop could not write becomes a checkpoint before servers go") {
  BrokenStore cluster({"/shared", 0, 2});
  cluster.break_store();
  cluster.core.drain(cluster.now);
  const Round last = cluster.stop();
  const auto write = required(cluster.ordered_within(5'000));
  CHECK(write.from_memory());
  CHECK(write.round == last);
  CHECK(write.view == cluster.open().view);
  CHECK_FALSE(cluster.core.idle());
  CHECK(cluster.finish(write.operation).round == last);
  CHECK(cluster.core.idle());
}

TEST_CASE("a stopped job is saved by order from memory, if servers have all of its last round there") {
  JoinOptions options = with_snapshots(10, 0);
  bool all = true;
  SUBCASE("they have") {}
  SUBCASE("nodes may have something to send later") {
    options.config.push = EncodingId::kInt8;
    all = false;
  }
  SUBCASE("one has lost it") {
    all = false;
  }
  BrokenStore cluster({}, options);
  const Round committed = cluster.job().record.committed;
  cluster.break_store();
  const Round last = cluster.stop();
  if (!all && options.config.push == EncodingSpec()) {
    cluster.server_1_loses_it();
  }
  cluster.sent.clear();
  const std::uint64_t id = cluster.order_save();
  const auto write = required(cluster.only<WriteCheckpoint>(server_peer(1)));
  CHECK(write.round == (all ? last : committed));
  CHECK(write.from_memory() == all);
  CHECK(cluster.finish(id).round == write.round);
}

TEST_CASE("a person's save of a stopped job takes the place of the one by schedule") {
  BrokenStore cluster({"/shared", 0, 2});
  cluster.break_store();
  const Round last = cluster.stop();
  const auto scheduled = required(cluster.ordered_within(5'000));
  cluster.sent.clear();
  const std::uint64_t id = cluster.order_save();
  // Servers give up the first one, and hear of the second one after that.
  const auto dropped = required(cluster.only<DropCheckpoint>(server_peer(1)));
  CHECK(dropped.directory == scheduled.directory);
  const auto write = required(cluster.only<WriteCheckpoint>(server_peer(1)));
  CHECK(write.round == last);
  cluster.answer(1, scheduled.operation, ErrorCode::kStopped);
  cluster.finish(write.operation);
  CHECK(cluster.core.checkpoint(id)->step == CheckpointStep::kDone);
}

}  // namespace
}  // namespace tributary::testing::coordinator_broken_store_test
