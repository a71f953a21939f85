// ControlJobs: what is in memory goes into checkpoints.
#include "tests/unit/required.h"
#include "tests/unit/server/control_jobs_fixture.h"

namespace tributary::control_jobs_test {

WriteCheckpoint write_order(std::uint32_t view, std::uint64_t round) {
  return {9, JobId(7), Round(round), "/shared/job-round-5.partial", ViewId(view)};
}

TEST_CASE("a running job's round goes into a checkpoint, and counts as no snapshot") {
  OpenServer server(3);
  server.jobs.on(write_order(3, 5));
  REQUIRE(server.snapshots.expected.size() == 1);
  CHECK(server.snapshots.expected[0].checkpoint->operation == 9);
  CHECK(server.lane.said.back() == "snapshot");
  SUBCASE("it is written") {
    server.jobs.checkpoint_written(write_order(3, 5), {9, true, {}, {}, 100, "sum", false});
    const auto done = only_one(server.take<CheckpointDone>());
    CHECK(done.checksum == "sum");
    CHECK(server.take<SnapshotDone>().empty());
    const auto status = only_one(server.jobs.statuses());
    CHECK_FALSE(status.snapshot_durable);
    CHECK_FALSE(status.snapshot_pending);
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
  OpenServer server(3);
  server.restart(3);
  server.jobs.lane_parked(JobId(7), ViewId(3), true, Version(5), Version(5));
  SUBCASE("another round is refused") {
    server.jobs.on(write_order(3, 6));
    const auto done = only_one(server.take<CheckpointDone>());
    CHECK_FALSE(done.ok);
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
    const auto ready = only_one(server.take<ShardReady>());
    CHECK(ready.ok);
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
    const auto done = only_one(server.take<CheckpointDone>());
    CHECK(done.ok);
    CHECK(server.jobs.empty());
    CHECK(server.jobs.keeps());  // for the next view
    OpenJob again = server.open_message(4, true);
    server.jobs.on(again);
    CHECK(std::ranges::count(server.lane.said, "reopen") == 1);
  }
}

}  // namespace tributary::control_jobs_test
