#include <doctest/doctest.h>

#include "server/coordinator/cluster/lane_address.h"

namespace tributary::lane_address_test {
namespace {

TEST_CASE("lane i of a tcp server takes the configured port plus i") {
  CHECK(*lane_bind_address("tcp://127.0.0.1:7100", LaneIndex(0)) == "tcp://127.0.0.1:7100");
  CHECK(*lane_bind_address("tcp://127.0.0.1:7100", LaneIndex(3)) == "tcp://127.0.0.1:7103");
  CHECK(*lane_bind_address("tcp://0.0.0.0:*", LaneIndex(3)) == "tcp://0.0.0.0:*");
  CHECK(*lane_bind_address("tcp://eth0:0", LaneIndex(3)) == "tcp://eth0:*");
}

TEST_CASE("lanes of an ipc server have a path each, absolute because workers run elsewhere") {
  CHECK(*lane_bind_address("ipc:///run/tributary/s0", LaneIndex(2)) == "ipc:///run/tributary/s0-lane-2");
  CHECK(lane_bind_address("ipc://s0", LaneIndex(0))->starts_with("ipc:///"));
}

TEST_CASE("impossible addresses are refused with the value and what would be right") {
  for (const char* bind : {"udp://127.0.0.1:1", "tcp://127.0.0.1", "tcp://127.0.0.1:", "tcp://127.0.0.1:12x",
                           "tcp://127.0.0.1:65536", "ipc://", "127.0.0.1:7000", ""}) {
    CAPTURE(bind);
    const auto address = lane_bind_address(bind, LaneIndex(0));
    REQUIRE_FALSE(address);
    CHECK(address.error().code == ErrorCode::kConfig);
    CHECK(address.error().message.starts_with(std::string("[server] bind = \"").append(bind).append("\": ")));
    CHECK(address.error().message.find("tcp://ADDRESS:PORT") != std::string::npos);
  }
  const auto beyond = lane_bind_address("tcp://127.0.0.1:65535", LaneIndex(1));
  REQUIRE_FALSE(beyond);
  CHECK(beyond.error().message.find("65536") != std::string::npos);
  const auto deep = lane_bind_address("ipc:///" + std::string(200, 'd'), LaneIndex(1));
  REQUIRE_FALSE(deep);
  CHECK(deep.error().message.find("characters") != std::string::npos);
}

TEST_CASE("workers are told an address that they can reach") {
  CHECK(advertised_endpoint("tcp://0.0.0.0:4711", "") == "tcp://127.0.0.1:4711");
  CHECK(advertised_endpoint("tcp://0.0.0.0:4711", "node7") == "tcp://node7:4711");
  CHECK(advertised_endpoint("tcp://10.0.0.5:4711", "") == "tcp://10.0.0.5:4711");
  CHECK(advertised_endpoint("tcp://10.0.0.5:4711", "node7") == "tcp://node7:4711");
  CHECK(advertised_endpoint("ipc:///run/s0-lane-0", "node7") == "ipc:///run/s0-lane-0");
}

TEST_CASE("an ipc path that nobody listens on is free") {
  CHECK(check_ipc_free("ipc:///tmp/tributary-nobody-is-here"));
  CHECK(check_ipc_free("tcp://127.0.0.1:1"));
}

}  // namespace
}  // namespace tributary::lane_address_test
