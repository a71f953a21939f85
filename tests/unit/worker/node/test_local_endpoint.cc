#include <doctest/doctest.h>
#include <unistd.h>

#include "common/system/host_identity.h"
#include "worker/node/local_endpoint.h"

namespace tributary::local_endpoint_test {

TEST_CASE("endpoints of this machine are known as such") {
  CHECK(is_local_endpoint("ipc:///tmp/x"));
  CHECK(is_local_endpoint("tcp://127.0.0.1:7070"));
  CHECK(is_local_endpoint("tcp://127.9.8.7:7070"));
  CHECK(is_local_endpoint("tcp://localhost:1"));
  CHECK(is_local_endpoint("tcp://[::1]:1"));
}

TEST_CASE("addresses of others, names and nonsense are not local") {
  // 192.0.2.0/24 is for documentation (RFC 5737): no interface has it.
  CHECK_FALSE(is_local_endpoint("tcp://192.0.2.1:7070"));
  CHECK_FALSE(is_local_endpoint("tcp://server-3:7070"));
  CHECK_FALSE(is_local_endpoint("tcp://"));
  CHECK_FALSE(is_local_endpoint("udp://127.0.0.1:1"));
  CHECK_FALSE(is_local_endpoint(""));
}

TEST_CASE("a machine's identity is the same each time it is asked for, and names the network namespace") {
  const std::string identity = host_identity();
  CHECK(identity == host_identity());
  CHECK(identity.find('/') != std::string::npos);
}

}  // namespace tributary::local_endpoint_test
