#include <doctest/doctest.h>

#include "server/coordinator/coordinator.h"
#include "tests/unit/server/lane/lane_fixture.h"

namespace tributary::coordinator_shell_test {
namespace {

using namespace testing;

TEST_CASE("the coordinator refuses garbage with words, and keeps serving") {
  CoordinatorSettings config;
  config.address = "tcp://127.0.0.1:*";
  const auto coordinator = Coordinator::start(config, nullptr, quiet_logger());
  REQUIRE(coordinator);
  zmq::context_t context(1);
  zmq::socket_t peer(context, zmq::socket_type::dealer);
  peer.set(zmq::sockopt::linger, 0);
  peer.set(zmq::sockopt::rcvtimeo, 10'000);
  peer.connect((*coordinator)->local_endpoint());
  const auto ask = [&](std::span<const std::byte> bytes) -> ControlMessage {
    peer.send(zmq::const_buffer(bytes.data(), bytes.size()));
    zmq::message_t reply;
    REQUIRE(peer.recv(reply));
    const auto message = decode_control({static_cast<const std::byte*>(reply.data()), reply.size()});
    REQUIRE(message);
    return *message;
  };
  const auto garbage = ask(as_bytes(filled(3.0f)));
  REQUIRE(std::holds_alternative<ControlError>(garbage));
  CHECK(std::get<ControlError>(garbage).code == ErrorCode::kMalformed);
  const auto version = ask(encode_control_as_version(WorkerHello{"me", 5}, kProtocolVersion + 41));
  REQUIRE(std::holds_alternative<ControlError>(version));
  CHECK(std::get<ControlError>(version).code == ErrorCode::kProtocolVersion);
  CHECK(std::get<ControlError>(version).message.find(std::to_string(kProtocolVersion + 41)) != std::string::npos);
  CHECK(std::holds_alternative<HelloReply>(ask(encode_control(WorkerHello{"me", 5}))));
  CHECK((*coordinator)->malformed() == 2);
  REQUIRE((*coordinator)->peers().size() == 1);
  CHECK((*coordinator)->peers()[0].name == "me");
  const auto events = (*coordinator)->events();
  REQUIRE_FALSE(events.empty());
  CHECK(events.back().words == "worker me is there");
}

TEST_CASE("a coordinator's address that is taken is refused by name") {
  CoordinatorSettings config;
  config.address = "tcp://127.0.0.1:*";
  const auto first = Coordinator::start(config, nullptr, quiet_logger());
  REQUIRE(first);
  config.address = (*first)->endpoint();
  const auto second = Coordinator::start(config, nullptr, quiet_logger());
  REQUIRE_FALSE(second);
  CHECK(second.error().message.find(config.address) != std::string::npos);
}

}  // namespace
}  // namespace tributary::coordinator_shell_test
