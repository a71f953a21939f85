// A lane and its clients: messages good and bad, peers that come, go and make noise.
#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <thread>

#include "tests/unit/expect.h"
#include "tests/unit/required.h"
#include "tests/unit/server/lane/one_lane.h"

namespace tributary::lane_test {
namespace {

using namespace testing;

TEST_CASE("a push of every node is answered with the stepped parameters, over tcp and over ipc") {
  for (const std::string& bind : {std::string("tcp://127.0.0.1:*"), temporary_ipc("push")}) {
    CAPTURE(bind);
    OneLane server(bind);
    server.open(2, 2);
    RawClient first(server.lane->endpoint()), second(server.lane->endpoint());
    initialise(first, 2, 10.0f);
    first.push(key_of(1, 0), 1, filled(2.0f), 3);
    const auto ack = required(first.expect<Ack>());
    CHECK(ack.key == key_of(1, 0));
    second.push(key_of(1, 1), 1, filled(6.0f), 1);
    REQUIRE(second.expect<Ack>());
    for (RawClient* client : {&first, &second}) {
      std::vector<float> values;
      const auto answer = required(client->expect<Answer>(&values));
      CHECK(answer.version == Version(1));
      CHECK(values == filled(10.0f - 0.5f * (2.0f + 6.0f) / 4.0f));
    }
  }
}

TEST_CASE("a push of no job comes back as it came while the lane is measured, and is refused otherwise") {
  AdmittedNodes admitted(nullptr);
  Listener listener;
  LaneOptions options{{}, "tcp://127.0.0.1:*", ""};
  options.admitted = &admitted;
  auto lane = required(Lane::start(std::move(options), listener, quiet_logger()));
  RawClient client(lane->endpoint());
  const ChunkKey of_no_job{JobId(), ViewId(9), NodeRank(2), ChunkIndex()};
  const auto push = [&](const std::vector<float>& values) {
    client.send(Push{of_no_job, Round(1), 0}, as_bytes(values));
  };
  push(filled(2.0f));
  CHECK(expect_error(client).code == ErrorCode::kUnknownJob);
  admitted.measure(9, {});
  for (int i = 0; i < 3; ++i) {
    push(filled(2.0f + static_cast<float>(i)));
    std::vector<float> values;
    const auto answer = required(client.expect<Answer>(&values));
    CHECK(answer.key == of_no_job);
    CHECK(values == filled(2.0f + static_cast<float>(i)));
  }
  push(std::vector<float>(kMaxMeasuredPayload / sizeof(float) + 1));  // too large: dropped
  push(filled(7.0f));
  std::vector<float> values;
  REQUIRE(client.expect<Answer>(&values));
  CHECK(values == filled(7.0f));
  admitted.measure_no_more();
  push(filled(2.0f));
  CHECK(expect_error(client).code == ErrorCode::kUnknownJob);
}

TEST_CASE_FIXTURE(Initialised<2>, "messages that cannot be accepted are answered with the reason and change nothing") {
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
    CHECK(contains(error.message, std::to_string(kProtocolVersion)));
    CHECK(contains(error.message, std::to_string(kProtocolVersion + 41)));
  }
  SUBCASE("a kind that only newer programs know") {
    std::vector<std::byte> header = encode_data_as_version(Init{key_of(0)}, kProtocolVersion);
    *std::ranges::mismatch(header, encode_data_as_version(Pull{key_of(0)}, kProtocolVersion)).in1 = std::byte{200};
    client.send_frames({header});
    const ErrorReply error = expect_error(client);
    CHECK(error.code == ErrorCode::kUnknownKind);
    CHECK(contains(error.message, "of kind 200, which this program does not know"));
  }
  SUBCASE("wrong length") {
    client.push(key_of(0), 1, std::vector<float>(kChunkElements - 1, 2.0f));
    const ErrorReply error = expect_error(client);
    CHECK(error.code == ErrorCode::kWrongLength);
    CHECK(contains(error.message, "4092"));
    CHECK(contains(error.message, "4096"));
  }
  SUBCASE("unknown job") {
    client.push(key_of(0, 0, JobId(424242)), 1, filled(2.0f));
    const ErrorReply error = expect_error(client);
    CHECK(error.code == ErrorCode::kUnknownJob);
    CHECK(contains(error.message, "424242"));
    CHECK(contains(error.message, "attach through the worker"));
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
      REQUIRE(leaves.expect<Ack>());
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(pause_ms));
    stays.push(key_of(0, 1), 1, filled(2.0f));
    std::vector<float> values;
    REQUIRE(stays.expect<Ack>());
    REQUIRE(stays.expect<Answer>(&values));
    CHECK(values == filled(9.0f));
    dropped = server.lane->counters().dropped_unreachable.value();
  }
  CHECK(dropped == 1);
}

TEST_CASE("an address that is taken is refused by name, also where ZeroMQ would take it over") {
  for (const std::string& bind : {std::string("tcp://127.0.0.1:*"), temporary_ipc("taken")}) {
    OneLane server(bind);
    const bool tcp = bind.starts_with("tcp");
    const std::string address = tcp ? server.lane->endpoint() : bind;
    Listener listener;
    const auto second = failure_of(Lane::start({{ShardIndex(1), LaneIndex(0)}, address, ""}, listener, quiet_logger()));
    CHECK(second.code == ErrorCode::kUnavailable);
    CHECK(contains(second.message, address));
    CHECK(contains(second.message, "choose another"));
    server.open(1, 1);  // the first one is still there
    RawClient client(server.lane->endpoint());
    initialise(client, 1, 10.0f);
  }
}

}  // namespace
}  // namespace tributary::lane_test
