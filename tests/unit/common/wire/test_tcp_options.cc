// A flow that the network drops without a word is found by TCP's own means, on both sides of a connection.
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <vector>

#include "common/wire/zmq_util.h"

namespace tributary::testing::tcp_options_test {
namespace {

int option(int fd, int level, int name) {
  int value = -1;
  socklen_t size = sizeof value;
  return ::getsockopt(fd, level, name, &value, &size) == 0 ? value : -1;
}

// This process's connected TCP sockets with `port` at either end.
std::vector<int> connections(std::uint16_t port) {
  std::vector<int> found;
  for (int fd = 3; fd < 1024; ++fd) {
    sockaddr_in here{}, there{};
    socklen_t size = sizeof here;
    if (option(fd, SOL_SOCKET, SO_TYPE) != SOCK_STREAM) continue;
    if (::getsockname(fd, reinterpret_cast<sockaddr*>(&here), &size) != 0 || here.sin_family != AF_INET) continue;
    size = sizeof there;
    if (::getpeername(fd, reinterpret_cast<sockaddr*>(&there), &size) != 0) continue;  // it listens
    if (ntohs(here.sin_port) == port || ntohs(there.sin_port) == port) found.push_back(fd);
  }
  return found;
}

TEST_CASE("both ends of a connection give up a flow that is dropped after two minutes") {
  zmq::context_t context;
  zmq::socket_t server(context, zmq::socket_type::router), client(context, zmq::socket_type::dealer);
  for (zmq::socket_t* socket : {&server, &client}) set_common_options(*socket, 1000, 10);
  server.bind("tcp://127.0.0.1:*");
  const std::string endpoint = server.get(zmq::sockopt::last_endpoint);
  client.connect(endpoint);
  client.send(zmq::str_buffer("hello"), zmq::send_flags::none);
  zmq::message_t message;
  server.set(zmq::sockopt::rcvtimeo, 10'000);
  REQUIRE(server.recv(message));
  const auto port = static_cast<std::uint16_t>(std::stoi(endpoint.substr(endpoint.rfind(':') + 1)));
  const std::vector<int> ends = connections(port);
  REQUIRE(ends.size() == 2);
  for (const int fd : ends) {
    CHECK(option(fd, SOL_SOCKET, SO_KEEPALIVE) == 1);
    CHECK(option(fd, IPPROTO_TCP, TCP_KEEPIDLE) == 60);
    CHECK(option(fd, IPPROTO_TCP, TCP_KEEPINTVL) == 15);
    CHECK(option(fd, IPPROTO_TCP, TCP_KEEPCNT) == 4);
    CHECK(option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT) == 120'000);
  }
}

}  // namespace
}  // namespace tributary::testing::tcp_options_test
