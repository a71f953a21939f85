// A node's connection to a lane that takes one-time tokens, between real sockets on loopback: it comes back with a new
// one when it is lost, and a token that was seen admits nobody.
#include <doctest/doctest.h>

#include <chrono>
#include <optional>
#include <thread>

#include "common/base/clock.h"
#include "common/security/admitted_nodes.h"
#include "common/security/socket_keys.h"
#include "common/wire/zmq_util.h"
#include "server/coordinator/cluster/admission.h"
#include "worker/node/data_socket.h"

namespace tributary::testing::data_socket_test {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kPatience{10'000};
const DataToken kFirst{JobId(1), ViewId(2), NodeRank(0), ShardIndex(0), LaneIndex(0)};

// A server's lane, as its guests see it.
struct Host {
  explicit Host(std::string address = "tcp://127.0.0.1:*") : socket(context, zmq::socket_type::router) {
    const auto decide = [this](const Admission::Shown& shown) {
      return token_named(shown.token, ShardIndex(0), LaneIndex(0)).and_then([&](const DataToken& token) {
        return admitted.admit(token, shown.proof);
      });
    };
    set_common_options(socket, 1 << 20, 100);
    accept_tokens(socket);
    admission = std::move(Admission::start(context, socket, "the lane", decide, {}, logger).value());
    endpoint = bind_endpoint(socket, address).value();
    admitted.set(JobId(1), ViewId(2), {node.identity.key});
  }
  ~Host() {
    admission.reset();
    socket.close();
    context.close();
  }
  // The key that a message came with; nothing: none.
  std::optional<std::string> receive() {
    zmq::message_t frames[2];
    return receive_frames(socket, frames) == 2 ? std::optional(key_of(frames[1])) : std::nullopt;
  }

  const KeyPair node = make_key_pair("node-0", Role::kWorker).value();
  const std::shared_ptr<const KeyPair> own =
      std::make_shared<const KeyPair>(make_key_pair("server-0", Role::kServer).value());
  Logger logger = quiet_logger();
  AdmittedNodes admitted{own};
  zmq::context_t context{1};
  std::unique_ptr<Admission> admission;
  zmq::socket_t socket;
  std::string endpoint;
};

// The node's side; what is said before a connection is there is said again.
struct Node {
  Node(const Host& host, const KeyPair& own, const DataToken& token)
      : data(context,
             {.endpoint = host.endpoint,
              .own = std::make_shared<const KeyPair>(own),
              .key = host.own->identity.key,
              .token = token},
             1 << 20, 100) {}
  ~Node() {
    data.close();
    context.close();
  }
  // Returns the key that the host sees; "none" if nothing arrives in time.
  std::string heard_by(Host& host, milliseconds patience = kPatience) {
    const auto until = std::chrono::steady_clock::now() + patience;
    while (std::chrono::steady_clock::now() < until) {
      if (auto line = data.tick(steady_ms())) refused = *line;
      zmq::message_t word("hello", 5);
      send_now(data.socket(), word, false);
      if (const auto key = host.receive()) return *key;
      std::this_thread::sleep_for(milliseconds(5));
    }
    return "none";
  }

  zmq::context_t context{1};
  DataSocket data;
  std::string refused;
};

}  // namespace

TEST_CASE("a node comes in with its token, and every message says whose it is") {
  Host host;
  Node node(host, host.node, kFirst);
  CHECK(node.heard_by(host) == host.node.identity.key);
  std::this_thread::sleep_for(milliseconds(3 * DataSocket::kAgainMs));
  CHECK(node.heard_by(host) == host.node.identity.key);
  CHECK(host.admission->refused() == 0);
  // One token was enough: the second is as good as new.
  DataToken second = kFirst;
  second.use = 2;
  CHECK(host.admitted.admit(second, token_proof(second, host.node, host.own->identity.key).value()));
}

TEST_CASE("a connection that is lost comes back with the next token, and who shows the last one is refused") {
  Host host;
  Node node(host, host.node, kFirst);
  REQUIRE(node.heard_by(host) == host.node.identity.key);
  const std::string endpoint = host.endpoint;
  host.socket.close();
  host.socket = zmq::socket_t(host.context, zmq::socket_type::router);
  set_common_options(host.socket, 1 << 20, 100);
  accept_tokens(host.socket);
  const auto until = std::chrono::steady_clock::now() + kPatience;  // the old one closes on another thread
  Result<std::string> bound = bind_endpoint(host.socket, endpoint);
  while (!bound && std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(milliseconds(5));
    bound = bind_endpoint(host.socket, endpoint);
  }
  REQUIRE(bound);
  CHECK(node.heard_by(host) == host.node.identity.key);

  Node replays(host, host.node, kFirst);
  const std::uint64_t before = host.admission->refused();
  // Its first token was seen before. (Here it can make more of them; an eavesdropper cannot.)
  const auto first = replays.data.tick(steady_ms());
  CHECK_FALSE(first);
  while (host.admission->refused() == before && std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(milliseconds(5));
  }
  CHECK(host.admission->refused() == before + 1);
}

TEST_CASE("who has another key, or none, is refused and told so") {
  Host host;
  const KeyPair stranger = make_key_pair("node-0", Role::kWorker).value();
  Node node(host, stranger, kFirst);
  CHECK(node.heard_by(host, milliseconds(1500)) == "none");
  CHECK(node.refused ==
        "the lane at " + host.endpoint + " does not take the token of this node; its server's log says why");
  CHECK(host.admission->refused() >= 2);  // it tries again

  for (const bool shows_key : {false, true}) {
    zmq::context_t context(1);
    zmq::socket_t socket(context, zmq::socket_type::dealer);
    set_common_options(socket, 1 << 20, 100);
    if (shows_key) connect_with(socket, host.node, host.own->identity.key);
    socket.connect(host.endpoint);
    zmq::message_t word("hello", 5);
    send_now(socket, word, false);
    std::this_thread::sleep_for(milliseconds(300));
    CHECK_FALSE(host.receive());
    socket.close();
  }
  Node known(host, host.node, kFirst);
  CHECK(known.heard_by(host) == host.node.identity.key);
}

}  // namespace tributary::testing::data_socket_test
