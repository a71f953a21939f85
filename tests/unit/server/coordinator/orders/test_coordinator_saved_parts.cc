// Checkpoints of jobs whose ranks keep large parts, as the coordinator orders them.
#include <doctest/doctest.h>

#include "tests/unit/expect.h"
#include "tests/unit/required.h"
#include "tests/unit/server/coordinator/large_states.h"

namespace tributary::coordinator_saved_parts_test {

using namespace testing;

namespace {

std::uint64_t save(Cluster& cluster, bool committed = false) {
  return required(cluster.core.save_checkpoint({"mnist", "/shared", "2030-01-02T03:04:05Z", committed}, cluster.now));
}

CheckpointStatus status(const Cluster& cluster, std::uint64_t id) {
  return cluster.core.checkpoint(id).value();
}

void answer_writes(Cluster& cluster, std::uint64_t id) {
  for (std::uint16_t i = 0; i < 2; ++i) {
    cluster.say(server_peer(i), CheckpointDone{id, true, {}, {}, 100, std::string(32, 'c')});
  }
}

Manifest sealed(const Cluster& cluster) {
  const auto seal = required(cluster.only<SealCheckpoint>(server_peer(0)));
  CHECK(seal.job == cluster.open().job);
  return required(manifest_from_json(seal.manifest));
}

// A stopped job of two ranks, which keep these.
void stop_with(Cluster& cluster, const LargeState& large, const std::vector<std::byte>& other) {
  cluster.everybody(1);
  cluster.run(1);
  give(cluster, 0, 40, large.state, 0);
  if (!other.empty()) give(cluster, 0, 40, other, 1);
  deliver(cluster, 0, large);
  cluster.stop_at(0, 40);
}

}  // namespace

TEST_CASE("a checkpoint has the states that have large parts") {
  Cluster cluster;
  const LargeState large = large_state('a', 3 * kPartBytes);
  const std::vector<std::byte> needs_it = StateHead{{}, false}.before(bytes_of("small"));
  stop_with(cluster, large, needs_it);
  const std::uint64_t id = save(cluster);
  answer_writes(cluster, id);
  const Manifest manifest = sealed(cluster);
  CHECK(manifest.rank_states == RankStates{{{0, 0}, large.state}, {{0, 1}, needs_it}});
  CHECK(status(cluster, id).lacks == "");
  cluster.say(server_peer(0), CheckpointDone{id, true, {}, {}, large.large.bytes, {}});
  CHECK(status(cluster, id).step == CheckpointStep::kDone);
  CHECK(status(cluster, id).bytes == 200 + large.large.bytes);
}

TEST_CASE("a save of a running job waits for large parts as long as they come, and has them then") {
  TrainingCluster cluster(1);
  cluster.pass(3000, 1, {}, 10);
  const std::uint64_t id = save(cluster);
  cluster.pass(1000, 1, {}, 20);
  const auto at = required(cluster.only<SnapshotAt>(server_peer(0)));
  const LargeState large = large_state('a', 3 * kPartBytes);
  bool comes = true;
  SUBCASE("given before the servers have written") {
    give(cluster, 0, at.round.value, large.state);
    cluster.all_done(at.round.value);
    CHECK(cluster.count<WriteCheckpoint>() == 0);
  }
  SUBCASE("given after that") {
    cluster.all_done(at.round.value);
    give(cluster, 0, at.round.value, large.state);
    answer_writes(cluster, id);
  }
  SUBCASE("given, and lost") {
    comes = false;
    give(cluster, 0, at.round.value, large.state);
    cluster.all_done(at.round.value);
    cluster.pass(PartFetch::kPatienceMs + 2000, 1, {}, 20);
  }
  CHECK(cluster.count<SealCheckpoint>() == 0);
  if (comes) CHECK(deliver(cluster, 0, large) == 3);
  cluster.pass(1000, 1, {}, 20);
  if (status(cluster, id).awaited.size() == 2) answer_writes(cluster, id);
  CHECK(sealed(cluster).rank_states.contains({0, 0}) == comes);
}

TEST_CASE("what a save names stays in the store until it is over, whatever is committed meanwhile") {
  FullCluster cluster({.workers = 1});
  JoinOptions options = with_snapshots(5, 0);
  cluster.run(1, options);
  const LargeState older = large_state('a'), newer = large_state('b');
  std::uint64_t id = 0, version = 0;
  for (const LargeState* state : {&older, &newer}) {
    cluster.sent.clear();
    while (cluster.count<SnapshotAt>() == 0) cluster.pass(1000, 1, {}, version += 10);
    const std::uint64_t round = cluster.to<SnapshotAt>(server_peer(0)).front().round.value;
    give(cluster, 0, round, state->state);
    deliver(cluster, 0, *state);
    cluster.all_done(round);
    if (state == &older) id = save(cluster, true);
  }
  CHECK(cluster.parts.parts.size() == 2);
  answer_writes(cluster, id);
  CHECK(sealed(cluster).rank_states.at({0, 0}) == older.state);
  CHECK(cluster.parts.parts.size() == 2);
  cluster.say(server_peer(0), CheckpointDone{id, true, {}, {}, 10, {}});
  cluster.stop_at(0, 1000);
  CHECK_FALSE(cluster.parts.parts.contains({cluster.open().job, older.large}));
}

TEST_CASE(
    "a state whose large part the store has lost is left out of a checkpoint, with those that need it, in words") {
  Cluster cluster;
  const LargeState large = large_state('a');
  std::size_t left = 0;
  std::vector<std::byte> other;
  SUBCASE("beside a whole one") {
    other = bytes_of("small and whole");
    left = 1;
  }
  SUBCASE("beside one that needs the first rank's") {
    other = StateHead{{}, false}.before(bytes_of("small"));
  }
  stop_with(cluster, large, other);
  cluster.run(1);
  cluster.parts.parts.clear();
  cluster.say(worker_peer(0), WantPart{cluster.open().job, large.large, 0});
  cluster.sent.clear();
  const std::uint64_t id = save(cluster, true);
  answer_writes(cluster, id);
  CHECK(sealed(cluster).rank_states.size() == left);
  const std::string lacks = status(cluster, id).lacks;
  CHECK(lacks.starts_with("what " + std::to_string(2 - left) + " of 2 ranks keep"));
  CHECK(contains(lacks, "Save a later round to have it"));
}

TEST_CASE("a job that is restored gives its ranks what they kept, of any size") {
  Cluster from;
  const LargeState large = large_state('a', kPartBytes + 5);
  stop_with(from, large, {});
  answer_writes(from, save(from));
  const Manifest manifest = sealed(from);

  Cluster cluster(3, {}, 8);
  cluster.everybody(1);
  const auto id =
      required(cluster.core.restore_checkpoint({manifest, "checksum", "/shared/x", "moved", false}, cluster.now));
  const auto load = required(cluster.only<LoadCheckpoint>(server_peer(0)));
  // Server 0 does this.
  REQUIRE(cluster.parts.begin(load.job, large.large));
  for (const std::uint64_t offset : {std::uint64_t{0}, std::uint64_t{kPartBytes}}) {
    REQUIRE(cluster.parts.add(load.job, large.large, offset, large.piece(offset)));
  }
  REQUIRE(cluster.parts.finish(load.job, large.large));
  for (std::uint16_t i = 0; i < 3; ++i) cluster.say(server_peer(i), CheckpointDone{id, true, {}, {}, 10, {}});
  CHECK(cluster.core.checkpoint(id)->step == CheckpointStep::kDone);
  cluster.sent.clear();

  JoinOptions options = rewinding();
  options.job = "moved";
  cluster.join(0, options);
  cluster.all_ready();
  const auto welcome = required(cluster.only<JobWelcome>(worker_peer(0)));
  REQUIRE(welcome.rank_states.size() == 1);
  CHECK(welcome.rank_states[0] == large.state);
  cluster.say(worker_peer(0), WantPart{load.job, large.large, kPartBytes});
  CHECK(cluster.only<StatePart>(worker_peer(0))->data == large.piece(kPartBytes));
}

TEST_CASE("a restore waits for server 0, which loads large parts, though it gets no chunk") {
  Cluster from(2);
  const LargeState large = large_state('a');
  stop_with(from, large, {});
  answer_writes(from, save(from));
  Manifest manifest = sealed(from);
  manifest.tensors = {{"w", {4}}};
  manifest.chunk_elements = 1024;
  manifest.chunk_shards = {ShardIndex(0)};
  Cluster cluster(2, {}, 8);
  cluster.everybody(1);
  const auto id =
      required(cluster.core.restore_checkpoint({manifest, "checksum", "/shared/x", "moved", false}, cluster.now));
  CHECK(cluster.core.checkpoint(id)->awaited.contains(0));
  CHECK(cluster.only<LoadCheckpoint>(server_peer(0)));
}

}  // namespace tributary::coordinator_saved_parts_test
