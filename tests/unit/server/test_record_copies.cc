// Copies of the coordinator's job records on a server.
#include "server/coordinator/cluster/job_record_seal.h"
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
  return record;
}

JobRecordCopy copy_of(const JobRecord& record) {
  const std::string sealed = records::seal(record);
  const auto bytes = std::as_bytes(std::span(sealed));
  return {record.job, {bytes.begin(), bytes.end()}};
}

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
  server.orders.carry_out();
  const auto ready = server.take<ShardReady>();
  REQUIRE(ready.size() == 1);
  CHECK(ready[0].ok);
  REQUIRE(server.disk.jobs.contains(JobId(7)));
  CHECK(server.disk.jobs.at(JobId(7)).record.view == ViewId(3));
}

TEST_CASE("a view opens although the copy cannot be saved") {
  Server server(second_server());
  server.disk.full = true;
  server.jobs.on(copy_of(record_of(7, 3)));
  server.jobs.on(open_on(server, 3));
  server.jobs.lane_opened(JobId(7), ViewId(3), {});
  server.orders.carry_out();
  const auto ready = server.take<ShardReady>();
  REQUIRE(ready.size() == 1);
  CHECK(ready[0].ok);
  CHECK_FALSE(server.disk.jobs.contains(JobId(7)));
}

TEST_CASE("a coordinator gets the copies one after the other, and hears that there are no more") {
  Server server(second_server());
  const auto says_that_it_has_some = [&] {
    ServerHello hello;
    server.jobs.describe(hello);
    return hello.records;
  };
  CHECK_FALSE(says_that_it_has_some());
  server.jobs.on(copy_of(record_of(9, 1)));
  server.jobs.on(copy_of(record_of(7, 3)));
  server.orders.carry_out();
  CHECK(says_that_it_has_some());
  std::vector<JobId> got;
  for (JobId after;;) {
    server.jobs.on(WantRecord{after});
    server.orders.carry_out();
    const auto copies = server.take<JobRecordCopy>();
    REQUIRE(copies.size() == 1);
    after = copies[0].job;
    if (after.value == 0) break;
    got.push_back(after);
    const auto& bytes = copies[0].record;
    const auto record = records::unseal_job({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, "the copy");
    REQUIRE(record);
    CHECK(record->job == after);
  }
  CHECK(got == std::vector<JobId>{JobId(7), JobId(9)});
  // A process that was started again has them, too.
  ControlJobs again(second_server(), &server.store, quiet_logger(), static_cast<ControlJobsOutput&>(server));
  ServerHello hello;
  again.describe(hello);
  CHECK(hello.records);
}

TEST_CASE("a job that is gone leaves no copy, but server 0's store has the registry itself") {
  for (const std::uint16_t index : {0, 1}) {
    ServerConfig config = second_server();
    config.index = index;
    Server server(config);
    REQUIRE(server.store.save(record_of(7, 3)));
    server.jobs.forget(JobId(7));
    server.orders.carry_out();
    CHECK(server.disk.jobs.contains(JobId(7)) == (index == 0));
  }
}

TEST_CASE("nonsense in place of a record is not saved") {
  Server server(second_server());
  server.jobs.on(JobRecordCopy{JobId(7), std::vector<std::byte>(100)});
  server.orders.carry_out();
  CHECK(server.disk.jobs.empty());
  server.open(1);
  CHECK(server.take<ShardReady>().size() == 1);
}

}  // namespace tributary::control_jobs_test
