// The jobs of a lane: snapshots and their memory, stops, restores, rounds that wait.
#include <doctest/doctest.h>
#include <spdlog/sinks/ringbuffer_sink.h>

#include "tests/unit/required.h"
#include "tests/unit/server/lane/one_lane.h"

namespace tributary::lane_jobs_test {
namespace {

using namespace testing;

TEST_CASE_FIXTURE(Initialised<2>, "a snapshot captures every chunk at its round, and a commit shows in later answers") {
  server.lane->snapshot_at(JobId(7), ViewId(1), Round(1));
  REQUIRE(server.listener.snapshot() == true);
  one_round(client, 1, 9.0f);
  one_round(client, 2, 8.0f);
  const auto captured = required(server.listener.captured());
  CHECK(captured.chunk == ChunkIndex(0));
  CHECK(captured.state.version == Version(1));
  CHECK(captured.state.params.floats()[5] == 9.0f);  // the second round went elsewhere
  server.lane->snapshot_written(JobId(7));
  // Chunk 1 is still at version 0: the lanes cannot capture another round before it has reached this one.
  server.lane->snapshot_at(JobId(7), ViewId(1), Round(5));
  CHECK(server.listener.snapshot() == false);
  client.push(key_of(0), 3, filled(2.0f));
  required(client.expect<Answer>());
}

TEST_CASE_FIXTURE(Initialised<2>,
                  "memory for a snapshot is there before the first step after it, and its lane says so") {
  one_round(client, 1, 9.0f);
  const auto bytes = [&] { return server.gauges->pool_bytes.load(); };
  REQUIRE(eventually([&] { return bytes() > 0; }));
  const std::uint64_t before = bytes();
  server.lane->prepare_snapshot(JobId(7), ViewId(2));  // of another view
  server.lane->snapshot_at(JobId(7), ViewId(2), Round(2));
  REQUIRE(server.listener.snapshot() == false);
  CHECK_FALSE(server.gauges->prepared.load());
  server.lane->prepare_snapshot(JobId(7), ViewId(1));
  REQUIRE(eventually([&] { return server.gauges->prepared.load(); }));
  one_round(client, 2, 8.0f);
  REQUIRE(eventually([&] { return bytes() > before; }));
  const std::uint64_t prepared = bytes();
  server.lane->snapshot_at(JobId(7), ViewId(1), Round(3));
  REQUIRE(server.listener.snapshot() == true);
  CHECK_FALSE(server.gauges->prepared.load());
  one_round(client, 3, 7.0f);
  one_round(client, 4, 6.0f);
  const auto captured = required(server.listener.captured());
  CHECK(captured.state.params.floats()[5] == 7.0f);
  CHECK(bytes() == prepared);  // the step after the capture took what was there
}

TEST_CASE("the next snapshot soon finds the last one's memory; when none comes it goes back to the system") {
  for (const std::uint64_t idle_memory_ms : {60'000u, 1u}) {
    CAPTURE(idle_memory_ms);
    OneLane server("tcp://127.0.0.1:*", quiet_logger(), idle_memory_ms);
    server.open(1, 1);
    RawClient client(server.lane->endpoint());
    initialise(client, 1, 10.0f);
    one_round(client, 1, 9.0f);
    const auto bytes = [&] { return server.gauges->pool_bytes.load(); };
    REQUIRE(eventually([&] { return bytes() > 0; }));
    const std::uint64_t steady = bytes();
    server.lane->snapshot_at(JobId(7), ViewId(1), Round(2));
    REQUIRE(server.listener.snapshot() == true);
    one_round(client, 2, 8.0f);
    one_round(client, 3, 7.0f);
    REQUIRE(server.listener.captured());
    REQUIRE(eventually([&] { return bytes() > steady; }));
    server.lane->snapshot_written(JobId(7));
    if (idle_memory_ms > 1) {
      // Figures are published every 100 ms while there is something to do.
      for (std::uint64_t round = 4; round < 8; ++round) {
        one_round(client, round, 10.0f - static_cast<float>(round));
        std::this_thread::sleep_for(std::chrono::milliseconds(60));
      }
      CHECK(bytes() > steady);
    } else {
      CHECK(eventually([&] { return bytes() == steady; }));
    }
  }
}

TEST_CASE_FIXTURE(Initialised<1>,
                  "stopping a job captures its final state, and its memory goes when the last reader lets go") {
  one_round(client, 1, 9.0f);
  server.lane->stop_job(JobId(7), ViewId(1), true, Round(1), false);
  const auto stopped = required(server.listener.stopped());
  CHECK(stopped.kept);
  auto captured = server.listener.captured();
  REQUIRE(captured);
  client.push(key_of(0), 2, filled(2.0f));
  CHECK(expect_error(client).code == ErrorCode::kUnknownJob);
  CHECK(eventually([&] { return server.lane->counters().jobs.value() == 0; }));
  CHECK(server.lane->counters().pool_bytes.value() > 0);
  CHECK(captured->state.params.floats()[0] == 9.0f);
  captured.reset();
  CHECK(eventually([&] { return server.lane->counters().pool_bytes.value() == 0; }));
  CHECK(server.lane->counters().pushes.value() == 1);  // counters outlive the job
}

TEST_CASE_FIXTURE(Initialised<1>, "what a lane keeps of a view that is over is captured by a stop, and kept on") {
  one_round(client, 1, 9.0f);
  server.lane->park(JobId(7), ViewId(1));
  REQUIRE(server.listener.parked());
  server.lane->stop_job(JobId(7), ViewId(2), true, Round(1), true);  // of another view
  auto stopped = server.listener.stopped();
  REQUIRE(stopped);
  CHECK_FALSE(stopped->kept);
  const auto none = required(server.listener.parked());
  CHECK_FALSE(none.any);
  server.lane->stop_job(JobId(7), ViewId(1), true, Round(1), true);
  stopped = server.listener.stopped();
  REQUIRE(stopped);
  CHECK(stopped->kept);
  const auto captured = required(server.listener.captured());
  CHECK(captured.round == Round(1));
  CHECK(captured.state.params.floats()[0] == 9.0f);
  const auto kept = required(server.listener.parked());
  CHECK(kept.any);
  CHECK(kept.min == Version(1));
}

TEST_CASE("a stop waits for residuals while somebody says that nodes get on, and not for ever") {
  Listener listener;
  LaneOptions options;
  options.bind = "tcp://127.0.0.1:*";
  options.jobs.stop_timeout_ms = 400;
  auto lane = required(Lane::start(options, listener, quiet_logger()));
  ShardJob job = changed(small_job(1, 1), [](ViewPlan&, JobConfig& config) { config.push = EncodingId::kInt8; });
  lane->open(std::move(job), std::make_shared<LaneJobGauges>());
  lane->opened(JobId(7), ViewId(1), false);
  REQUIRE(listener.opened());
  RawClient client(lane->endpoint());
  initialise(client, 1, 10.0f);
  lane->stop_job(JobId(7), ViewId(1), true, Round(0), false);
  for (int i = 0; i < 15; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    lane->await_longer(JobId(7), ViewId(1));
  }
  client.send(Query{key_of(0), Round(1)});
  CHECK(client.expect<Resend>());  // it is still there
  const auto stopped = required(listener.stopped());
  CHECK_FALSE(stopped.kept);
  lane->await_longer(JobId(7), ViewId(1));  // and it may be said too late
  client.send(Query{key_of(0), Round(1)});
  const auto error = required(client.expect<ErrorReply>());
  CHECK(error.code == ErrorCode::kUnknownJob);
}

TEST_CASE_FIXTURE(Initialised<2>, "a job that is not at the named round is stopped without a final state") {
  one_round(client, 1, 9.0f);  // chunk 1 stays at version 0
  server.lane->stop_job(JobId(7), ViewId(1), true, Round(1), false);
  const auto stopped = required(server.listener.stopped());
  CHECK_FALSE(stopped.kept);
}

BufferRef array_of(const std::vector<float>& values) {
  BufferRef array = BufferRef::alone(values.size() * sizeof(float));
  std::ranges::copy(values, array.floats().begin());
  return array;
}

ChunkState restored_chunk(float value) {
  ChunkState result;
  result.version = Version(4);
  result.step = 4;
  result.params = array_of(filled(value));
  return result;
}

TEST_CASE("a restored job goes on from its round") {
  OneLane server;
  server.lane->open(small_job(1, 2), std::make_shared<LaneJobGauges>());
  for (std::uint32_t c = 0; c < 2; ++c) server.lane->restore(JobId(7), ViewId(1), ChunkIndex(c), restored_chunk(20.0f));
  server.lane->opened(JobId(7), ViewId(1), true);
  required(required(server.listener.opened()));
  RawClient client(server.lane->endpoint());
  client.send(Pull{key_of(0)});
  std::vector<float> values;
  const auto answer = required(client.expect<Answer>(&values));
  CHECK(answer.version == Version(4));
  CHECK(values == filled(20.0f));
  one_round(client, 5, 19.0f);
}

TEST_CASE("a restored job with clocks answers what it has, tells where its nodes are, and keeps that when it stops") {
  OneLane server;
  ShardJob job = changed(small_job(2, 1), [](ViewPlan& view, JobConfig& config) {
    config.mode = Mode::kSsp;
    config.ssp.staleness = 1;
    view.start = Round(4);
  });
  const auto gauges = std::make_shared<LaneJobGauges>(2);
  server.lane->open(std::move(job), gauges);
  ChunkState chunk = restored_chunk(20.0f);
  chunk.nodes = 2;
  chunk.clocks = {5, 4};
  server.lane->restore(JobId(7), ViewId(1), ChunkIndex(0), std::move(chunk));
  server.lane->opened(JobId(7), ViewId(1), true);
  REQUIRE(*server.listener.opened());
  CHECK(gauges->clocks[0].last.load() == 5);
  CHECK(gauges->clocks[1].furthest.load() == 4);
  RawClient client(server.lane->endpoint());
  std::vector<float> values;
  for (const std::uint64_t round : {5u, 6u}) {
    client.push(key_of(0), round, filled(2.0f));
    REQUIRE(client.expect<Ack>());
    if (round == 6) break;  // two clocks ahead of node 1
    const auto answer = required(client.expect<Answer>(&values));
    CHECK(answer.version == Version(5));
    CHECK(answer.slowest == Round(4));
    CHECK(values == filled(20.0f));  // it has that push
  }
  server.lane->stop_job(JobId(7), ViewId(1), true, Round(4), false);
  REQUIRE(server.listener.stopped());
  const auto captured = required(server.listener.captured());
  CHECK(captured.state.clocks == std::vector<std::uint64_t>{6, 4});
}

// A shard of one chunk whose pushes are int8, resumed at version 4.
void open_with_residuals(OneLane& server) {
  ShardJob job = changed(small_job(1, 1), [](ViewPlan&, JobConfig& config) { config.push = EncodingId::kInt8; });
  server.lane->open(std::move(job), std::make_shared<LaneJobGauges>());
  ChunkState chunk = restored_chunk(20.0f);
  chunk.nodes = 2;  // of the view that wrote it
  chunk.residuals = {NodeResidual::of(0, array_of(filled(0.5f))), NodeResidual::of(1, array_of(filled(0.25f)))};
  server.lane->restore(JobId(7), ViewId(1), ChunkIndex(0), std::move(chunk));
  server.lane->opened(JobId(7), ViewId(1), true);
  REQUIRE(*server.listener.opened());
}

TEST_CASE("a resumed node gets its residual first, and a stop waits for the one after its last round") {
  OneLane server;
  open_with_residuals(server);
  RawClient client(server.lane->endpoint());
  client.send(Pull{key_of(0)});
  std::vector<float> residual;
  REQUIRE(client.expect<Residual>(&residual));
  CHECK(residual == filled(0.75f));  // of both nodes, now that there is one
  const auto answer = required(client.expect<Answer>());
  CHECK(answer.residual_sent);
  const std::vector<std::byte> frame(make_encoding(EncodingId::kInt8)->bytes(kChunkElements));
  client.send(Push{key_of(0), Round(5), 1, EncodingId::kInt8}, frame);
  REQUIRE(client.expect<Answer>());
  server.lane->stop_job(JobId(7), ViewId(1), true, Round(5), false);
  client.send(Push{key_of(0), Round(5), 0, EncodingId::kInt8, ResidualUse::kAlone}, as_bytes(filled(0.125f)));
  const auto ack = required(client.expect<Ack>());
  CHECK(ack.residual_kept);
  const auto stopped = required(server.listener.stopped());
  CHECK(stopped.kept);
  const auto captured = required(server.listener.captured());
  REQUIRE(captured.state.residuals.size() == 1);
  CHECK(std::ranges::equal(captured.state.residuals[0].bytes(), as_bytes(filled(0.125f))));
}

TEST_CASE("a stop that waits for residuals gives way to one that keeps nothing") {
  OneLane server;
  open_with_residuals(server);
  RawClient client(server.lane->endpoint());
  const std::vector<std::byte> frame(make_encoding(EncodingId::kInt8)->bytes(kChunkElements));
  client.send(Push{key_of(0), Round(5), 1, EncodingId::kInt8}, frame);
  REQUIRE(client.expect<Answer>());
  server.lane->stop_job(JobId(7), ViewId(1), true, Round(5), false);
  server.lane->stop_job(JobId(7), ViewId(1), false, Round(0), false);
  const auto stopped = required(server.listener.stopped());
  CHECK_FALSE(stopped.kept);
  CHECK(eventually([&] { return server.lane->counters().jobs.value() == 0; }));
}

TEST_CASE("a restore that lacks a chunk, or brings one of another size, is reported") {
  OneLane server;
  server.lane->open(small_job(1, 2), std::make_shared<LaneJobGauges>());
  server.lane->restore(JobId(7), ViewId(1), ChunkIndex(0), restored_chunk(20.0f));
  server.lane->opened(JobId(7), ViewId(1), true);
  auto status = server.listener.opened();
  REQUIRE(status);
  REQUIRE_FALSE(*status);
  CHECK(status->error().code == ErrorCode::kStore);

  server.lane->open(small_job(1, 1), std::make_shared<LaneJobGauges>());
  ChunkState small = restored_chunk(20.0f);
  small.params = array_of({1.0f, 2.0f, 3.0f});
  server.lane->restore(JobId(7), ViewId(1), ChunkIndex(0), std::move(small));
  server.lane->opened(JobId(7), ViewId(1), true);
  status = server.listener.opened();
  REQUIRE(status);
  REQUIRE_FALSE(*status);
  CHECK(status->error().code == ErrorCode::kWrongLength);
}

}  // namespace
}  // namespace tributary::lane_jobs_test
