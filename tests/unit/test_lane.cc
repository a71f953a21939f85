#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <spdlog/sinks/ringbuffer_sink.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <random>
#include <thread>

#include "lane_fixture.h"

namespace tributary {
namespace {

using namespace testing;

struct OneLane {
  explicit OneLane(const std::string& bind = "tcp://127.0.0.1:*", const Logger& logger = quiet_logger(),
                   std::uint64_t idle_memory_ms = 60'000) {
    Result<std::unique_ptr<Lane>> started =
        Lane::start({ShardIndex(0), LaneIndex(0), bind, "", 20, idle_memory_ms}, listener, logger);
    REQUIRE_MESSAGE(started, (started ? "" : started.error().message));
    lane = std::move(*started);
  }
  void open(std::uint32_t nodes, std::uint64_t chunks, JobId job = JobId(7)) {
    gauges = std::make_shared<LaneJobGauges>();
    lane->open(small_job(nodes, chunks, job), gauges);
    lane->opened(job, ViewId(1), false);
    const auto status = listener.opened();
    REQUIRE(status);
    REQUIRE(*status);
  }
  Listener listener;  // outlives the lane
  std::unique_ptr<Lane> lane;
  std::shared_ptr<LaneJobGauges> gauges;  // of the job opened last
};

// Initialises every chunk with `value` and takes the answers to its pulls.
void initialise(RawClient& client, std::uint32_t chunks, float value) {
  for (std::uint32_t c = 0; c < chunks; ++c) {
    client.send(Init{key_of(c)}, as_bytes(filled(value)));
    client.send(Pull{key_of(c)});
  }
  for (std::uint32_t c = 0; c < chunks; ++c) {
    std::vector<float> values;
    const auto answer = client.expect<Answer>(&values);
    REQUIRE(answer);
    CHECK(answer->version == Version(0));
    CHECK(values == filled(value));
  }
}

// One round of chunk 0 by a client that is alone in its job.
void one_round(RawClient& client, std::uint64_t round, float expected) {
  client.push(key_of(0), round, filled(2.0f));
  std::vector<float> values;
  const auto answer = client.expect<Answer>(&values);
  REQUIRE(answer);
  CHECK(answer->version == Version(round));
  CHECK(values == filled(expected));
}

ErrorReply expect_error(RawClient& client) {
  const auto error = client.expect<ErrorReply>();
  REQUIRE(error);
  return *error;
}

TEST_CASE("a push of every node is answered with the stepped parameters, over tcp and over ipc") {
  for (const std::string& bind : {std::string("tcp://127.0.0.1:*"), temporary_ipc("push")}) {
    CAPTURE(bind);
    OneLane server(bind);
    server.open(2, 2);
    RawClient first(server.lane->endpoint()), second(server.lane->endpoint());
    initialise(first, 2, 10.0f);
    first.push(key_of(1, 0), 1, filled(2.0f), 3);
    const auto receipt = first.expect<Receipt>();
    REQUIRE(receipt);
    CHECK(receipt->key == key_of(1, 0));
    second.push(key_of(1, 1), 1, filled(6.0f), 1);
    REQUIRE(second.expect<Receipt>());
    for (RawClient* client : {&first, &second}) {
      std::vector<float> values;
      const auto answer = client->expect<Answer>(&values);
      REQUIRE(answer);
      CHECK(answer->version == Version(1));
      CHECK(values == filled(10.0f - 0.5f * (2.0f + 6.0f) / 4.0f));
    }
  }
}

TEST_CASE("messages that cannot be accepted are answered with the reason and change nothing") {
  OneLane server;
  server.open(1, 2);
  RawClient client(server.lane->endpoint());
  initialise(client, 2, 10.0f);

  SUBCASE("garbage header") {
    const std::vector<float> garbage = filled(1.5f);
    client.send_frames({as_bytes(garbage).subspan(0, 100)});
    CHECK(expect_error(client).code == ErrorCode::kMalformed);
    client.send_frames({as_bytes(garbage), as_bytes(garbage)});
    CHECK(expect_error(client).code == ErrorCode::kMalformed);
    client.send_frames({std::span<const std::byte>{}});
    CHECK(expect_error(client).code == ErrorCode::kMalformed);
    CHECK(server.lane->counters().malformed.value() == 3);
  }
  SUBCASE("other protocol version") {
    const std::vector<std::byte> header = encode_data_as_version(Pull{key_of(0)}, kProtocolVersion + 41);
    client.send_frames({header});
    const ErrorReply error = expect_error(client);
    CHECK(error.code == ErrorCode::kProtocolVersion);
    CHECK(error.message.find(std::to_string(kProtocolVersion)) != std::string::npos);
    CHECK(error.message.find(std::to_string(kProtocolVersion + 41)) != std::string::npos);
  }
  SUBCASE("wrong length") {
    client.push(key_of(0), 1, std::vector<float>(kChunkElements - 1, 2.0f));
    const ErrorReply error = expect_error(client);
    CHECK(error.code == ErrorCode::kWrongLength);
    CHECK(error.message.find("4092") != std::string::npos);
    CHECK(error.message.find("4096") != std::string::npos);
  }
  SUBCASE("unknown job") {
    client.push(key_of(0, 0, JobId(424242)), 1, filled(2.0f));
    const ErrorReply error = expect_error(client);
    CHECK(error.code == ErrorCode::kUnknownJob);
    CHECK(error.message.find("424242") != std::string::npos);
    CHECK(error.message.find("attach through the worker") != std::string::npos);
    CHECK(error.key == key_of(0, 0, JobId(424242)));
  }
  SUBCASE("unknown chunk") {
    client.push(key_of(99), 1, filled(2.0f));
    CHECK(expect_error(client).code == ErrorCode::kUnknownChunk);
  }
  SUBCASE("a push without a payload, and one with two") {
    client.send(Push{key_of(0), Round(1), 1});
    CHECK(expect_error(client).code == ErrorCode::kMalformed);
    alignas(8) std::byte scratch[kMaxErrorHeader];
    const std::vector<float> gradient = filled(2.0f);
    const auto header = encode_data(Push{key_of(0), Round(1), 1}, scratch);
    client.send_frames({header, as_bytes(gradient), as_bytes(gradient)});
    CHECK(expect_error(client).code == ErrorCode::kMalformed);
  }
  SUBCASE("messages that only servers send, of which an error is not even answered") {
    client.send(ErrorReply{key_of(0), Round(1), ErrorCode::kInternal, "ha"});
    client.send(Answer{key_of(0), Version(3)}, as_bytes(filled(2.0f)));
    const ErrorReply error = expect_error(client);
    CHECK(error.code == ErrorCode::kMalformed);
    CHECK(error.key == key_of(0));
  }
  one_round(client, 1, 9.0f);
}

TEST_CASE("a peer that chooses its own routing id is not served") {
  OneLane server;
  server.open(1, 1);
  zmq::context_t context(1);
  zmq::socket_t chosen(context, zmq::socket_type::dealer);
  chosen.set(zmq::sockopt::routing_id, "me");
  chosen.set(zmq::sockopt::linger, 0);
  chosen.connect(server.lane->endpoint());
  alignas(8) std::byte scratch[kMaxErrorHeader];
  const auto header = encode_data(Pull{key_of(0)}, scratch);
  chosen.send(zmq::const_buffer(header.data(), header.size()));
  CHECK(eventually([&] { return server.lane->counters().malformed.value() == 1; }));
}

int connect_raw(const std::string& endpoint) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(std::stoi(endpoint.substr(endpoint.rfind(':') + 1))));
  CHECK(::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  return fd;
}

TEST_CASE("50 MB of noise on a lane's port leave a good client undisturbed") {
  OneLane server;
  server.open(1, 1);
  RawClient client(server.lane->endpoint());
  initialise(client, 1, 1000.0f);
  std::atomic<bool> done{false};
  std::size_t sent = 0;
  std::thread noise([&, endpoint = server.lane->endpoint()] {
    constexpr std::size_t kNoise = 50'000'000;
    std::mt19937 random(1);
    std::vector<std::uint32_t> block(16'384);
    int fd = -1;
    // ZeroMQ cuts the connection as soon as it sees that this is no ZMTP, so the noise comes over many.
    for (int connections = 0; sent < kNoise && connections < 100'000;) {
      if (fd < 0) {
        fd = connect_raw(endpoint);
        ++connections;
      }
      for (std::uint32_t& word : block) word = random();
      // A first byte of 0xff looks like the start of a handshake, anything else like the oldest version of the
      // protocol.
      if (connections % 2 == 0) std::memset(block.data(), 0xff, 1);
      const ssize_t n = ::send(fd, block.data(), block.size() * sizeof(std::uint32_t), MSG_NOSIGNAL);
      if (n > 0) sent += static_cast<std::size_t>(n);
      if (n <= 0) {
        ::close(fd);
        fd = -1;
      }
    }
    if (fd >= 0) ::close(fd);
    done = true;
  });
  std::uint64_t round = 0;
  while (!done || round < 100) {
    ++round;
    client.push(key_of(0), round, filled(2.0f));
    std::vector<float> values;
    const auto answer = client.expect<Answer>(&values);
    if (!answer || values != filled(1000.0f - static_cast<float>(round))) break;
  }
  CHECK(done);
  noise.join();
  CHECK(sent >= 50'000'000);
  one_round(client, round + 1, 1000.0f - static_cast<float>(round + 1));
}

TEST_CASE("a message larger than any chunk costs its sender the connection, nobody else") {
  OneLane server;
  server.open(1, 1);
  RawClient client(server.lane->endpoint()), greedy(server.lane->endpoint());
  initialise(client, 1, 10.0f);
  const std::uint64_t before = server.lane->counters().messages.value();
  const std::vector<std::byte> huge(Lane::kMaxMessage + 1);
  greedy.send_frames({huge});
  CHECK_FALSE(greedy.receive(500));
  CHECK(server.lane->counters().messages.value() == before);
  one_round(client, 1, 9.0f);
}

TEST_CASE("an answer to a peer that is gone is dropped and counted, the others get theirs") {
  // Nothing tells when the server's I/O thread has noticed: if it had not, the answer went to a peer that it believed
  // in, and another one is given more time.
  std::uint64_t dropped = 0;
  for (int pause_ms = 100; dropped == 0 && pause_ms < 10'000; pause_ms *= 8) {
    OneLane server;
    server.open(2, 1);
    RawClient stays(server.lane->endpoint());
    {
      RawClient leaves(server.lane->endpoint());
      initialise(leaves, 1, 10.0f);
      leaves.push(key_of(0, 0), 1, filled(2.0f));
      REQUIRE(leaves.expect<Receipt>());
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(pause_ms));
    stays.push(key_of(0, 1), 1, filled(2.0f));
    std::vector<float> values;
    REQUIRE(stays.expect<Receipt>());
    REQUIRE(stays.expect<Answer>(&values));
    CHECK(values == filled(9.0f));
    dropped = server.lane->counters().dropped_unreachable.value();
  }
  CHECK(dropped == 1);
}

TEST_CASE("a snapshot captures every chunk at its round, and a commit shows in later answers") {
  OneLane server;
  server.open(1, 2);
  RawClient client(server.lane->endpoint());
  initialise(client, 2, 10.0f);
  server.lane->snapshot_at(JobId(7), ViewId(1), Round(1));
  REQUIRE(server.listener.snapshot() == true);
  one_round(client, 1, 9.0f);
  one_round(client, 2, 8.0f);
  const auto captured = server.listener.captured();
  REQUIRE(captured);
  CHECK(captured->chunk == ChunkIndex(0));
  CHECK(captured->version == Version(1));
  CHECK(captured->params.floats()[5] == 9.0f);  // the second round went elsewhere
  server.lane->committed(JobId(7), Round(1));
  // Chunk 1 is still at version 0: the lanes cannot capture another round before it has reached this one.
  server.lane->snapshot_at(JobId(7), ViewId(1), Round(5));
  CHECK(server.listener.snapshot() == false);
  client.push(key_of(0), 3, filled(2.0f));
  const auto answer = client.expect<Answer>();
  REQUIRE(answer);
  CHECK(answer->durable == Version(1));
}

TEST_CASE("memory for a snapshot is there before the first step after it, and its lane says so") {
  OneLane server;
  server.open(1, 2);
  RawClient client(server.lane->endpoint());
  initialise(client, 2, 10.0f);
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
  const auto captured = server.listener.captured();
  REQUIRE(captured);
  CHECK(captured->params.floats()[5] == 7.0f);
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
    server.lane->committed(JobId(7), Round(2));
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

TEST_CASE("stopping a job captures its final state, and its memory goes when the last reader lets go") {
  OneLane server;
  server.open(1, 1);
  RawClient client(server.lane->endpoint());
  initialise(client, 1, 10.0f);
  one_round(client, 1, 9.0f);
  server.lane->stop_job(JobId(7), ViewId(1), true, Round(1), false);
  const auto stopped = server.listener.stopped();
  REQUIRE(stopped);
  CHECK(stopped->kept);
  auto captured = server.listener.captured();
  REQUIRE(captured);
  client.push(key_of(0), 2, filled(2.0f));
  CHECK(expect_error(client).code == ErrorCode::kUnknownJob);
  CHECK(eventually([&] { return server.lane->counters().jobs.value() == 0; }));
  CHECK(server.lane->counters().pool_bytes.value() > 0);
  CHECK(captured->params.floats()[0] == 9.0f);
  captured.reset();
  CHECK(eventually([&] { return server.lane->counters().pool_bytes.value() == 0; }));
  CHECK(server.lane->counters().pushes.value() == 1);  // counters outlive the job
}

TEST_CASE("a job that is not at the named round is stopped without a final state") {
  OneLane server;
  server.open(1, 2);
  RawClient client(server.lane->endpoint());
  initialise(client, 2, 10.0f);
  one_round(client, 1, 9.0f);  // chunk 1 stays at version 0
  server.lane->stop_job(JobId(7), ViewId(1), true, Round(1), false);
  const auto stopped = server.listener.stopped();
  REQUIRE(stopped);
  CHECK_FALSE(stopped->kept);
}

RestoredChunk restored_chunk(std::uint32_t chunk, float value) {
  RestoredChunk result;
  result.chunk = ChunkIndex(chunk);
  result.version = Version(4);
  result.step = 4;
  result.params = filled(value);
  return result;
}

TEST_CASE("a restored job goes on from its round") {
  OneLane server;
  server.lane->open(small_job(1, 2), std::make_shared<LaneJobGauges>());
  for (std::uint32_t c = 0; c < 2; ++c) server.lane->restore(JobId(7), restored_chunk(c, 20.0f));
  server.lane->opened(JobId(7), ViewId(1), true);
  const auto status = server.listener.opened();
  REQUIRE(status);
  REQUIRE(*status);
  RawClient client(server.lane->endpoint());
  client.send(Pull{key_of(0)});
  std::vector<float> values;
  const auto answer = client.expect<Answer>(&values);
  REQUIRE(answer);
  CHECK(answer->version == Version(4));
  CHECK(values == filled(20.0f));
  one_round(client, 5, 19.0f);
}

TEST_CASE("a restored job with clocks answers what it has, tells where its nodes are, and keeps that when it stops") {
  OneLane server;
  ShardJob job = small_job(2, 1);
  job.clocks.emplace();
  job.clocks->staleness = 1;
  job.start = Round(4);
  const auto gauges = std::make_shared<LaneJobGauges>(2);
  server.lane->open(std::move(job), gauges);
  RestoredChunk chunk = restored_chunk(0, 20.0f);
  chunk.nodes = 2;
  chunk.clocks = {5, 4};
  server.lane->restore(JobId(7), std::move(chunk));
  server.lane->opened(JobId(7), ViewId(1), true);
  REQUIRE(*server.listener.opened());
  CHECK(gauges->clocks[0].last.load() == 5);
  CHECK(gauges->clocks[1].furthest.load() == 4);
  RawClient client(server.lane->endpoint());
  std::vector<float> values;
  for (const std::uint64_t round : {5u, 6u}) {
    client.push(key_of(0), round, filled(2.0f));
    REQUIRE(client.expect<Receipt>());
    if (round == 6) break;  // two clocks ahead of node 1
    const auto answer = client.expect<Answer>(&values);
    REQUIRE(answer);
    CHECK(answer->version == Version(5));
    CHECK(answer->slowest == Round(4));
    CHECK(values == filled(20.0f));  // it has that push
  }
  server.lane->stop_job(JobId(7), ViewId(1), true, Round(4), false);
  REQUIRE(server.listener.stopped());
  const auto captured = server.listener.captured();
  REQUIRE(captured);
  CHECK(captured->clocks == std::vector<std::uint64_t>{6, 4});
}

// A shard of one chunk whose pushes are int8, resumed at version 4.
void open_with_residuals(OneLane& server) {
  ShardJob job = small_job(1, 1);
  job.push = EncodingId::kInt8;
  server.lane->open(std::move(job), std::make_shared<LaneJobGauges>());
  RestoredChunk chunk = restored_chunk(0, 20.0f);
  chunk.nodes = 2;  // of the view that wrote it
  chunk.residuals = {{0, filled(0.5f)}, {1, filled(0.25f)}};
  server.lane->restore(JobId(7), std::move(chunk));
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
  const auto answer = client.expect<Answer>();
  REQUIRE(answer);
  CHECK(answer->residual_sent);
  const std::vector<std::byte> frame(make_encoding(EncodingId::kInt8)->bytes(kChunkElements));
  client.send(Push{key_of(0), Round(5), 1, EncodingId::kInt8}, frame);
  REQUIRE(client.expect<Answer>());
  server.lane->stop_job(JobId(7), ViewId(1), true, Round(5), false);
  client.send(Push{key_of(0), Round(5), 0, EncodingId::kInt8, ResidualUse::kAlone}, as_bytes(filled(0.125f)));
  const auto receipt = client.expect<Receipt>();
  REQUIRE(receipt);
  CHECK(receipt->residual_kept);
  const auto stopped = server.listener.stopped();
  REQUIRE(stopped);
  CHECK(stopped->kept);
  const auto captured = server.listener.captured();
  REQUIRE(captured);
  REQUIRE(captured->residuals.size() == 1);
  CHECK(std::ranges::equal(captured->residuals[0].values, as_bytes(filled(0.125f))));
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
  const auto stopped = server.listener.stopped();
  REQUIRE(stopped);
  CHECK_FALSE(stopped->kept);
  CHECK(eventually([&] { return server.lane->counters().jobs.value() == 0; }));
}

TEST_CASE("a restore that lacks a chunk, or brings one of another size, is reported") {
  OneLane server;
  server.lane->open(small_job(1, 2), std::make_shared<LaneJobGauges>());
  server.lane->restore(JobId(7), restored_chunk(0, 20.0f));
  server.lane->opened(JobId(7), ViewId(1), true);
  auto status = server.listener.opened();
  REQUIRE(status);
  REQUIRE_FALSE(*status);
  CHECK(status->error().code == ErrorCode::kStore);

  server.lane->open(small_job(1, 1), std::make_shared<LaneJobGauges>());
  RestoredChunk small = restored_chunk(0, 20.0f);
  small.params.resize(3);
  server.lane->restore(JobId(7), std::move(small));
  server.lane->opened(JobId(7), ViewId(1), true);
  status = server.listener.opened();
  REQUIRE(status);
  REQUIRE_FALSE(*status);
  CHECK(status->error().code == ErrorCode::kWrongLength);
}

TEST_CASE("an address that is taken is refused by name, also where ZeroMQ would take it over") {
  for (const std::string& bind : {std::string("tcp://127.0.0.1:*"), temporary_ipc("taken")}) {
    OneLane server(bind);
    const bool tcp = bind.starts_with("tcp");
    const std::string address = tcp ? server.lane->endpoint() : bind;
    Listener listener;
    const auto second = Lane::start({ShardIndex(1), LaneIndex(0), address, ""}, listener, quiet_logger());
    REQUIRE_FALSE(second);
    CHECK(second.error().code == ErrorCode::kUnavailable);
    CHECK(second.error().message.find(address) != std::string::npos);
    CHECK(second.error().message.find("choose another") != std::string::npos);
    server.open(1, 1);  // the first one is still there
    RawClient client(server.lane->endpoint());
    initialise(client, 1, 10.0f);
  }
}

TEST_CASE("rounds that wait for a snapshot, because the log need not have room for them, are told of in the log") {
  const auto sink = std::make_shared<spdlog::sinks::ringbuffer_sink_mt>(16);
  OneLane one("tcp://127.0.0.1:*", std::make_shared<spdlog::logger>("test", sink));
  ShardJob job = small_job(1, 1);
  job.recovers = job.logs = true;
  job.log_rounds = 1;
  one.lane->open(job, std::make_shared<LaneJobGauges>());
  one.lane->opened(job.job, ViewId(1), false);
  REQUIRE(one.listener.opened());
  RawClient client(one.lane->endpoint());
  initialise(client, 1, 5.0f);
  one_round(client, 1, 4.0f);
  client.push(key_of(0), 2, filled(2.0f));
  const auto told = [&] {
    for (const std::string& line : sink->last_formatted()) {
      if (line.find("round 2 waits until there is a newer snapshot than that of round 0") != std::string::npos)
        return true;
    }
    return false;
  };
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (!told() && std::chrono::steady_clock::now() < until) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  CHECK(told());
  one.lane->committed(job.job, Round(1));
  std::optional<Reply> reply;
  do {
    reply = client.receive();
    REQUIRE(reply);
  } while (!std::holds_alternative<Answer>(reply->message));
  CHECK(std::get<Answer>(reply->message).version == Version(2));
}

}  // namespace
}  // namespace tributary
