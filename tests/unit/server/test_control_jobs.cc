// ControlJobs: repeated messages, views that end while they open, stops.
#include "tests/unit/expect.h"
#include "tests/unit/required.h"
#include "tests/unit/server/control_jobs_fixture.h"

namespace tributary::control_jobs_test {

TEST_CASE("a view that is opened again stays open, and its server says again that it is ready") {
  Server server;
  server.jobs.on(server.open_message(3));
  const std::vector<std::string> commands = server.lane.said;
  server.jobs.on(server.open_message(3));  // is not ready yet
  CHECK(server.take<ShardReady>().empty());
  server.jobs.lane_opened(JobId(7), ViewId(3), {});
  CHECK(server.take<ShardReady>().size() == 1);
  server.jobs.on(server.open_message(3));
  const auto ready = only_one(server.take<ShardReady>());
  CHECK(ready.ok);
  CHECK(server.lane.said == commands);
}

TEST_CASE("state that was kept survives a view that never got further than opening") {
  OpenServer server(3);
  server.restart(3);
  server.jobs.lane_parked(JobId(7), ViewId(3), true, Version(5), Version(6));
  server.sent.clear();
  server.jobs.on(server.open_message(4, true));
  server.restart(4);  // the lane has not said that it is open
  CHECK(server.lane.said.back() == "park");
  server.jobs.lane_parked(JobId(7), ViewId(4), true, Version(5), Version(6));
  const auto kept = only_one(server.take<ShardKept>());
  CHECK(kept.any);
  CHECK(kept.max_version == Version(6));
}

TEST_CASE("lanes are told to get memory for a snapshot, and heartbeats say when all have it") {
  Server server;
  server.jobs.on(server.open_message(3));
  server.jobs.on(PrepareSnapshot{JobId(7), ViewId(3)});  // not before it runs
  CHECK(server.lane.said.back() != "prepare");
  server.jobs.lane_opened(JobId(7), ViewId(3), {});
  server.jobs.on(PrepareSnapshot{JobId(7), ViewId(2)});
  server.jobs.on(PrepareSnapshot{JobId(8), ViewId(3)});
  CHECK(server.lane.said.back() != "prepare");
  server.jobs.on(PrepareSnapshot{JobId(7), ViewId(3)});
  CHECK(server.lane.said.back() == "prepare");
  REQUIRE(server.jobs.progress().size() == 1);
  CHECK_FALSE(server.jobs.progress()[0].prepared);
  server.lane.gauges->prepared.store(true);
  CHECK(server.jobs.progress()[0].prepared);
}

TEST_CASE("a final state that is durable is reported again when the order comes again") {
  OpenServer server(3);
  const StopJob stop{JobId(7), ViewId(3), StopKind::kFinished, Round(9), "done"};
  server.jobs.on(stop);
  REQUIRE(server.snapshots.expected.size() == 1);
  server.jobs.on(stop);  // it is being written
  CHECK(server.snapshots.expected.size() == 1);
  const auto handle = server.store.create(server.snapshots.expected[0].info);
  server.store.sync(handle);
  REQUIRE(server.store.record(handle));
  server.jobs.snapshot_finished(SnapshotDone{JobId(7), ViewId(3), Round(9), true, 1, {}});
  server.sent.clear();
  server.jobs.on(stop);
  auto done = server.take<SnapshotDone>();
  REQUIRE(done.size() == 1);
  CHECK(done[0].ok);
  CHECK(done[0].round == Round(9));
  server.jobs.on(StopJob{JobId(7), ViewId(3), StopKind::kFinished, Round(8), "done"});  // nobody has that
  done = server.take<SnapshotDone>();
  REQUIRE(done.size() == 1);
  CHECK_FALSE(done[0].ok);
}

TEST_CASE("a job's last snapshot keeps no pace, also if it was asked for while training went on") {
  OpenServer server(3);
  server.jobs.on(SnapshotAt{JobId(7), ViewId(3), Round(9)});
  REQUIRE(server.snapshots.expected.size() == 1);
  CHECK(server.snapshots.expected[0].paced);
  server.jobs.on(StopJob{JobId(7), ViewId(3), StopKind::kFinished, Round(9), "done"});
  CHECK(server.snapshots.expected.size() == 1);
  CHECK(server.snapshots.hurried == std::vector<Round>{Round(9)});
}

TEST_CASE("what a job ends with stays in memory until it is committed, and is told of when it is asked for") {
  OpenServer server(3);
  server.jobs.on(StopJob{JobId(7), ViewId(3), StopKind::kFinished, Round(9), "done"});
  CHECK(server.lane.said.back() == "stop and park");
  bool written = false;
  SUBCASE("all is written") {
    written = true;
  }
  SUBCASE("it is asked for before the lane has said anything") {
    server.restart(3);
  }
  SUBCASE("the last snapshot fails") {}
  server.jobs.lane_stopped(JobId(7), ViewId(3), Round(9), true);
  server.jobs.lane_parked(JobId(7), ViewId(3), true, Version(9), Version(9));
  server.jobs.snapshot_finished(SnapshotDone{JobId(7), ViewId(3), Round(9), written, 1, written ? "" : "disk full"});
  CHECK_FALSE(server.jobs.contains(JobId(7)));
  if (written) {
    CHECK(server.take<ShardKept>().empty());  // nobody asked
    server.jobs.on(SnapshotCommit{JobId(7), Round(8)});
    CHECK(server.lane.said.back() == "stop and park");
    server.jobs.on(SnapshotCommit{JobId(7), Round(9)});
    CHECK(server.lane.said.back() == "drop parked");
    return;
  }
  server.restart(3);
  const auto kept = server.take<ShardKept>();
  REQUIRE_FALSE(kept.empty());
  CHECK(kept.back().any);
  CHECK(kept.back().min_version == Version(9));
  server.open(4, true);
  CHECK(server.lane.said.back() == "opened");
  CHECK(std::ranges::find(server.lane.said, "reopen") != server.lane.said.end());
}

TEST_CASE("what is kept between views becomes a snapshot at the coordinator's word") {
  OpenServer server(3);
  server.restart(3);
  const StopJob save{JobId(7), ViewId(3), StopKind::kStopped, Round(5), "server 1 was told to stop"};
  server.jobs.on(save);  // the lane has not said what it keeps
  auto done = server.take<SnapshotDone>();
  REQUIRE(done.size() == 1);
  CHECK_FALSE(done[0].ok);
  server.jobs.lane_parked(JobId(7), ViewId(3), true, Version(5), Version(5));
  std::optional<StopJob> other;
  SUBCASE("not of another round") {
    other = save;
    other->round = Round(6);
  }
  SUBCASE("nor of another view") {
    other = save;
    other->view = ViewId(4);
  }
  server.sent.clear();
  if (other) server.jobs.on(*other);
  CHECK(server.take<SnapshotDone>().size() == (other ? 1 : 0));
  CHECK(server.snapshots.expected.empty());
  server.jobs.on(save);
  REQUIRE(server.snapshots.expected.size() == 1);
  CHECK(server.snapshots.expected[0].info.round == Round(5));
  CHECK(server.lane.said.back() == "stop and park");
  server.jobs.lane_stopped(JobId(7), ViewId(3), Round(5), true);
  server.jobs.lane_parked(JobId(7), ViewId(3), true, Version(5), Version(5));
  server.jobs.snapshot_finished(SnapshotDone{JobId(7), ViewId(3), Round(5), true, 1, {}});
  done = server.take<SnapshotDone>();
  REQUIRE(done.size() == 1);
  CHECK(done[0].ok);
  CHECK(server.jobs.keeps());  // until all have it
  server.jobs.on(SnapshotCommit{JobId(7), Round(5)});
  CHECK_FALSE(server.jobs.keeps());
  server.jobs.give_up_parked();
  CHECK(server.jobs.not_saved().empty());
}

TEST_CASE("what is kept becomes a snapshot when one of the same round, which was given up with its view, has ended") {
  OpenServer server(3);
  server.jobs.on(SnapshotAt{JobId(7), ViewId(3), Round(5)});
  REQUIRE(server.snapshots.expected.size() == 1);
  server.restart(3);
  server.jobs.lane_parked(JobId(7), ViewId(3), true, Version(5), Version(5));
  server.sent.clear();
  server.jobs.on(StopJob{JobId(7), ViewId(3), StopKind::kStopped, Round(5), "server 1 was told to stop"});
  CHECK(server.snapshots.expected.size() == 1);
  CHECK(server.take<SnapshotDone>().empty());
  bool written = false;
  SUBCASE("it was too late to give it up") {
    const auto handle = server.store.create(server.snapshots.expected[0].info);
    REQUIRE(server.store.record(handle));
    written = true;
  }
  SUBCASE("it is not there") {}
  server.jobs.snapshot_finished(SnapshotDone{JobId(7), ViewId(3), Round(5), written, 1, written ? "" : "given up"});
  CHECK(server.snapshots.expected.size() == (written ? 1 : 2));
  if (!written) server.jobs.snapshot_finished(SnapshotDone{JobId(7), ViewId(3), Round(5), true, 1, {}});
  const auto done = server.take<SnapshotDone>();
  REQUIRE_FALSE(done.empty());
  CHECK(std::ranges::all_of(done, &SnapshotDone::ok));
}

TEST_CASE("a server that is stopped with state in memory that no snapshot has says so") {
  Server server;
  OpenJob open = server.open_message(3);
  SUBCASE("nothing of it was ever written") {}
  SUBCASE("a snapshot has less") {
    const auto snapshot = server.store.create({JobId(7), "job", Round(4), 0, "sgd", 1});
    REQUIRE(server.store.record(snapshot));
    open.resume = true;
    open.resume_round = Round(4);
    open.kept = false;
  }
  server.jobs.on(open);
  server.jobs.lane_opened(JobId(7), ViewId(3), {});
  server.restart(3);
  CHECK(server.jobs.keeps());
  Version kept(5);
  SUBCASE("of a round") {}
  SUBCASE("some chunks are a round further") {
    kept = Version(6);
  }
  server.jobs.lane_parked(JobId(7), ViewId(3), true, Version(5), kept);
  CHECK(server.jobs.not_saved().empty());  // its next view goes on with it
  server.jobs.give_up_parked();
  const auto lost = only_one(server.jobs.not_saved());
  CHECK(lost.job == "job");
  CHECK(lost.round == Round(5));
  CHECK(testing::contains(lost.reason, "its view 3 was over"));
  CHECK(testing::contains(lost.reason, open.resume ? "is of round 4" : "it has no snapshot"));
}

TEST_CASE("a last state is written though a snapshot of the same round was named too late") {
  OpenServer server(3);
  server.jobs.on(SnapshotAt{JobId(7), ViewId(3), Round(5)});
  server.jobs.lane_snapshot(LaneIndex(0), JobId(7), ViewId(3), Round(5), false);
  server.jobs.on(StopJob{JobId(7), ViewId(3), StopKind::kFinished, Round(5), "complete"});
  CHECK(server.snapshots.hurried.empty());
  REQUIRE(server.snapshots.expected.size() == 2);
  server.jobs.snapshot_finished(
      SnapshotDone{JobId(7), ViewId(3), Round(5), false, 0, "lane 0 is past it", ErrorCode::kStopped});
  CHECK(server.take<SnapshotDone>().empty());
  server.jobs.snapshot_finished(SnapshotDone{JobId(7), ViewId(3), Round(5), true, 1, {}});
  const auto done = only_one(server.take<SnapshotDone>());
  CHECK(done.ok);
}

TEST_CASE("a server that is stopped while it is brought up to the others names the round that it had come to") {
  OpenServer server(3);
  server.jobs.on(SnapshotCommit{JobId(7), Round(4)});
  server.restart(3);
  bool lost = false;
  SUBCASE("it has nothing beyond its snapshot") {
    server.jobs.lane_parked(JobId(7), ViewId(3), true, Version(4), Version(5));
  }
  SUBCASE("some chunks are some rounds further") {
    server.jobs.lane_parked(JobId(7), ViewId(3), true, Version(4), Version(7));
    lost = true;
  }
  server.jobs.give_up_parked();
  REQUIRE(server.jobs.not_saved().size() == (lost ? 1 : 0));
  if (lost) CHECK(server.jobs.not_saved()[0].round == Round(6));
}

TEST_CASE("a server's own part of a last state that others could not write is not saved") {
  OpenServer server(3);
  server.jobs.on(StopJob{JobId(7), ViewId(3), StopKind::kStopped, Round(9), "stopped"});
  server.jobs.lane_stopped(JobId(7), ViewId(3), Round(9), true);
  server.jobs.lane_parked(JobId(7), ViewId(3), true, Version(9), Version(9));
  server.jobs.snapshot_finished(SnapshotDone{JobId(7), ViewId(3), Round(9), true, 1, {}});
  bool all = false;
  SUBCASE("they have") {
    server.jobs.on(SnapshotCommit{JobId(7), Round(9)});
    all = true;
  }
  SUBCASE("they have not") {}
  server.jobs.give_up_parked();
  CHECK(server.jobs.not_saved().size() == (all ? 0 : 1));
}

TEST_CASE("a server that is stopped with nothing in memory beyond its snapshot has lost nothing") {
  OpenServer server(3);
  SUBCASE("no round was complete") {
    server.restart(3);
    server.jobs.lane_parked(JobId(7), ViewId(3), true, Version(0), Version(1));
  }
  SUBCASE("all servers have a snapshot of the round") {
    server.jobs.on(SnapshotCommit{JobId(7), Round(9)});
    server.restart(3);
    server.jobs.lane_parked(JobId(7), ViewId(3), true, Version(9), Version(10));
  }
  SUBCASE("they have it since the view ended") {
    server.restart(3);
    server.jobs.lane_parked(JobId(7), ViewId(3), true, Version(9), Version(10));
    server.jobs.on(SnapshotCommit{JobId(7), Round(9)});
  }
  CHECK(server.jobs.keeps());
  server.jobs.give_up_parked();
  CHECK(server.jobs.not_saved().empty());
}

TEST_CASE("no view opens on a server that cannot drop what an earlier view has left of later rounds") {
  Server server;
  for (const std::uint64_t round : {5, 10}) {
    const auto left = server.store.create({JobId(7), "job", Round(round), 0, "sgd", 1});
    REQUIRE(server.store.record(left));
  }
  OpenJob open = server.open_message(2);
  open.kept = false;
  SUBCASE("as a fresh one") {}
  SUBCASE("that resumes before them") {
    open.resume = true;
    open.resume_round = Round(5);
  }
  server.disk.full = true;
  server.jobs.on(open);
  server.orders.carry_out();
  if (open.resume) {
    REQUIRE(server.orders.loads.size() == 1);
    REQUIRE(server.orders.loads[0].chunk());
    server.orders.loads[0].done({});
  }
  server.jobs.lane_opened(JobId(7), ViewId(2), {});
  const auto refused = only_one(server.take<ShardReady>());
  CHECK_FALSE(refused.ok);
  CHECK(refused.code == ErrorCode::kUnavailable);
  CHECK(testing::contains(refused.message, "full"));
  CHECK_FALSE(server.jobs.contains(JobId(7)));
  CHECK(server.store.jobs()[0].snapshots.size() == 2);
  server.disk.full = false;
  open.view = ViewId(3);
  open.resume = false;
  server.jobs.on(open);
  server.orders.carry_out();
  server.jobs.lane_opened(JobId(7), ViewId(3), {});
  const auto ready = only_one(server.take<ShardReady>());
  CHECK(ready.ok);
  CHECK(server.store.jobs().empty());
}

TEST_CASE("state that was kept survives a view that could not open because the disk is full") {
  Server server;
  const auto left = server.store.create({JobId(7), "job", Round(10), 0, "sgd", 1});
  REQUIRE(server.store.record(left));
  server.open(3);
  server.restart(3);
  server.jobs.lane_parked(JobId(7), ViewId(3), true, Version(5), Version(6));
  const auto second = server.store.create({JobId(7), "job", Round(12), 0, "sgd", 1});
  REQUIRE(server.store.record(second));
  server.sent.clear();
  server.disk.full = true;
  server.open(4, true);
  CHECK(server.lane.said.back() == "park");
  server.jobs.lane_parked(JobId(7), ViewId(4), true, Version(5), Version(6));
  const auto kept = server.take<ShardKept>();
  REQUIRE_FALSE(kept.empty());
  CHECK(kept.back().any);
  CHECK(kept.back().max_version == Version(6));
}

TEST_CASE("a stop that is said again while lanes wait for residuals makes them wait longer, and nothing else") {
  OpenServer server(3);
  const StopJob stop{JobId(7), ViewId(3), StopKind::kStopped, Round(9), "stopped"};
  server.jobs.on(stop);
  const std::size_t before = server.lane.said.size();
  server.jobs.on(stop);
  REQUIRE(server.lane.said.size() == before + 1);
  CHECK(server.lane.said.back() == "await longer");
  CHECK(server.take<SnapshotDone>().empty());
}

TEST_CASE("whoever hears that lanes have yet to say what they keep of a last state hears what became of it") {
  OpenServer server(3);
  server.jobs.on(StopJob{JobId(7), ViewId(3), StopKind::kFinished, Round(9), "done"});
  server.jobs.lane_stopped(JobId(7), ViewId(3), Round(9), true);
  server.jobs.snapshot_finished(SnapshotDone{JobId(7), ViewId(3), Round(9), true, 1, ""});
  ServerHello hello;
  server.jobs.describe(hello);  // a coordinator that had lost sight of this server
  REQUIRE(hello.kept.size() == 1);
  REQUIRE(hello.kept[0].pending);
  server.sent.clear();
  bool any = true;
  SUBCASE("the lane says it") {
    server.jobs.lane_parked(JobId(7), ViewId(3), true, Version(9), Version(9));
  }
  SUBCASE("it is committed first, and nobody needs it") {
    server.jobs.on(SnapshotCommit{JobId(7), Round(9)});
    any = false;
  }
  const auto kept = only_one(server.take<ShardKept>());
  CHECK(kept.any == any);
}

TEST_CASE("no view opens before an earlier one's last snapshot has ended, and is dropped") {
  OpenServer server(1);
  server.jobs.on(StopJob{JobId(7), ViewId(1), StopKind::kStopped, Round(9), "stopped"});
  REQUIRE(server.snapshots.expected.size() == 1);
  server.sent.clear();
  server.open(2);
  CHECK(server.take<ShardReady>().empty());
  // It was too late to give it up.
  const auto written = server.store.create(server.snapshots.expected[0].info);
  REQUIRE(server.store.record(written));
  SUBCASE("its disk has room") {
    server.jobs.snapshot_finished(SnapshotDone{JobId(7), ViewId(1), Round(9), true, 1, {}});
    server.orders.carry_out();
    const auto ready = only_one(server.take<ShardReady>());
    CHECK(ready.ok);
    CHECK(ready.view == ViewId(2));
    CHECK(server.store.jobs().empty());
  }
  SUBCASE("it has not") {
    server.disk.full = true;
    server.jobs.snapshot_finished(SnapshotDone{JobId(7), ViewId(1), Round(9), true, 1, {}});
    server.orders.carry_out();
    const auto ready = only_one(server.take<ShardReady>());
    CHECK_FALSE(ready.ok);
  }
}

TEST_CASE("a job that does not fit beside the others is refused with the sum, and they go on") {
  ServerConfig config;
  config.max_memory = 20'000'000;
  Server server(config);
  OpenJob first = server.open_message(1);
  first.tensors = {{"w", {1'000'000}}};  // 4 MB an array: with what recovery and a snapshot keep, and a push, 15.3 MiB
  first.chunk_elements = 1u << 20;
  OpenJob second = first;
  second.job = JobId(8);
  JobConfig other;
  other.name = "other";
  second.job_json = to_canonical_json(other);
  server.jobs.on(first);
  server.jobs.lane_opened(JobId(7), ViewId(1), {});
  server.sent.clear();
  const auto refused = [&] {
    const std::size_t before = server.lane.said.size();
    server.jobs.on(second);
    CHECK(server.lane.said.size() == before);
    const auto ready = only_one(server.take<ShardReady>());
    CHECK_FALSE(ready.ok);
    CHECK(ready.code == ErrorCode::kLimit);
    return ready.message;
  };
  CHECK(refused() ==
        "job 'other' needs up to 15.3 MiB on server 0, where jobs may take 19.1 MiB, and others have 15.3 MiB (job "
        "'job': 15.3 MiB); raise [limits] max_memory in server.toml, use more servers, or wait for another job to end");
  CHECK(server.jobs.contains(JobId(7)));
  server.restart(1);  // its state stays in memory
  server.jobs.lane_parked(JobId(7), ViewId(1), true, Version(5), Version(5));
  server.sent.clear();
  CHECK(testing::contains(refused(), "job 'job' between two views: 15.3 MiB"));
  first.view = ViewId(2);
  first.kept = true;
  server.jobs.on(first);  // counts once
  server.jobs.lane_opened(JobId(7), ViewId(2), {});
  auto ready = server.take<ShardReady>();
  REQUIRE(ready.size() == 1);
  CHECK(ready[0].ok);
  server.restart(2);
  server.jobs.unpark(JobId(7));
  server.sent.clear();
  server.jobs.on(second);
  server.jobs.lane_opened(JobId(8), ViewId(1), {});
  ready = server.take<ShardReady>();
  REQUIRE(ready.size() == 1);
  CHECK(ready[0].ok);
}

TEST_CASE("a job that is larger than all that jobs may take is refused by itself") {
  ServerConfig config;
  config.max_memory = 1000;
  Server server(config);
  server.jobs.on(server.open_message(1));
  const auto ready = only_one(server.take<ShardReady>());
  CHECK(ready.code == ErrorCode::kLimit);
  CHECK(server.lane.said.empty());
}

}  // namespace tributary::control_jobs_test
