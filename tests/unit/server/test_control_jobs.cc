// ControlJobs without lanes, threads or disks: repeated messages, and views that end while they open.
#include <doctest/doctest.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/config/job_json.h"
#include "common/daemon/log.h"
#include "server/control_jobs.h"
#include "tests/sim/disk_sim.h"

namespace tributary::control_jobs_test {
namespace {

struct FakeLane final : LaneCommands {
  void open(ShardJob, std::shared_ptr<LaneJobGauges> of) override {
    said.emplace_back("open");
    gauges = std::move(of);
  }
  void reopen(ShardJob, std::shared_ptr<LaneJobGauges>) override { said.emplace_back("reopen"); }
  void park(JobId, ViewId) override { said.emplace_back("park"); }
  void drop_parked(JobId) override { said.emplace_back("drop parked"); }
  void restore(JobId, ViewId, ChunkIndex, ChunkState) override { said.emplace_back("restore"); }
  void opened(JobId, ViewId, bool) override { said.emplace_back("opened"); }
  void prepare_snapshot(JobId, ViewId) override { said.emplace_back("prepare"); }
  void snapshot_at(JobId, ViewId, Round) override { said.emplace_back("snapshot"); }
  void snapshot_written(JobId) override { said.emplace_back("written"); }
  void decide(const RoundDecision&) override { said.emplace_back("decide"); }
  void stop_job(JobId, ViewId, bool, Round, bool park) override { said.emplace_back(park ? "stop and park" : "stop"); }
  void await_longer(JobId, ViewId) override { said.emplace_back("await longer"); }
  std::vector<std::string> said;
  std::shared_ptr<LaneJobGauges> gauges;  // of the job opened last
};

struct FakeSnapshots final : SnapshotOrders {
  void expect(SnapshotPlan plan) override { expected.push_back(std::move(plan)); }
  void hurry(JobId, Round round) override { hurried.push_back(round); }
  void abandon(JobId, Round round, const std::string&) override { abandoned.push_back(round); }
  std::vector<SnapshotPlan> expected;
  std::vector<Round> hurried, abandoned;
};

// The store's thread: it does nothing before the test's command.
struct FakeOrders final : StoreOrders {
  explicit FakeOrders(sim::StoreSim& on) : store(on) {}
  void load(SnapshotInfo info, EachChunk each, Done done) override {
    loads.push_back({std::move(info), std::move(each), std::move(done)});
  }
  void drop(JobId job, Round first, Round last, Done done) override {
    drops.push_back([=, this] { done(store.drop(job, first, last)); });
  }
  void carry_out_drops() {
    for (; !drops.empty(); drops.pop_front()) drops.front()();
  }
  struct Load {
    SnapshotInfo info;
    EachChunk each;
    Done done;
    // The only chunk of the job's.
    Status chunk() const {
      static BufferPool pool(4096, 4);
      ChunkState state;
      state.params = pool.acquire(400);
      state.version = Version(info.round.value);
      return each(ChunkIndex(0), std::move(state));
    }
  };
  sim::StoreSim& store;
  std::vector<Load> loads;
  std::deque<std::function<void()>> drops;
};

struct Server final : ControlJobsOutput {
  explicit Server(const ServerConfig& with = {})
      : jobs(with, &store, quiet_logger(), static_cast<ControlJobsOutput&>(*this)) {
    jobs.start({&lane}, &snapshots, &orders);
  }
  void send(ControlMessage message) override { sent.push_back(std::move(message)); }
  void send_or_drop(const ControlMessage& message) override { sent.push_back(message); }
  void hello() override {}
  void changed() override {}
  std::uint64_t now_ms() const override { return 1000; }

  OpenJob open_message(std::uint32_t view, bool kept = false) const {
    JobConfig config;
    config.name = "job";
    OpenJob open;
    open.job = JobId(7);
    open.view = ViewId(view);
    open.job_json = to_canonical_json(config);
    open.tensors = {{"w", {100}}};
    open.chunk_elements = 1024;
    open.owners = {ChunkOwner{}};
    open.kept = kept;
    return open;
  }
  void open(std::uint32_t view, bool kept = false) {
    jobs.on(open_message(view, kept));
    orders.carry_out_drops();
    jobs.lane_opened(JobId(7), ViewId(view), {});
  }
  // With the snapshot of this round.
  OpenJob resume_message(std::uint32_t view, std::uint64_t round = 5) const {
    OpenJob open = open_message(view);
    open.resume = true;
    open.resume_round = Round(round);
    return open;
  }
  void restart(std::uint32_t view) { jobs.on(StopJob{JobId(7), ViewId(view), StopKind::kRestart, Round(), "lost"}); }
  template <class M>
  std::vector<M> take() {
    std::vector<M> found;
    for (const ControlMessage& message : sent) {
      if (const M* m = std::get_if<M>(&message)) found.push_back(*m);
    }
    sent.clear();
    return found;
  }

  FakeLane lane;
  FakeSnapshots snapshots;
  sim::Disk disk;
  sim::StoreSim store{disk, true};
  FakeOrders orders{store};
  std::vector<ControlMessage> sent;
  ControlJobs jobs;
};

}  // namespace

TEST_CASE("a view that is opened again stays open, and its server says again that it is ready") {
  Server server;
  server.jobs.on(server.open_message(3));
  const std::vector<std::string> commands = server.lane.said;
  server.jobs.on(server.open_message(3));  // is not ready yet
  CHECK(server.take<ShardReady>().empty());
  server.jobs.lane_opened(JobId(7), ViewId(3), {});
  CHECK(server.take<ShardReady>().size() == 1);
  server.jobs.on(server.open_message(3));
  const auto ready = server.take<ShardReady>();
  REQUIRE(ready.size() == 1);
  CHECK(ready[0].ok);
  CHECK(server.lane.said == commands);
}

TEST_CASE("state that was kept survives a view that never got further than opening") {
  Server server;
  server.open(3);
  server.restart(3);
  server.jobs.lane_parked(JobId(7), ViewId(3), true, Version(5), Version(6));
  server.sent.clear();
  server.jobs.on(server.open_message(4, true));
  server.restart(4);  // the lane has not said that it is open
  CHECK(server.lane.said.back() == "park");
  server.jobs.lane_parked(JobId(7), ViewId(4), true, Version(5), Version(6));
  const auto kept = server.take<ShardKept>();
  REQUIRE(kept.size() == 1);
  CHECK(kept[0].any);
  CHECK(kept[0].max_version == Version(6));
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
  Server server;
  server.open(3);
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
  Server server;
  server.open(3);
  server.jobs.on(SnapshotAt{JobId(7), ViewId(3), Round(9)});
  REQUIRE(server.snapshots.expected.size() == 1);
  CHECK(server.snapshots.expected[0].paced);
  server.jobs.on(StopJob{JobId(7), ViewId(3), StopKind::kFinished, Round(9), "done"});
  CHECK(server.snapshots.expected.size() == 1);
  CHECK(server.snapshots.hurried == std::vector<Round>{Round(9)});
}

TEST_CASE("what a job ends with stays in memory until it is committed, and is told of when it is asked for") {
  Server server;
  server.open(3);
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
  Server server;
  server.open(3);
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
  Server server;
  server.open(3);
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
  const auto lost = server.jobs.not_saved();
  REQUIRE(lost.size() == 1);
  CHECK(lost[0].job == "job");
  CHECK(lost[0].round == Round(5));
  CHECK(lost[0].reason.find("its view 3 was over") != std::string::npos);
  CHECK(lost[0].reason.find(open.resume ? "is of round 4" : "it has no snapshot") != std::string::npos);
}

TEST_CASE("a last state is written though a snapshot of the same round was named too late") {
  Server server;
  server.open(3);
  server.jobs.on(SnapshotAt{JobId(7), ViewId(3), Round(5)});
  server.jobs.lane_snapshot(LaneIndex(0), JobId(7), ViewId(3), Round(5), false);
  server.jobs.on(StopJob{JobId(7), ViewId(3), StopKind::kFinished, Round(5), "complete"});
  CHECK(server.snapshots.hurried.empty());
  REQUIRE(server.snapshots.expected.size() == 2);
  server.jobs.snapshot_finished(
      SnapshotDone{JobId(7), ViewId(3), Round(5), false, 0, "lane 0 is past it", ErrorCode::kStopped});
  CHECK(server.take<SnapshotDone>().empty());
  server.jobs.snapshot_finished(SnapshotDone{JobId(7), ViewId(3), Round(5), true, 1, {}});
  const auto done = server.take<SnapshotDone>();
  REQUIRE(done.size() == 1);
  CHECK(done[0].ok);
}

// An order to write a checkpoint's file from memory.
WriteCheckpoint write_order(std::uint32_t view, std::uint64_t round) {
  return {9, JobId(7), Round(round), "/shared/job-round-5.partial", ViewId(view)};
}

TEST_CASE("a running job's round goes into a checkpoint, and counts as no snapshot") {
  Server server;
  server.open(3);
  server.jobs.on(write_order(3, 5));
  REQUIRE(server.snapshots.expected.size() == 1);
  CHECK(server.snapshots.expected[0].checkpoint->operation == 9);
  CHECK(server.lane.said.back() == "snapshot");
  SUBCASE("it is written") {
    server.jobs.checkpoint_written(write_order(3, 5), {9, true, {}, {}, 100, "sum", false});
    const auto done = server.take<CheckpointDone>();
    REQUIRE(done.size() == 1);
    CHECK(done[0].checksum == "sum");
    CHECK(server.take<SnapshotDone>().empty());
    const auto status = server.jobs.statuses();
    REQUIRE(status.size() == 1);
    CHECK_FALSE(status[0].snapshot_durable);
    CHECK_FALSE(status[0].snapshot_pending);
  }
  SUBCASE("the job stops at that round meanwhile: that state goes into the store") {
    server.jobs.on(StopJob{JobId(7), ViewId(3), StopKind::kStopped, Round(5), "stopped"});
    REQUIRE(server.snapshots.expected.size() == 2);
    CHECK_FALSE(server.snapshots.expected[1].checkpoint);
    CHECK(server.snapshots.hurried.empty());
    server.jobs.checkpoint_written(write_order(3, 5), {9, false, ErrorCode::kStopped, "a newer one"});
    CHECK(server.take<SnapshotDone>().empty());
    server.jobs.snapshot_finished(SnapshotDone{JobId(7), ViewId(3), Round(5), true, 1, {}});
    CHECK(server.take<SnapshotDone>().size() == 1);
  }
  SUBCASE("it is given up") {
    server.jobs.give_up({JobId(0), "/shared/job-round-5.partial"});
    CHECK(server.snapshots.abandoned == std::vector<Round>{Round(5)});
    server.jobs.checkpoint_written(write_order(3, 5), {9, false, ErrorCode::kStopped, "given up"});
    CHECK_FALSE(server.jobs.empty());
    CHECK_FALSE(server.jobs.statuses()[0].snapshot_pending);
  }
  SUBCASE("another one is given up") {
    server.jobs.give_up({JobId(8), "/shared/other-round-5.partial"});
    CHECK(server.snapshots.abandoned.empty());
  }
  SUBCASE("its view ends") {
    server.restart(3);
    server.jobs.checkpoint_written(write_order(3, 5), {9, false, ErrorCode::kStopped, "the view is over"});
    CHECK(server.take<CheckpointDone>().size() == 1);
  }
}

TEST_CASE("what lanes keep of a view that is over goes into a checkpoint, and is kept all the same") {
  Server server;
  server.open(3);
  server.restart(3);
  server.jobs.lane_parked(JobId(7), ViewId(3), true, Version(5), Version(5));
  SUBCASE("another round is refused") {
    server.jobs.on(write_order(3, 6));
    const auto done = server.take<CheckpointDone>();
    REQUIRE(done.size() == 1);
    CHECK_FALSE(done[0].ok);
    CHECK(server.snapshots.expected.empty());
    CHECK(server.jobs.keeps());
  }
  SUBCASE("the next view opens with it before it is written") {
    server.jobs.on(write_order(3, 5));
    server.jobs.lane_stopped(JobId(7), ViewId(3), Round(5), true);
    server.jobs.lane_parked(JobId(7), ViewId(3), true, Version(5), Version(5));
    server.jobs.on(server.open_message(4, true));
    CHECK(std::ranges::count(server.lane.said, "reopen") == 1);
    server.jobs.checkpoint_written(write_order(3, 5), {9, false, ErrorCode::kStopped, "the next view opens"});
    CHECK(server.take<CheckpointDone>().size() == 1);
    server.jobs.lane_opened(JobId(7), ViewId(4), {});
    const auto ready = server.take<ShardReady>();
    REQUIRE(ready.size() == 1);
    CHECK(ready[0].ok);
  }
  SUBCASE("it is given up, and another one takes its place") {
    WriteCheckpoint second = write_order(3, 5);
    second.operation = 10;
    second.directory = "/elsewhere/job-round-5.partial";
    server.jobs.on(write_order(3, 5));
    server.jobs.lane_parked(JobId(7), ViewId(3), true, Version(5), Version(5));
    server.jobs.give_up({JobId(0), "/shared/job-round-5.partial"});
    CHECK(server.jobs.empty());
    CHECK(server.jobs.keeps());
    server.jobs.on(second);
    REQUIRE(server.snapshots.expected.size() == 2);
    server.jobs.checkpoint_written(write_order(3, 5), {9, false, ErrorCode::kStopped, "given up"});
    CHECK_FALSE(server.jobs.empty());
    server.jobs.lane_parked(JobId(7), ViewId(3), true, Version(5), Version(5));
    server.jobs.checkpoint_written(second, {10, true, {}, {}, 100, "sum", false});
    CHECK(server.jobs.empty());
    CHECK(server.jobs.keeps());
  }
  SUBCASE("the job is removed meanwhile") {
    server.jobs.on(write_order(3, 5));
    server.jobs.give_up({JobId(7), {}});
    CHECK_FALSE(server.jobs.contains(JobId(7)));
  }
  SUBCASE("its round is written") {
    server.jobs.on(write_order(3, 5));
    REQUIRE(server.snapshots.expected.size() == 1);
    CHECK(server.lane.said.back() == "stop and park");
    server.jobs.lane_stopped(JobId(7), ViewId(3), Round(5), true);
    server.jobs.lane_parked(JobId(7), ViewId(3), true, Version(5), Version(5));
    server.jobs.checkpoint_written(write_order(3, 5), {9, true, {}, {}, 100, "sum", false});
    const auto done = server.take<CheckpointDone>();
    REQUIRE(done.size() == 1);
    CHECK(done[0].ok);
    CHECK(server.jobs.empty());
    CHECK(server.jobs.keeps());  // for the next view
    OpenJob again = server.open_message(4, true);
    server.jobs.on(again);
    CHECK(std::ranges::count(server.lane.said, "reopen") == 1);
  }
}

TEST_CASE("a server that is stopped while it is brought up to the others names the round that it had come to") {
  Server server;
  server.open(3);
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
  Server server;
  server.open(3);
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
  Server server;
  server.open(3);
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
  server.orders.carry_out_drops();
  if (open.resume) {
    REQUIRE(server.orders.loads.size() == 1);
    REQUIRE(server.orders.loads[0].chunk());
    server.orders.loads[0].done({});
  }
  server.jobs.lane_opened(JobId(7), ViewId(2), {});
  const auto refused = server.take<ShardReady>();
  REQUIRE(refused.size() == 1);
  CHECK_FALSE(refused[0].ok);
  CHECK(refused[0].code == ErrorCode::kUnavailable);
  CHECK(refused[0].message.find("full") != std::string::npos);
  CHECK_FALSE(server.jobs.contains(JobId(7)));
  CHECK(server.store.jobs()[0].snapshots.size() == 2);
  server.disk.full = false;
  open.view = ViewId(3);
  open.resume = false;
  server.jobs.on(open);
  server.orders.carry_out_drops();
  server.jobs.lane_opened(JobId(7), ViewId(3), {});
  const auto ready = server.take<ShardReady>();
  REQUIRE(ready.size() == 1);
  CHECK(ready[0].ok);
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
  Server server;
  server.open(3);
  const StopJob stop{JobId(7), ViewId(3), StopKind::kStopped, Round(9), "stopped"};
  server.jobs.on(stop);
  const std::size_t before = server.lane.said.size();
  server.jobs.on(stop);
  REQUIRE(server.lane.said.size() == before + 1);
  CHECK(server.lane.said.back() == "await longer");
  CHECK(server.take<SnapshotDone>().empty());
}

TEST_CASE("whoever hears that lanes have yet to say what they keep of a last state hears what became of it") {
  Server server;
  server.open(3);
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
  const auto kept = server.take<ShardKept>();
  REQUIRE(kept.size() == 1);
  CHECK(kept[0].any == any);
}

TEST_CASE("no view opens before an earlier one's last snapshot has ended, and is dropped") {
  Server server;
  server.open(1);
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
    server.orders.carry_out_drops();
    const auto ready = server.take<ShardReady>();
    REQUIRE(ready.size() == 1);
    CHECK(ready[0].ok);
    CHECK(ready[0].view == ViewId(2));
    CHECK(server.store.jobs().empty());
  }
  SUBCASE("it has not") {
    server.disk.full = true;
    server.jobs.snapshot_finished(SnapshotDone{JobId(7), ViewId(1), Round(9), true, 1, {}});
    server.orders.carry_out_drops();
    const auto ready = server.take<ShardReady>();
    REQUIRE(ready.size() == 1);
    CHECK_FALSE(ready[0].ok);
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
    const auto ready = server.take<ShardReady>();
    REQUIRE(ready.size() == 1);
    CHECK_FALSE(ready[0].ok);
    CHECK(ready[0].code == ErrorCode::kLimit);
    return ready[0].message;
  };
  CHECK(refused() ==
        "job 'other' needs up to 15.3 MiB on server 0, where jobs may take 19.1 MiB, and others have 15.3 MiB (job "
        "'job': 15.3 MiB); raise [limits] max_memory in server.toml, use more servers, or wait for another job to end");
  CHECK(server.jobs.contains(JobId(7)));
  server.restart(1);  // its state stays in memory
  server.jobs.lane_parked(JobId(7), ViewId(1), true, Version(5), Version(5));
  server.sent.clear();
  CHECK(refused().find("job 'job' between two views: 15.3 MiB") != std::string::npos);
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
  const auto ready = server.take<ShardReady>();
  REQUIRE(ready.size() == 1);
  CHECK(ready[0].code == ErrorCode::kLimit);
  CHECK(server.lane.said.empty());
}

TEST_CASE("stops, and decisions of other jobs, are heard while a job loads, and heartbeats say how far it is") {
  Server server;
  OpenJob other = server.open_message(2);
  other.job = JobId(8);
  JobConfig config;
  config.name = "other";
  config.gate.clip_norm = 1.0;
  other.job_json = to_canonical_json(config);
  server.jobs.on(other);
  server.jobs.lane_opened(JobId(8), ViewId(2), {});
  server.jobs.on(server.resume_message(3));
  REQUIRE(server.orders.loads.size() == 1);
  CHECK(server.orders.loads[0].info.round == Round(5));
  server.jobs.on(RoundDecision{JobId(8), ViewId(2), Round(1), {}});
  CHECK(server.lane.said.back() == "decide");
  REQUIRE(server.orders.loads[0].chunk());
  CHECK(server.lane.said.back() == "restore");
  CHECK(server.jobs.progress().size() == 2);
  CHECK(server.jobs.progress()[0].loaded > 0);
  CHECK(server.jobs.progress()[1].loaded == 0);
  server.sent.clear();
  server.restart(3);
  const auto kept = server.take<ShardKept>();
  REQUIRE(kept.size() == 1);
  CHECK_FALSE(kept[0].any);  // to everybody it is what the store has
}

TEST_CASE("what was loaded, or is being, for a view that never began is not loaded again") {
  Server server;
  server.jobs.on(server.resume_message(3));
  REQUIRE(server.orders.loads.size() == 1);
  const FakeOrders::Load load = server.orders.loads[0];
  SUBCASE("it is there when the view is over") {
    REQUIRE(load.chunk());
    load.done({});
    CHECK(server.lane.said.back() == "opened");
    server.restart(3);
    CHECK(server.lane.said.back() == "park");
    SUBCASE("the lane has said so") {
      server.jobs.lane_parked(JobId(7), ViewId(3), true, Version(5), Version(5));
      server.jobs.on(server.resume_message(4));
    }
    SUBCASE("it has not") {
      server.jobs.on(server.resume_message(4));
      server.jobs.lane_parked(JobId(7), ViewId(3), true, Version(5), Version(5));
    }
  }
  SUBCASE("it is there before the next view opens") {
    server.restart(3);
    REQUIRE(load.chunk());
    load.done({});
    CHECK(server.lane.said.back() == "park");
    server.jobs.lane_parked(JobId(7), ViewId(3), true, Version(5), Version(5));
    server.jobs.on(server.resume_message(4));
  }
  SUBCASE("it is there after a third view has opened") {
    server.restart(3);
    server.jobs.on(server.resume_message(4));
    server.restart(4);
    server.jobs.on(server.resume_message(4));
    REQUIRE(load.chunk());
    CHECK(server.jobs.progress()[0].loaded > 0);
    load.done({});
    server.jobs.lane_parked(JobId(7), ViewId(3), true, Version(5), Version(5));
  }
  const std::vector<std::string>& said = server.lane.said;
  REQUIRE(said.size() >= 2);
  CHECK(said[said.size() - 2] == "reopen");
  CHECK(said.back() == "opened");
  server.sent.clear();
  server.jobs.lane_opened(JobId(7), ViewId(4), {});
  const auto ready = server.take<ShardReady>();
  REQUIRE(ready.size() == 1);
  CHECK(ready[0].ok);
  CHECK(ready[0].view == ViewId(4));
  CHECK(server.orders.loads.size() == 1);
}

TEST_CASE("what a view that got no further than its snapshot was loaded with serves the next one, too") {
  Server server;
  server.jobs.on(server.resume_message(3));
  REQUIRE(server.orders.loads.size() == 1);
  REQUIRE(server.orders.loads[0].chunk());
  server.orders.loads[0].done({});
  server.jobs.lane_opened(JobId(7), ViewId(3), {});
  server.restart(3);  // other servers were still loading
  std::uint64_t reached = 5;
  SUBCASE("no further") {}
  SUBCASE("further") {
    reached = 6;
  }
  server.jobs.lane_parked(JobId(7), ViewId(3), true, Version(5), Version(reached));
  const auto kept = server.take<ShardKept>();
  REQUIRE(kept.size() == 1);
  CHECK(kept[0].any);
  server.jobs.on(server.resume_message(4));
  CHECK(server.orders.loads.size() == (reached == 5 ? 1 : 2));
  CHECK(server.lane.said.back() == (reached == 5 ? "opened" : "open"));
}

TEST_CASE("what was loaded is of no use to a view that begins with something else") {
  Server server;
  server.jobs.on(server.resume_message(3));
  REQUIRE(server.orders.loads.size() == 1);
  const FakeOrders::Load load = server.orders.loads[0];
  server.restart(3);
  OpenJob next = server.resume_message(4);
  std::size_t loads = 2;
  SUBCASE("another round") {
    next.resume_round = Round(6);
  }
  SUBCASE("other nodes") {
    next.nodes = 2;
  }
  SUBCASE("another configuration") {
    JobConfig config;
    config.name = "job";
    config.optimizer.lr = 0.75;
    next.job_json = to_canonical_json(config);
  }
  SUBCASE("no snapshot") {
    next.resume = false;
    loads = 1;
  }
  server.jobs.on(next);
  CHECK(server.orders.loads.size() == loads);
  CHECK_FALSE(load.chunk());  // nobody reads on
  server.lane.said.clear();
  load.done(fail(ErrorCode::kStopped, "nobody wants it"));
  CHECK(server.lane.said.empty());
}

TEST_CASE("a load that fails after its view is over fails the view that goes on with it, in the store's words") {
  Server server;
  server.jobs.on(server.resume_message(3));
  server.restart(3);
  server.jobs.on(server.resume_message(4));
  server.sent.clear();
  REQUIRE(server.orders.loads.size() == 1);
  server.orders.loads[0].done(fail(ErrorCode::kStore, "a block's checksum does not match"));
  const auto refused = server.take<ShardReady>();
  REQUIRE(refused.size() == 1);
  CHECK_FALSE(refused[0].ok);
  CHECK(refused[0].view == ViewId(4));
  CHECK(refused[0].message.find("checksum") != std::string::npos);
  server.jobs.on(server.resume_message(5));
  CHECK(server.orders.loads.size() == 2);
}

TEST_CASE("nobody is told of snapshots that are just being dropped, and everybody of those that could not be") {
  Server server;
  for (const std::uint64_t round : {5, 10}) {
    const auto left = server.store.create({JobId(7), "job", Round(round), 0, "sgd", 1});
    REQUIRE(server.store.record(left));
  }
  const auto told = [&] {
    ServerHello hello;
    server.jobs.describe(hello);
    return hello.stored.empty() ? std::size_t{0} : hello.stored[0].snapshots.size();
  };
  CHECK(told() == 2);
  server.jobs.on(SnapshotCommit{JobId(7), Round(10)});
  CHECK(told() == 1);
  server.disk.full = true;
  server.orders.carry_out_drops();
  CHECK(told() == 2);
  server.disk.full = false;
  server.jobs.on(SnapshotCommit{JobId(7), Round(10)});
  server.orders.carry_out_drops();
  CHECK(told() == 1);
}

}  // namespace tributary::control_jobs_test
