// Saving and restoring, as the coordinator orders it.
#include <doctest/doctest.h>

#include "tests/unit/expect.h"
#include "tests/unit/required.h"
#include "tests/unit/server/coordinator/coordinator_fixture.h"

namespace tributary::testing::coordinator_checkpoints_test {
namespace {

constexpr char kWhen[] = "2030-01-02T03:04:05Z";

std::uint64_t save(Cluster& cluster, bool committed = false, const std::string& job = "mnist") {
  return required(cluster.core.save_checkpoint({job, "/shared", kWhen, committed}, cluster.now));
}

CheckpointStatus status(const Cluster& cluster, std::uint64_t id) {
  return required(cluster.core.checkpoint(id));
}

void answer(Cluster& cluster, std::uint16_t server, std::uint64_t id, const std::string& failure = {}) {
  CheckpointDone done;
  done.operation = id;
  done.ok = failure.empty();
  done.message = failure;
  done.bytes = 100u + server;
  done.checksum = std::string(32, static_cast<char>('a' + server));
  cluster.say(server_peer(server), done);
}

// A stopped job of two servers at round 40.
struct StoppedCluster {
  StoppedCluster() : stopped(stopped_at(40)), cluster(2, stopped.records) { restarted(cluster, stopped.stored); }
  Stopped stopped;
  Cluster cluster;
};

// A running job without snapshots of its own, and the one that is named because of a save.
struct SavedWhileRunning {
  SavedWhileRunning() {
    cluster.everybody(1);
    cluster.run(1);
    cluster.pass(3000, 1, {}, 10);
    id = save(cluster);
    CHECK(cluster.count<SnapshotAt>() == 0);
    cluster.pass(1000, 1, {}, 20);
    const auto at = required(cluster.only<SnapshotAt>(server_peer(0)));
    round = at.round;
  }
  Cluster cluster;
  std::uint64_t id = 0;
  Round round;
};

TEST_CASE("a stopped job is written by its shards, then sealed by server 0") {
  StoppedCluster it;
  Cluster& cluster = it.cluster;
  const std::uint64_t id = save(cluster);
  const auto first = cluster.only<WriteCheckpoint>(server_peer(0)),
             second = cluster.only<WriteCheckpoint>(server_peer(1));
  REQUIRE(first);
  REQUIRE(second);
  CHECK(first->round == Round(40));
  CHECK(first->job == it.stopped.records[0].job);
  CHECK(first->directory == "/shared/mnist-round-40.partial");
  answer(cluster, 1, id);
  answer(cluster, 1, id);  // said twice
  CHECK(cluster.count<SealCheckpoint>() == 0);
  CHECK(status(cluster, id).step == CheckpointStep::kWriting);
  answer(cluster, 0, id);
  const auto seal = required(cluster.only<SealCheckpoint>(server_peer(0)));
  CHECK(seal.target == "/shared/mnist-round-40");
  const auto manifest = required(manifest_from_json(seal.manifest));
  CHECK(manifest.round == Round(40));
  CHECK(manifest.created == kWhen);
  CHECK(manifest.tensors == it.stopped.records[0].tensors);
  REQUIRE(manifest.shards.size() == 2);
  CHECK(manifest.shards[0].bytes == 100);
  CHECK(manifest.shards[1].checksum == std::string(32, 'b'));
  answer(cluster, 0, id);
  CHECK(status(cluster, id).step == CheckpointStep::kDone);
  CHECK(status(cluster, id).path == "/shared/mnist-round-40");
}

TEST_CASE(
    "a running job gets a snapshot named, also without a rhythm of its own, and is written when it is committed") {
  SavedWhileRunning it;
  Cluster& cluster = it.cluster;
  CHECK(cluster.count<WriteCheckpoint>() == 0);
  cluster.all_done(it.round.value);
  const auto write = required(cluster.only<WriteCheckpoint>(server_peer(1)));
  CHECK(write.round == it.round);
  cluster.sent.clear();
  cluster.pass(10 * kMinute, 1, {}, 400);  // and no more are named
  CHECK(cluster.count<SnapshotAt>() == 0);
  CHECK(status(cluster, it.id).step == CheckpointStep::kWriting);
}

TEST_CASE("a save does not wait for a round of the job's own rhythm") {
  TrainingCluster cluster({.workers = 1}, with_snapshots(3600, 1'000'000));
  cluster.pass(3000, 1, {}, 10);
  save(cluster);
  cluster.pass(1000, 1, {}, 20);
  const auto at = required(cluster.only<SnapshotAt>(server_peer(0)));
  CHECK(at.round < Round(1000));
}

TEST_CASE("a snapshot that is missed is tried again, and a stop keeps the state that a save waits for") {
  SavedWhileRunning it;
  Cluster& cluster = it.cluster;
  cluster.done(1, it.round.value, false);
  cluster.sent.clear();
  cluster.pass(3000, 1, {}, 40);
  CHECK(cluster.only<SnapshotAt>(server_peer(0)));
  cluster.stop_at(0, 44);
  CHECK(status(cluster, it.id).step == CheckpointStep::kWriting);
  CHECK(status(cluster, it.id).round == Round(44));
}

TEST_CASE("a save fails, and what was written is dropped: a server says why, is lost, or its connection breaks") {
  StoppedCluster it;
  Cluster& cluster = it.cluster;
  std::uint64_t id = save(cluster);
  std::string why;
  SUBCASE("a server says why") {
    answer(cluster, 1, id, "no space left");
    why = "no space left";
  }
  SUBCASE("a server is lost") {
    cluster.pass(kTimeoutMs + 2000, 1, {server_peer(1)});
    why = "server 1 was lost";
  }
  SUBCASE("a connection breaks") {
    cluster.say(PeerId(77), Heartbeat{server_incarnation(1), {}});
    why = "the connection to server 1 broke";
  }
  SUBCASE("sealing fails") {
    answer(cluster, 0, id);
    answer(cluster, 1, id);
    answer(cluster, 0, id, "server 0 does not see it");
    why = "does not see it";
  }
  CHECK(status(cluster, id).step == CheckpointStep::kFailed);
  CHECK(contains(status(cluster, id).message, why));
  const auto dropped = required(cluster.only<DropCheckpoint>(server_peer(0)));
  CHECK(dropped.directory == "/shared/mnist-round-40.partial");
  CHECK(dropped.job == JobId(0));
  answer(cluster, 0, id);  // too late
  CHECK(status(cluster, id).step == CheckpointStep::kFailed);
}

TEST_CASE("a save that waits for a job that stops without a snapshot, or makes no progress, fails and says so") {
  TrainingCluster cluster(1);
  const std::uint64_t id = save(cluster);
  SUBCASE("the view ends") {
    cluster.leave(0, LeaveKind::kFailed, 0, "out of memory");
  }
  SUBCASE("nobody trains") {
    cluster.pass(11 * kMinute, 1);
  }
  CHECK(status(cluster, id).step == CheckpointStep::kFailed);
  CHECK(contains(status(cluster, id).message, "--committed"));
  CHECK(cluster.count<DropCheckpoint>() == 0);
}

TEST_CASE("a save waits for a snapshot as long as that is being written") {
  SavedWhileRunning it;
  Cluster& cluster = it.cluster;
  for (int s = 0; s < 1800; ++s) {
    cluster.now += 1000;
    for (const std::uint16_t server : {0, 1}) cluster.beat_server(server, 100, 100, false, true);
    cluster.beat_worker(0);
    cluster.tick(cluster.now);
  }
  CHECK(status(cluster, it.id).step == CheckpointStep::kWaiting);
  cluster.all_done(it.round.value);
  CHECK(status(cluster, it.id).step == CheckpointStep::kWriting);
}

TEST_CASE("saves that cannot be are refused") {
  StoppedCluster it;
  Cluster& cluster = it.cluster;
  const auto refusal = [&](const SaveOrder& order) {
    const auto id = failure_of(cluster.core.save_checkpoint(order, cluster.now));
    return id.message;
  };
  CHECK(refusal({"none", "/shared", kWhen, false}) == "there is no job 'none' here; there is 'mnist'");
  CHECK(refusal({"mnist", "shared", kWhen, false}).find("no absolute path") != std::string::npos);
  save(cluster);
  CHECK(refusal({"mnist", "/other", kWhen, false}).find("is being saved already") != std::string::npos);
  cluster.core.drain(cluster.now);
  CHECK(refusal({"mnist", "/other", kWhen, false}).find("being stopped") != std::string::npos);
}

TEST_CASE("what is over can be asked for a while, and no more than the bound is kept") {
  StoppedCluster it;
  Cluster& cluster = it.cluster;
  std::vector<std::uint64_t> ids;
  for (std::size_t i = 0; i < Checkpoints::kKept + 5; ++i) {
    ids.push_back(save(cluster));
    answer(cluster, 0, ids.back(), "no");
  }
  CHECK_FALSE(cluster.core.checkpoint(ids.front()).has_value());
  CHECK(cluster.core.checkpoint(ids.back()).has_value());
}

// ---- By the job's [checkpoint] ----

// A job with [checkpoint], whose snapshots are committed by hand.
struct ScheduledCluster {
  explicit ScheduledCluster(CheckpointConfig config = {"/shared", 60, 2}) {
    cluster.everybody(1);
    JoinOptions options = with_snapshots(10, 0);
    options.config.checkpoint = std::move(config);
    cluster.run(1, options);
  }
  // The next snapshot.
  Round commit() {
    cluster.sent.clear();
    for (int s = 0; s < 30 && cluster.count<SnapshotAt>() == 0; ++s) cluster.pass(1000, 1, {}, version += 2);
    const auto at = required(cluster.only<SnapshotAt>(server_peer(0)));
    cluster.all_done(at.round.value);
    version = at.round.value;
    cluster.sent.clear();
    return at.round;
  }
  // The order that was given within this time; none: there was none.
  std::optional<WriteCheckpoint> ordered_within(std::uint64_t ms) {
    cluster.sent.clear();
    cluster.pass(ms, 1, {}, version);
    return cluster.only<WriteCheckpoint>(server_peer(1));
  }
  void finish(std::uint64_t id) {
    answer(cluster, 0, id);
    answer(cluster, 1, id);
    answer(cluster, 0, id);
    cluster.tick(cluster.now);
  }
  // Training stops, and the cluster with it; the round.
  Round stop() {
    const std::uint64_t last = version + 5;
    cluster.leave(0, LeaveKind::kStopped, last);
    cluster.core.drain(cluster.now);
    cluster.all_done(last);
    return Round(last);
  }
  Cluster cluster;
  std::uint64_t version = 10;
};

TEST_CASE("the newest snapshot becomes a checkpoint when one is due, and each snapshot once") {
  ScheduledCluster it;
  Cluster& cluster = it.cluster;
  cluster.clock_ms = 1'893'553'445'000;  // 2030-01-02T03:04:05Z
  const Round round = it.commit();
  CHECK_FALSE(it.ordered_within(20'000));
  const auto write = required(it.ordered_within(40'000));
  CHECK(write.round == round);
  CHECK(write.directory == "/shared/mnist-round-" + std::to_string(round.value) + ".partial");
  it.finish(write.operation);
  const auto seal = required(cluster.only<SealCheckpoint>(server_peer(0)));
  CHECK(seal.keep == 2);
  CHECK(manifest_from_json(seal.manifest)->created == kWhen);
  CHECK(cluster.job().checkpoint == "/shared/mnist-round-" + std::to_string(round.value));
  CHECK(cluster.job().no_checkpoint.empty());
  CHECK_FALSE(it.ordered_within(3 * kMinute));
  CHECK(it.commit() > round);
  CHECK(it.ordered_within(2000));
}

TEST_CASE("without every_s there is one where training stops, which servers that are told to stop wait for") {
  ScheduledCluster it({"/shared", 0, 0});
  Cluster& cluster = it.cluster;
  it.commit();
  CHECK_FALSE(it.ordered_within(10 * kMinute));
  const Round last = it.stop();
  CHECK(cluster.phase() == "idle");
  CHECK_FALSE(cluster.core.idle());
  const auto write = required(it.ordered_within(1000));
  CHECK(write.round == last);
  SUBCASE("it is made") {
    it.finish(write.operation);
    CHECK(cluster.only<SealCheckpoint>(server_peer(0))->keep == 0);
  }
  SUBCASE("it cannot be, which ends the wait, and is tried again if the cluster stays") {
    answer(cluster, 1, write.operation, "no space left");
    cluster.tick(cluster.now);
    CHECK(contains(cluster.errors.back(), "no space left"));
    CHECK(cluster.core.idle());
    CHECK_FALSE(it.ordered_within(50'000));
    const auto second = required(it.ordered_within(20'000));
    answer(cluster, 1, second.operation, "no space left");
    CHECK_FALSE(it.ordered_within(110'000));  // twice as long
    CHECK(it.ordered_within(20'000));
    return;
  }
  CHECK(cluster.core.idle());
  CHECK_FALSE(it.ordered_within(10 * kMinute));
}

TEST_CASE("one that fails does not keep the job from the next, nor the cluster from the last") {
  ScheduledCluster it;
  Cluster& cluster = it.cluster;
  it.commit();
  const auto failed = required(it.ordered_within(60'000));
  answer(cluster, 1, failed.operation, "no space left");
  const Round later = it.commit();
  const auto next = required(it.ordered_within(60'000));
  CHECK(next.round == later);
  CHECK(cluster.job().no_checkpoint == "no space left");
  answer(cluster, 1, next.operation, "no space left");
  const Round last = it.stop();
  CHECK_FALSE(cluster.core.idle());
  CHECK(it.ordered_within(1000)->round == last);
}

TEST_CASE("lost nodes do not end training: no checkpoint is made for them, unless the cluster is stopped") {
  ScheduledCluster it({"/shared", 0, 2});
  Cluster& cluster = it.cluster;
  it.commit();
  cluster.leave(0, LeaveKind::kFailed, 0, "out of memory");
  CHECK(cluster.phase() == "idle");
  CHECK_FALSE(it.ordered_within(10'000));
  cluster.core.drain(cluster.now);
  CHECK(it.ordered_within(1000));
}

TEST_CASE("a stop does not wait for a checkpoint of what the coordinator cannot record") {
  ScheduledCluster it;
  Cluster& cluster = it.cluster;
  it.commit();
  cluster.save_fails = true;
  it.stop();
  CHECK_FALSE(it.ordered_within(20 * kMinute));
  CHECK(cluster.phase() == "idle");
  CHECK(cluster.core.idle());
}

TEST_CASE("a person's order takes the place of a scheduled one") {
  ScheduledCluster it;
  Cluster& cluster = it.cluster;
  it.commit();
  const auto scheduled = required(it.ordered_within(60'000));
  cluster.sent.clear();
  const std::uint64_t id = save(cluster, true);
  CHECK(cluster.only<DropCheckpoint>(server_peer(1))->directory == scheduled.directory);
  CHECK(cluster.only<WriteCheckpoint>(server_peer(1))->operation == id);
  it.finish(id);
  CHECK(status(cluster, id).step == CheckpointStep::kDone);
  CHECK(cluster.only<SealCheckpoint>(server_peer(0))->keep == 0);
}

TEST_CASE("a job that only waits in the registry, or has no folder for them, gets no checkpoints") {
  StoppedCluster stopped;
  stopped.cluster.pass(10 * kMinute, 1);
  CHECK(stopped.cluster.count<WriteCheckpoint>() == 0);
  ScheduledCluster it({"", 60, 2});
  it.commit();
  CHECK_FALSE(it.ordered_within(10 * kMinute));
}

// ---- Restoring ----

Manifest manifest_of(const JobRecord& record) {
  Manifest manifest;
  manifest.created = kWhen;
  manifest.job_json = record.job_json;
  manifest.round = record.committed;
  manifest.tensors = record.tensors;
  manifest.chunk_elements = record.chunk_elements;
  for (const ChunkOwner owner : record.owners) manifest.chunk_shards.push_back(owner.shard);
  return manifest;
}

RestoreOrder order_of(const JobRecord& record, const std::string& name = "mnist", bool force = false) {
  return {manifest_of(record), "checksum", "/shared/mnist-round-40", name, force};
}

std::uint64_t restore(Cluster& cluster, const RestoreOrder& order) {
  return required(cluster.core.restore_checkpoint(order, cluster.now));
}

TEST_CASE("a restore takes as long as servers read, and ends ten minutes after the last byte") {
  const JobRecord saved = stopped_at(40).records[0];
  Cluster cluster(2, {}, 8);
  cluster.everybody(1);
  const std::uint64_t id = restore(cluster, order_of(saved, "moved"));
  std::uint64_t moved = 0;
  const auto pass = [&](std::uint64_t minutes, bool reads) {
    for (std::uint64_t s = 0; s < minutes * 60; s += 5) {
      cluster.now += 5'000;
      moved += reads ? 1'000'000 : 0;
      for (std::uint16_t i = 0; i < 2; ++i) {
        Heartbeat beat{server_incarnation(i), {}};
        beat.moved = i == 1 ? moved : 0;
        cluster.say(server_peer(i), beat);
      }
      cluster.beat_worker(0);
      cluster.tick(cluster.now);
    }
    return cluster.core.checkpoint(id)->step;
  };
  CHECK(pass(6 * 60, true) == CheckpointStep::kLoading);
  CHECK(pass(9, false) == CheckpointStep::kLoading);
  CHECK(pass(2, false) == CheckpointStep::kFailed);
  CHECK(contains(cluster.core.checkpoint(id)->message, "server 1 have read and written nothing for 10 minutes"));
}

TEST_CASE("a checkpoint of two servers is dealt to three, and the job resumes from it") {
  const JobRecord saved = stopped_at(40).records[0];
  Cluster cluster(3, {}, 8);  // another coordinator makes other job ids
  cluster.everybody(1);
  const std::uint64_t id = restore(cluster, order_of(saved, "moved"));
  std::vector<std::uint32_t> dealt(3, 0);
  for (std::uint16_t s = 0; s < 3; ++s) {
    const auto load = required(cluster.only<LoadCheckpoint>(server_peer(s)));
    CHECK(load.name == "moved");
    CHECK(load.directory == "/shared/mnist-round-40");
    CHECK(load.manifest == "checksum");
    REQUIRE(load.owners.size() == saved.owners.size());
    for (const ChunkOwner owner : load.owners) ++dealt[owner.shard.value];
  }
  for (const std::uint32_t chunks : dealt) CHECK(chunks > 0);
  CHECK(cluster.registry.empty());

  // Nobody can join it half-way.
  JoinOptions options;
  options.job = "moved";
  cluster.join(0, options);
  CHECK(cluster.only<ControlError>(worker_peer(0))->code == ErrorCode::kUnavailable);
  CHECK(cluster.count<OpenJob>() == 0);

  for (std::uint16_t s = 0; s < 3; ++s) answer(cluster, s, id);
  CHECK(status(cluster, id).step == CheckpointStep::kDone);
  REQUIRE(cluster.registry.size() == 1);
  const JobRecord& record = cluster.registry.begin()->second;
  CHECK(record.job != saved.job);
  CHECK(record.initialised);
  CHECK(record.committed == Round(40));
  CHECK(record.tensors == saved.tensors);

  cluster.join(0, options);
  CHECK(cluster.open().job == record.job);
  CHECK(cluster.open().resume);
  CHECK(cluster.open().resume_round == Round(40));
}

TEST_CASE("nodes that wait for a job of which there is nothing do not keep it from being restored") {
  const JobRecord saved = stopped_at(40).records[0];
  Cluster cluster(2, {}, 8);
  cluster.everybody(2);
  JoinOptions options;
  options.job = "moved";
  options.nodes = 2;
  options.node = 1;
  cluster.join(1, options);
  cluster.sent.clear();
  const std::uint64_t id = restore(cluster, order_of(saved, "moved"));
  CHECK(cluster.only<ControlError>(worker_peer(1))->code == ErrorCode::kUnavailable);
  cluster.sent.clear();
  cluster.join(1, options);  // not yet
  CHECK(cluster.only<ControlError>(worker_peer(1))->code == ErrorCode::kUnavailable);
  for (std::uint16_t s = 0; s < 2; ++s) answer(cluster, s, id);
  REQUIRE(status(cluster, id).step == CheckpointStep::kDone);
  cluster.sent.clear();
  cluster.join(1, options);
  options.node = 0;
  cluster.join(0, options);
  CHECK(cluster.open().resume);
  CHECK(cluster.open().resume_round == Round(40));
}

TEST_CASE("a stopped job is replaced only by force, and its state goes when the new one is there") {
  StoppedCluster it;
  Cluster& cluster = it.cluster;
  const JobRecord saved = it.stopped.records[0];
  const auto refused = failure_of(cluster.core.restore_checkpoint(order_of(saved), cluster.now));
  CHECK(contains(refused.message, "is there already, at round 40; give --force"));
  const std::uint64_t id = restore(cluster, order_of(saved, "mnist", true));
  answer(cluster, 0, id);
  CHECK(cluster.count<DropCheckpoint>() == 0);
  answer(cluster, 1, id);
  CHECK(cluster.count<DropCheckpoint>() == 0);  // a lost disk of server 0 would leave the old record alone
  cluster.say(server_peer(1), HeldRecord{cluster.job().record.job, 1});
  const auto drop = required(cluster.only<DropCheckpoint>(server_peer(0)));
  CHECK(drop.job == saved.job);
  CHECK(cluster.job().record.job != saved.job);
  // A coordinator that starts with both records takes the new one.
  cluster.registry[saved.job.value] = saved;
  Cluster later(2, cluster.records(), 8);
  CHECK(later.job().record.job == cluster.job().record.job);
}

TEST_CASE("a job whose state is only in the servers' memory is not replaced unasked") {
  const JobRecord saved = stopped_at(40).records[0];
  Cluster cluster(2, {}, 8);
  cluster.everybody(1);
  cluster.run(1);
  cluster.leave(0, LeaveKind::kFailed, 0, "out of memory");
  const ShardKept kept{cluster.open().job, cluster.open().view, true, Version(3), Version(4)};
  cluster.say(server_peer(0), kept);
  CHECK_FALSE(cluster.core.restore_checkpoint(order_of(saved), cluster.now).has_value());
  restore(cluster, order_of(saved, "mnist", true));
}

TEST_CASE("a restore that fails leaves everything as it was") {
  for (const std::string name : {"other", "mnist"}) {
    for (const bool disk_full : {false, true}) {
      CAPTURE(name);
      CAPTURE(disk_full);
      StoppedCluster it;
      Cluster& cluster = it.cluster;
      const JobRecord saved = it.stopped.records[0];
      const std::uint64_t id = restore(cluster, order_of(saved, name, true));
      const JobId made = cluster.only<LoadCheckpoint>(server_peer(0))->job;
      answer(cluster, 0, id);
      cluster.save_fails = disk_full;  // the registry's
      answer(cluster, 1, id, disk_full ? "" : "chunk 3 is damaged");
      CHECK(status(cluster, id).step == CheckpointStep::kFailed);
      const auto drop = required(cluster.only<DropCheckpoint>(server_peer(1)));
      CHECK(drop.job == made);
      CHECK(cluster.core.jobs().size() == 1);
      CHECK(cluster.job().record.job == saved.job);
      cluster.save_fails = false;
      cluster.run(1);
      CHECK(cluster.open().job == saved.job);
      CHECK(cluster.open().resume);
    }
  }
}

// How often the server is told to drop what it has of that job.
std::ptrdiff_t drops(const Cluster& cluster, std::uint16_t server, JobId job) {
  return std::ranges::count(cluster.to<DropCheckpoint>(server_peer(server)), job, &DropCheckpoint::job);
}

TEST_CASE("a server that says hello while others still load does not make the restored job a stranger's") {
  const JobRecord saved = stopped_at(40).records[0];
  Cluster cluster(2, {}, 8);
  cluster.everybody(1);
  const std::uint64_t id = restore(cluster, order_of(saved, "moved"));
  const JobId made = cluster.only<LoadCheckpoint>(server_peer(0))->job;
  answer(cluster, 1, id);
  cluster.server(1, {StoredJob{made, "moved", 0, {Round(40)}}});
  answer(cluster, 0, id);
  REQUIRE(status(cluster, id).step == CheckpointStep::kDone);
  for (std::uint16_t s = 0; s < 2; ++s) CHECK(drops(cluster, s, made) == 0);
}

TEST_CASE("a restore after one that failed has an id of its own, and what the first one left goes") {
  StoppedCluster it;
  Cluster& cluster = it.cluster;
  const JobRecord saved = it.stopped.records[0];
  const std::uint64_t first = restore(cluster, order_of(saved, "mnist", true));
  const JobId left = cluster.only<LoadCheckpoint>(server_peer(0))->job;
  answer(cluster, 1, first);
  cluster.server(1, {it.stopped.stored[0], StoredJob{left, "mnist", 0, {Round(40)}}});
  answer(cluster, 0, first, "chunk 3 is damaged");
  cluster.sent.clear();
  const std::uint64_t again = restore(cluster, order_of(saved, "mnist", true));
  const JobId made = cluster.only<LoadCheckpoint>(server_peer(0))->job;
  CHECK(made != left);
  for (std::uint16_t s = 0; s < 2; ++s) answer(cluster, s, again);
  REQUIRE(status(cluster, again).step == CheckpointStep::kDone);
  cluster.say(server_peer(1), HeldRecord{made, 1});
  CHECK(drops(cluster, 1, left) == 1);
  for (std::uint16_t s = 0; s < 2; ++s) CHECK(drops(cluster, s, made) == 0);
}

TEST_CASE("restores that cannot be are refused") {
  const JobRecord saved = stopped_at(40).records[0];
  Cluster cluster(2);
  const auto refusal = [&](const RestoreOrder& order) {
    const auto id = failure_of(cluster.core.restore_checkpoint(order, cluster.now));
    return id.message;
  };
  cluster.server(0);
  CHECK(contains(refusal(order_of(saved)), "not all 2 servers of the cluster are there"));
  cluster.everybody(1);
  CHECK(refusal(order_of(saved, "a b")).find("job.name") != std::string::npos);
  cluster.run(1);
  CHECK(refusal(order_of(saved, "mnist", true)).find("is in use") != std::string::npos);
}

}  // namespace
}  // namespace tributary::testing::coordinator_checkpoints_test
