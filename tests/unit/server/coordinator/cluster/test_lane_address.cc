#include <doctest/doctest.h>

#include "server/coordinator/cluster/lane_address.h"
#include "tests/unit/expect.h"
#include "tests/unit/required.h"

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
    const auto address = failure_of(lane_bind_address(bind, LaneIndex(0)));
    CHECK(address.code == ErrorCode::kConfig);
    CHECK(address.message.starts_with(std::string("[server] bind = \"").append(bind).append("\": ")));
    CHECK(testing::contains(address.message, "tcp://ADDRESS:PORT"));
  }
  const auto beyond = failure_of(lane_bind_address("tcp://127.0.0.1:65535", LaneIndex(1)));
  CHECK(testing::contains(beyond.message, "65536"));
  const auto deep = failure_of(lane_bind_address("ipc:///" + std::string(200, 'd'), LaneIndex(1)));
  CHECK(testing::contains(deep.message, "characters"));
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
