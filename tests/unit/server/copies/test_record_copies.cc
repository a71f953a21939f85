// Copies of the coordinator's job records on a server.
#include "server/coordinator/cluster/job_record_seal.h"
#include "tests/unit/required.h"
#include "tests/unit/server/control_jobs_fixture.h"

namespace tributary::control_jobs_test {

namespace {

JobRecord record_of(std::uint64_t job, std::uint32_t view) {
  JobRecord record;
  record.job = JobId(job);
  record.job_json = to_canonical_json(JobConfig());
  record.tensors = {{"w", {100}}};
  record.chunk_elements = 1024;
  record.owners = {ChunkOwner{}};
  record.view = ViewId(view);
  record.edition = view;
  return record;
}

using records::copy_of;

ServerConfig second_server() {
  ServerConfig config;
  config.index = 1;
  config.servers = 2;
  return config;
}

OpenJob open_on(const Server& server, std::uint32_t view) {
  OpenJob open = server.open_message(view);
  open.owners = {ChunkOwner{ShardIndex(1), LaneIndex(0)}};
  return open;
}

}  // namespace

TEST_CASE("a view opens when the copy of its record is saved") {
  Server server(second_server());
  server.jobs.on(copy_of(record_of(7, 3)));
  server.jobs.on(open_on(server, 3));
  server.jobs.lane_opened(JobId(7), ViewId(3), {});
  CHECK(server.take<ShardReady>().empty());
  server.records.carry_out();
  const auto ready = only_one(server.take<ShardReady>());
  CHECK(ready.ok);
  REQUIRE(server.disk.jobs.contains(JobId(7)));
  CHECK(server.disk.jobs.at(JobId(7)).record.view == ViewId(3));
}

TEST_CASE("a view opens although the copy cannot be saved") {
  Server server(second_server());
  server.disk.full = true;
  server.jobs.on(copy_of(record_of(7, 3)));
  server.jobs.on(open_on(server, 3));
  server.jobs.lane_opened(JobId(7), ViewId(3), {});
  server.records.carry_out();
  const auto ready = only_one(server.take<ShardReady>());
  CHECK(ready.ok);
  CHECK_FALSE(server.disk.jobs.contains(JobId(7)));
}

TEST_CASE("snapshots before a committed one go when the copy of the record is saved") {
  Server server(second_server());
  server.jobs.on(copy_of(record_of(7, 3)));
  server.jobs.on(SnapshotCommit{JobId(7), Round(5)});
  CHECK(server.orders.work.empty());
  server.records.carry_out();
  CHECK(server.orders.work.size() == 1);
  server.jobs.on(SnapshotCommit{JobId(7), Round(6)});
  CHECK(server.orders.work.size() == 2);
}

TEST_CASE("a coordinator hears of copies that are saved, and gets those that it asks for") {
  Server server(second_server());
  const auto held = [&](ControlJobs& jobs) {
    ServerHello hello;
    jobs.describe(hello);
    return hello.copies;
  };
  CHECK(held(server.jobs).empty());
  server.jobs.on(copy_of(record_of(9, 1)));
  server.jobs.on(copy_of(record_of(7, 3)));
  CHECK(held(server.jobs).empty());
  server.records.carry_out();
  const std::vector<HeldRecord> both = {{JobId(7), 3}, {JobId(9), 1}};
  CHECK(held(server.jobs) == both);
  CHECK(server.take<HeldRecord>() == std::vector<HeldRecord>{{JobId(9), 1}, {JobId(7), 3}});
  server.jobs.on(WantRecord{JobId(7)});
  server.records.carry_out();
  const auto copies = only_one(server.take<JobRecordCopy>());
  const auto record = required(records::record_in(copies, "the copy"));
  CHECK(record.view == ViewId(3));
  // One that is not there is empty: another server may have it.
  server.jobs.on(WantRecord{JobId(8)});
  server.records.carry_out();
  const auto none = only_one(server.take<JobRecordCopy>());
  CHECK(none.job == JobId(8));
  CHECK(none.record.empty());
  // A process that was started again has them, too.
  ControlJobs again(second_server(), &server.store, quiet_logger(), static_cast<ControlJobsOutput&>(server));
  CHECK(held(again) == both);
  // Server 0's are the registry.
  ControlJobs first(ServerConfig(), &server.store, quiet_logger(), static_cast<ControlJobsOutput&>(server));
  first.coordinator_is_here(true);
  CHECK(held(first).empty());
}

TEST_CASE("a job that is gone leaves no copy, but server 0's store has the registry itself") {
  for (const std::uint16_t index : {0, 1}) {
    ServerConfig config = second_server();
    config.index = index;
    Server server(config);
    server.jobs.coordinator_is_here(index == 0);
    server.disk.jobs[JobId(7)].record = record_of(7, 3);
    server.jobs.on(copy_of(record_of(8, 3)));
    server.records.carry_out();
    server.jobs.on(DropCheckpoint{JobId(8), {}});
    server.jobs.on(DropCheckpoint{JobId(7), {}});  // it does not know of that one
    server.records.carry_out();
    CHECK_FALSE(server.disk.jobs.contains(JobId(8)));
    CHECK(server.disk.jobs.contains(JobId(7)));
  }
}

TEST_CASE("an older edition is not written over a newer one") {
  Server server(second_server());
  server.jobs.on(copy_of(record_of(7, 5)));
  server.records.carry_out();
  server.take<HeldRecord>();
  server.jobs.on(copy_of(record_of(7, 4)));
  server.records.carry_out();
  CHECK(server.disk.jobs.at(JobId(7)).record.view == ViewId(5));
  CHECK(server.take<HeldRecord>() == std::vector<HeldRecord>{{JobId(7), 5}});
}

TEST_CASE("nonsense in place of a record is not saved") {
  Server server(second_server());
  server.jobs.on(JobRecordCopy{JobId(7), std::vector<std::byte>(100)});
  server.records.carry_out();
  CHECK(server.disk.jobs.empty());
  server.open(1);
  CHECK(server.take<ShardReady>().size() == 1);
}

TEST_CASE("where the coordinator is in this process, its registry is no copy; when it has gone, the records are") {
  Server server(second_server());
  const auto held = [&] {
    ServerHello hello;
    server.jobs.describe(hello);
    return hello.copies;
  };
  server.jobs.on(copy_of(record_of(7, 3)));
  server.records.carry_out();
  REQUIRE(held().size() == 1);
  server.jobs.coordinator_is_here(true);
  CHECK(held().empty());
  server.jobs.on(copy_of(record_of(8, 3)));  // an old message
  server.records.carry_out();
  CHECK(held().empty());
  CHECK_FALSE(server.disk.jobs.contains(JobId(8)));
  server.disk.jobs[JobId(9)].record = record_of(9, 5);  // the coordinator's
  server.jobs.coordinator_is_here(false);
  CHECK(held() == std::vector<HeldRecord>{{JobId(7), 3}, {JobId(9), 5}});
}

}  // namespace tributary::control_jobs_test
