// CoordinatorCore: large parts of ranks' states, fetched into the store and sent to nodes that lack them.
#include <doctest/doctest.h>

#include "tests/unit/expect.h"
#include "tests/unit/required.h"
#include "tests/unit/server/coordinator/large_states.h"

namespace tributary::coordinator_large_parts_test {

using namespace testing;

namespace {

const RankStates& committed(const Cluster& cluster) {
  return cluster.registry.begin()->second.rank_states;
}

WantPart want(const Cluster& cluster, const LargeState& state, std::uint64_t offset = 0) {
  return {cluster.open().job, state.large, offset};
}

}  // namespace

TEST_CASE("a state with a large part is fetched, and committed with the snapshot when all of it is there") {
  TrainingCluster cluster(2);
  const LargeState large = large_state('a', 5 * kPartBytes + 7);
  give(cluster, 1, 40, large.state);
  CHECK(cluster.to<WantPart>(worker_peer(1)).size() == PartFetch::kWindow);
  CHECK(cluster.to<WantPart>(worker_peer(0)).empty());
  CHECK(deliver(cluster, 1, large) == 6);
  CHECK(cluster.parts.parts.at({cluster.open().job, large.large}).complete);
  cluster.stop_at(0, 40);
  CHECK(committed(cluster).at({1, 0}) == large.state);
}

TEST_CASE("a stop waits for a large part as long as it comes") {
  TrainingCluster cluster(2);
  const LargeState large = large_state('a', 3 * kPartBytes);
  give(cluster, 0, 40, bytes_of("small alone"));
  give(cluster, 1, 40, large.state);
  cluster.stop_at(0, 40);
  CHECK(cluster.phase() == "stopping");
  cluster.say(worker_peer(1), StatePart{want(cluster, large), large.piece(0)});
  CHECK(cluster.phase() == "stopping");
  SUBCASE("and is committed with it") {
    CHECK(deliver(cluster, 1, large) >= 2);
    cluster.tick(cluster.now + 1000);
    CHECK(cluster.phase() == "idle");
    CHECK(committed(cluster).at({1, 0}) == large.state);
  }
  SUBCASE("and then without it") {
    cluster.tick(cluster.now + 61'000);
    CHECK(cluster.phase() == "idle");
    CHECK(committed(cluster).size() == 1);
  }
}

TEST_CASE("a store that takes its time delays a large part, and takes no more than the window of it") {
  TrainingCluster cluster(1);
  const LargeState large = large_state('a', 7 * kPartBytes);
  cluster.disk_stands = true;
  give(cluster, 0, 40, large.state);
  CHECK(cluster.count<WantPart>() == 0);  // it may have no room
  cluster.disk_goes_on();
  REQUIRE(cluster.count<WantPart>() == PartFetch::kWindow);
  cluster.sent.clear();
  cluster.disk_stands = true;
  for (std::uint64_t piece = 0; piece < PartFetch::kWindow; ++piece) {
    const std::uint64_t offset = piece * kPartBytes;
    cluster.say(worker_peer(0), StatePart{want(cluster, large, offset), large.piece(offset)});
  }
  // The store's time is nobody's fault: its source is not given up.
  cluster.pass(2 * PartFetch::kPatienceMs, 1);
  CHECK(cluster.count<WantPart>() == 0);
  CHECK(cluster.count<HeartbeatReply>() > 0);
  cluster.disk_goes_on();
  CHECK(cluster.count<WantPart>() == 3);
  CHECK(deliver(cluster, 0, large) == 3);
  CHECK(cluster.parts.parts.at({cluster.open().job, large.large}).complete);
}

TEST_CASE("a worker goes when all of a large part has come from it, whatever time the store takes to keep the part") {
  TrainingCluster cluster(2);
  const LargeState large = large_state('a', 2 * kPartBytes);
  cluster.disk_stands = true;
  give(cluster, 1, 40, large.state);
  cluster.leave(0, LeaveKind::kStopped, 40);
  cluster.say(worker_peer(1), DrainRequest{worker_incarnation(1)});
  cluster.write_one();  // the part is begun
  CHECK(cluster.to<WantPart>(worker_peer(1)).size() == 2);
  CHECK(deliver(cluster, 1, large) == 2);
  cluster.pass(kTimeoutMs + 2000, 2, {worker_peer(1)});
  REQUIRE(cluster.core.peers().size() == 3);  // it is lost
  cluster.disk_goes_on();
  cluster.all_done(40);
  CHECK(cluster.parts.parts.at({cluster.open().job, large.large}).complete);
  CHECK(committed(cluster).at({1, 0}) == large.state);
}

TEST_CASE("a worker is not sent away while pieces of a large part have still to come from it") {
  TrainingCluster cluster(2);
  const LargeState large = large_state('a', 2 * kPartBytes);
  cluster.disk_stands = true;
  give(cluster, 1, 40, large.state);
  cluster.leave(1, LeaveKind::kFailed, 39, "rank 2 died");  // no job has it as a node any more
  cluster.say(worker_peer(1), DrainRequest{worker_incarnation(1)});
  cluster.tick(cluster.now + 1000);
  CHECK(cluster.to<DrainDone>(worker_peer(1)).empty());
  cluster.disk_goes_on();
  CHECK(deliver(cluster, 1, large) == 2);
  cluster.tick(cluster.now + 1000);
  CHECK(cluster.to<DrainDone>(worker_peer(1)).size() == 1);
}

TEST_CASE("a piece that the store is reading for a worker is not read once more for it") {
  TrainingCluster cluster(2);
  const LargeState large = large_state('a');
  give(cluster, 0, 40, large.state);
  CHECK(deliver(cluster, 0, large) == 1);
  cluster.disk_stands = true;
  cluster.sent.clear();
  for (int again = 0; again < 3; ++again) cluster.say(worker_peer(1), want(cluster, large));
  CHECK(cluster.orders.size() == 1);
  CHECK(cluster.to<StatePart>(worker_peer(1)).size() == 2);
  for (const StatePart& part : cluster.to<StatePart>(worker_peer(1))) CHECK(part.comes);
  cluster.disk_stands = false;
  cluster.sent.clear();
  cluster.write();
  const auto part = required(cluster.only<StatePart>(worker_peer(1)));
  CHECK(part.data == large.piece(0));
}

TEST_CASE("equal large parts are fetched once") {
  TrainingCluster cluster(2);
  const LargeState large = large_state('a');
  give(cluster, 0, 40, large.state);
  give(cluster, 1, 40, large.state);
  CHECK(cluster.count<WantPart>() == 1);
  CHECK(deliver(cluster, 0, large) == 1);
  cluster.stop_at(0, 40);
  CHECK(committed(cluster).size() == 2);
  CHECK(cluster.parts.parts.size() == 1);
}

TEST_CASE("few are fetched at a time, and the others follow") {
  FullCluster cluster({.workers = 1});
  JoinOptions options;
  options.ranks = 7;
  cluster.run(1, options);
  std::vector<LargeState> states;
  for (std::uint32_t rank = 0; rank < 7; ++rank) {
    states.push_back(large_state(static_cast<char>('a' + rank)));
    give(cluster, 0, 40, states.back().state, rank);
  }
  CHECK(cluster.count<WantPart>() == LargeParts::kFetches);
  for (const LargeState& state : states) CHECK(deliver(cluster, 0, state) == 1);
  cluster.stop_at(0, 40);
  CHECK(committed(cluster).size() == 7);
}

TEST_CASE("a source that has it no more, is lost, or sends something else: another one is asked") {
  TrainingCluster cluster(2);
  const LargeState large = large_state('a');
  give(cluster, 0, 40, large.state);
  give(cluster, 1, 40, large.state);
  REQUIRE(cluster.only<WantPart>(worker_peer(0)));
  SUBCASE("it is gone") {
    cluster.say(worker_peer(0), StatePart{want(cluster, large), {}});
  }
  SUBCASE("the checksum is another one") {
    cluster.say(worker_peer(0), StatePart{want(cluster, large), large_state('b').bytes});
  }
  SUBCASE("nothing comes") {
    cluster.pass(PartFetch::kPatienceMs + 2000, 2);
  }
  CHECK(deliver(cluster, 1, large) == 1);
  CHECK(cluster.parts.parts.at({cluster.open().job, large.large}).complete);
}

TEST_CASE("what nobody has is not in the record, and the log says so") {
  TrainingCluster cluster(1);
  const LargeState large = large_state('a');
  give(cluster, 0, 40, large.state);
  cluster.say(worker_peer(0), StatePart{want(cluster, large), {}});
  REQUIRE_FALSE(cluster.warnings.empty());
  CHECK(contains(cluster.warnings.back(), "nobody else has it"));
  cluster.stop_at(0, 40);
  CHECK(committed(cluster).empty());
  // Said again, it is fetched again.
  cluster.sent.clear();
  give(cluster, 0, 40, large.state);
  CHECK(deliver(cluster, 0, large) == 1);
  CHECK(cluster.record().rank_states.size() == 1);
}

TEST_CASE("a full disk leaves it out, with a word") {
  TrainingCluster cluster(1);
  const LargeState large = large_state('a', 2 * kPartBytes);
  SUBCASE("from the beginning") {
    cluster.parts.full = true;
    give(cluster, 0, 40, large.state);
  }
  SUBCASE("in the middle") {
    give(cluster, 0, 40, large.state);
    cluster.parts.full = true;
    cluster.say(worker_peer(0), StatePart{want(cluster, large), large.piece(0)});
  }
  REQUIRE_FALSE(cluster.errors.empty());
  CHECK(contains(cluster.errors.back(), "left out of snapshots: the disk is full"));
  cluster.sent.clear();
  cluster.pass(3000, 1);
  CHECK(cluster.count<WantPart>() == 0);
}

TEST_CASE("pieces that nobody asked for, or asked another for, change nothing") {
  FullCluster cluster({.workers = 3});
  cluster.run(2);
  const LargeState large = large_state('a', 2 * kPartBytes);
  cluster.say(worker_peer(0), StatePart{want(cluster, large), large.piece(0)});
  CHECK(cluster.parts.parts.empty());
  give(cluster, 0, 40, large.state);
  cluster.say(worker_peer(1), StatePart{want(cluster, large), large.piece(0)});
  cluster.say(worker_peer(2), StatePart{want(cluster, large), {}});
  cluster.say(server_peer(0), StatePart{want(cluster, large), {}});
  cluster.say(worker_peer(0), StatePart{want(cluster, large, kPartBytes), large.piece(kPartBytes)});  // out of order
  CHECK(cluster.parts.parts.at({cluster.open().job, large.large}).pieces.empty());
  CHECK(deliver(cluster, 0, large) == 2);
}

TEST_CASE("workers of the job get what there is, others nothing") {
  FullCluster cluster({.workers = 3});
  cluster.run(2);
  const LargeState large = large_state('a', kPartBytes + 5);
  give(cluster, 0, 40, large.state);
  deliver(cluster, 0, large);
  cluster.sent.clear();
  for (const std::uint64_t offset : {std::uint64_t{0}, std::uint64_t{kPartBytes}}) {
    cluster.say(worker_peer(1), want(cluster, large, offset));
    CHECK(cluster.to<StatePart>(worker_peer(1)).back().data == large.piece(offset));
  }
  cluster.say(worker_peer(2), want(cluster, large));
  CHECK(cluster.only<StatePart>(worker_peer(2))->data.empty());
  const LargeState unknown = large_state('b');
  cluster.sent.clear();
  cluster.say(worker_peer(1), want(cluster, unknown));
  CHECK(cluster.only<StatePart>(worker_peer(1))->data.empty());
}

TEST_CASE("what a worker lacks and another one has is fetched first") {
  TrainingCluster cluster(2);
  const LargeState large = large_state('a');
  give(cluster, 0, 0, large.state);  // of the round that the view begins at: no snapshot will have it
  CHECK(cluster.count<WantPart>() == 0);
  cluster.say(worker_peer(1), want(cluster, large));
  CHECK(cluster.only<StatePart>(worker_peer(1))->comes);
  CHECK(deliver(cluster, 0, large) == 1);
  cluster.say(worker_peer(1), want(cluster, large));
  CHECK(cluster.to<StatePart>(worker_peer(1)).back().data == large.bytes);
}

TEST_CASE("who asks for a piece while its part is on its way is told so, until it is there or nobody has it any more") {
  TrainingCluster cluster(2);
  const LargeState large = large_state('a', 3 * kPartBytes);
  give(cluster, 0, 0, large.state);
  cluster.say(worker_peer(1), want(cluster, large));
  cluster.say(worker_peer(0), StatePart{want(cluster, large), large.piece(0)});
  cluster.say(worker_peer(1), want(cluster, large));  // a piece that has come
  for (const StatePart& answer : cluster.to<StatePart>(worker_peer(1))) CHECK(answer.comes);
  cluster.sent.clear();
  std::vector<std::byte> last;
  SUBCASE("it is there") {
    for (const std::uint64_t offset : {1, 2}) {
      cluster.say(worker_peer(0),
                  StatePart{want(cluster, large, offset * kPartBytes), large.piece(offset * kPartBytes)});
    }
    last = large.piece(0);
  }
  SUBCASE("its source is silent") {
    cluster.pass(PartFetch::kPatienceMs + 2000, 2);
  }
  SUBCASE("its source has it no more") {
    cluster.say(worker_peer(0), StatePart{want(cluster, large, kPartBytes), {}});
  }
  SUBCASE("its source says that it comes, which is no answer of a source") {
    cluster.say(worker_peer(0), StatePart{want(cluster, large, kPartBytes), {}, true});
    cluster.pass(PartFetch::kPatienceMs + 2000, 2);
  }
  cluster.say(worker_peer(1), want(cluster, large));
  const auto answer = required(cluster.only<StatePart>(worker_peer(1)));
  CHECK_FALSE(answer.comes);
  CHECK(answer.data == last);
}

TEST_CASE("parts go when no record and no rank of the view names them any more") {
  TrainingCluster cluster({.workers = 1}, with_snapshots(1, 0));
  const LargeState older = large_state('a'), newer = large_state('b');
  std::vector<std::uint64_t> rounds;
  for (std::uint64_t version = 10; version < 200 && rounds.size() < 2; version += 10) {
    cluster.pass(1000, 1, {}, version);
    for (const SnapshotAt& at : cluster.to<SnapshotAt>(server_peer(0))) {
      const LargeState& state = rounds.empty() ? older : newer;
      rounds.push_back(at.round.value);
      version = at.round.value;
      cluster.sent.clear();
      give(cluster, 0, at.round.value, state.state);
      deliver(cluster, 0, state);
      cluster.save_fails = true;
      cluster.all_done(at.round.value);
      // The record that is on the disk names what was before.
      if (rounds.size() == 2) CHECK(cluster.parts.parts.size() == 2);
      cluster.save_fails = false;
      cluster.pass(2000, 1, {}, version);
      break;
    }
  }
  REQUIRE(rounds.size() == 2);
  CHECK(cluster.parts.parts.size() == 1);
  CHECK(cluster.parts.parts.contains({cluster.open().job, newer.large}));
}

TEST_CASE("after a restart there is what the record names, and nothing else") {
  TrainingCluster before(1);
  const LargeState large = large_state('a'), other = large_state('b');
  give(before, 0, 40, large.state);
  give(before, 0, 40, other.state, 1);
  deliver(before, 0, large);
  deliver(before, 0, other);
  before.stop_at(0, 40);
  std::vector<JobRecord> records = before.records();
  records[0].rank_states.erase({0, 1});
  Cluster cluster(2, records, 8, before.parts);
  cluster.write();
  CHECK(cluster.parts.parts.size() == 2);  // a newer record may name it
  restarted(cluster, {StoredJob{records[0].job, "mnist", 0, {Round(40)}}});
  cluster.write();
  CHECK(cluster.parts.parts.size() == 1);
  cluster.run(1);
  cluster.say(worker_peer(0), want(cluster, large));
  CHECK(cluster.only<StatePart>(worker_peer(0))->data == large.bytes);
}

TEST_CASE("a job that is removed takes its parts with it") {
  TrainingCluster cluster(1);
  const LargeState large = large_state('a');
  give(cluster, 0, 40, large.state);
  deliver(cluster, 0, large);
  cluster.stop_at(0, 40);
  CHECK(cluster.parts.parts.size() == 1);
  REQUIRE(cluster.remove_job("mnist"));
  CHECK(cluster.parts.parts.empty());
}

TEST_CASE("a part that cannot be read any more counts as lost") {
  TrainingCluster cluster(1);
  const LargeState large = large_state('a');
  give(cluster, 0, 40, large.state);
  deliver(cluster, 0, large);
  cluster.parts.parts.at({cluster.open().job, large.large}).pieces.clear();
  cluster.say(worker_peer(0), want(cluster, large));
  CHECK(cluster.only<StatePart>(worker_peer(0))->data.empty());
  CHECK(contains(cluster.errors.back(), "counts as lost"));
  // Its rank has it still.
  cluster.sent.clear();
  give(cluster, 0, 40, large.state);
  CHECK(deliver(cluster, 0, large) == 1);
}

TEST_CASE("without a store a part goes from worker to worker") {
  FullCluster cluster({.workers = 3, .servers = 0});
  JoinOptions options;
  options.config.mode = Mode::kAllreduce;
  options.nodes = 3;
  for (std::uint32_t w = 0; w < 3; ++w) {
    options.node = w;
    cluster.join(w, options);
  }
  const auto welcome = required(cluster.only<JobWelcome>(worker_peer(1)));
  CHECK(welcome.giver == 0);
  const LargeState large = large_state('a');
  cluster.say(worker_peer(0), NodeRankState{welcome.job, welcome.view, NodeRank(0), 0, {Round(0), large.state}});
  CHECK(cluster.only<NodeRankState>(worker_peer(2)));
  const WantPart piece{welcome.job, large.large, 0};
  cluster.say(worker_peer(1), piece);
  cluster.say(worker_peer(2), piece);
  REQUIRE(cluster.only<WantPart>(worker_peer(0)));
  cluster.say(worker_peer(0), StatePart{piece, large.bytes});
  CHECK(cluster.only<StatePart>(worker_peer(1))->data == large.bytes);
  CHECK(cluster.only<StatePart>(worker_peer(2))->data == large.bytes);
}

}  // namespace tributary::coordinator_large_parts_test
