// CURVE between real sockets on loopback: who gets in, who is refused, and what both sides know of it.
#include <doctest/doctest.h>
#include <spdlog/sinks/ostream_sink.h>

#include <chrono>
#include <mutex>
#include <set>
#include <sstream>
#include <thread>

#include "common/daemon/admission.h"
#include "common/daemon/refusal_watch.h"
#include "common/security/socket_keys.h"
#include "common/wire/zmq_util.h"

namespace tributary::testing::admission_test {
namespace {

using std::chrono::milliseconds;

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

KeyPair pair_of(const std::string& name) {
  return make_key_pair(name, Role::kWorker).value();
}

// A ROUTER that lets in the keys of a set.
struct Host {
  explicit Host(bool with_admission = true) : socket(context, zmq::socket_type::router) {
    logger = std::make_shared<Log>("host", std::make_shared<spdlog::sinks::ostream_sink_mt>(lines));
    if (with_admission) {
      const auto decide = [this](const Admission::Shown& shown) -> Result<std::string> {
        const std::lock_guard lock(mutex);
        if (allowed.contains(shown.key)) return shown.key;
        return fail(ErrorCode::kInvalidArgument, "its key " + shown.key + " is unknown");
      };
      admission = std::move(Admission::start(context, "the host", decide, logger).value());
    }
    set_common_options(socket, 1 << 20, 100);
    accept_with(socket, own);
    endpoint = bind_endpoint(socket, "tcp://127.0.0.1:*").value();
  }
  ~Host() {
    socket.close();
    admission.reset();
    context.close();
  }
  // The key that a message came with; nothing within the time: "none".
  std::string receive(milliseconds patience = milliseconds(5000)) {
    zmq::pollitem_t item{socket.handle(), 0, ZMQ_POLLIN, 0};
    zmq_poll(&item, 1, patience.count());
    zmq::message_t frames[2];
    return receive_frames(socket, frames) == 2 ? key_of(frames[1]) : "none";
  }
  void allow(const std::string& key) {
    const std::lock_guard lock(mutex);
    allowed.insert(key);
  }

  const KeyPair own = pair_of("host");
  std::ostringstream lines;
  Logger logger;
  std::mutex mutex;
  std::set<std::string> allowed;
  zmq::context_t context{1};
  std::unique_ptr<Admission> admission;
  zmq::socket_t socket;
  std::string endpoint;
};

// A DEALER that says one word.
struct Guest {
  Guest(const Host& host, const KeyPair* own, const std::string& host_key)
      : socket(context, zmq::socket_type::dealer), keys(own != nullptr) {
    watch.emplace(context, socket);
    set_common_options(socket, 1 << 20, 100);
    if (own) connect_with(socket, *own, host_key);
    socket.connect(host.endpoint);
    say_hello();
  }
  void say_hello() {
    zmq::message_t word("hello", 5);
    send_now(socket, word, false);
  }
  ~Guest() {
    watch.reset();
    socket.close();
    context.close();
  }
  std::string why() {
    const auto until = std::chrono::steady_clock::now() + milliseconds(8000);
    while (std::chrono::steady_clock::now() < until) {
      if (auto why = watch->failed(keys)) return *why;
      std::this_thread::sleep_for(milliseconds(5));
    }
    return "";
  }

  zmq::context_t context{1};
  zmq::socket_t socket;
  std::optional<RefusalWatch> watch;
  bool keys;
};

}  // namespace

TEST_CASE("who is authorized gets in, and every message says whose it is") {
  Host host;
  const KeyPair a = pair_of("a"), b = pair_of("b");
  host.allow(a.identity.key);
  host.allow(b.identity.key);
  Guest first(host, &a, host.own.identity.key);
  CHECK(host.receive() == a.identity.key);
  Guest second(host, &b, host.own.identity.key);
  CHECK(host.receive() == b.identity.key);
  CHECK(host.admission->refused() == 0);
  CHECK_FALSE(first.watch->failed(true));
  CHECK(first.watch->succeeded());
}

TEST_CASE("a key that is not authorized is refused with a line on both sides, and gets in once it is") {
  Host host;
  const KeyPair a = pair_of("a");
  Guest guest(host, &a, host.own.identity.key);
  CHECK(has(guest.why(), "does not let this daemon's key in"));
  CHECK(host.receive(milliseconds(0)) == "none");
  CHECK(host.admission->refused() >= 1);
  host.logger->flush();
  CHECK(has(host.lines.str(), "refused a peer at 127.0.0.1 that connects to the host: its key " + a.identity.key));
  host.allow(a.identity.key);
  guest.watch->connect_again(host.endpoint);
  guest.say_hello();
  CHECK(host.receive() == a.identity.key);
}

TEST_CASE("without keys, or with another host's, nobody gets in") {
  Host host;
  const KeyPair a = pair_of("a");
  host.allow(a.identity.key);
  Guest plain(host, nullptr, "");
  CHECK(has(plain.why(), "it wants keys, and this daemon has none"));
  Guest misled(host, &a, pair_of("other").identity.key);
  CHECK(has(misled.why(), "does not show the key that [security] coordinator_key names"));
  CHECK(host.receive(milliseconds(50)) == "none");
}

TEST_CASE("a host without keys is told apart from the one that was meant") {
  zmq::context_t context(1);
  zmq::socket_t open(context, zmq::socket_type::router);
  Host host;
  host.endpoint = bind_endpoint(open, "tcp://127.0.0.1:*").value();
  const KeyPair a = pair_of("a");
  Guest guest(host, &a, host.own.identity.key);
  CHECK(has(guest.why(), "or has none"));
}

TEST_CASE("where the admission is missing everybody is refused") {
  Host host(false);
  const KeyPair a = pair_of("a");
  Guest guest(host, &a, host.own.identity.key);
  CHECK(host.receive(milliseconds(300)) == "none");
}

}  // namespace tributary::testing::admission_test
