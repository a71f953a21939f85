// CURVE between real sockets on loopback: admitted peers, refused peers, and the reports of both sides.
#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <poll.h>
#include <spdlog/sinks/ostream_sink.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <mutex>
#include <set>
#include <sstream>
#include <thread>

#include "common/daemon/refusal_watch.h"
#include "common/security/socket_keys.h"
#include "common/system/file_descriptor.h"
#include "common/wire/zmq_util.h"
#include "server/coordinator/cluster/admission.h"
#include "tests/unit/expect.h"

namespace tributary::testing::admission_test {
namespace {

using std::chrono::milliseconds;

KeyPair pair_of(const std::string& name) {
  return make_key_pair(name, Role::kWorker).value();
}

// A ROUTER that lets in the keys of a set.
struct Host {
  explicit Host(bool with_admission = true, ConnectionLimits limits = {}) : socket(context, zmq::socket_type::router) {
    logger = std::make_shared<Log>("host", std::make_shared<spdlog::sinks::ostream_sink_mt>(lines));
    set_common_options(socket, 64 << 20, 100);
    accept_with(socket, own);
    if (with_admission) {
      const auto decide = [this](const Admission::Shown& shown) -> Result<std::string> {
        const std::lock_guard lock(mutex);
        if (allowed.contains(shown.key)) return shown.key;
        return fail(ErrorCode::kInvalidArgument, "its key " + shown.key + " is unknown");
      };
      admission = std::move(Admission::start(context, socket, "the host", decide, std::move(limits), logger).value());
    }
    endpoint = bind_endpoint(socket, "tcp://127.0.0.1:*").value();
  }
  ~Host() {
    admission.reset();
    socket.close();
    context.close();
  }
  // The key that a message came with; nothing within the time: "none".
  std::string receive(milliseconds patience = milliseconds(5000)) {
    zmq::pollitem_t item{socket.handle(), 0, ZMQ_POLLIN, 0};
    zmq_poll(&item, 1, patience.count());
    zmq::message_t frames[2];
    if (receive_frames(socket, frames) != 2) return "none";
    if (admission) admission->heard(std::span(frames).subspan(1));
    return key_of(frames[1]);
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
  Guest(const Host& host, const KeyPair* own, const std::string& host_key) : Guest(host.endpoint, own, host_key) {}
  Guest(const std::string& endpoint, const KeyPair* own, const std::string& host_key)
      : socket(context, zmq::socket_type::dealer), keys(own != nullptr) {
    watch.emplace(context, socket);
    set_common_options(socket, 64 << 20, 100);
    if (own) connect_with(socket, *own, host_key);
    socket.connect(endpoint);
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

FileDescriptor connect_to(const std::string& endpoint) {
  FileDescriptor fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(std::stoi(endpoint.substr(endpoint.rfind(':') + 1))));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  REQUIRE(::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  return fd;
}

bool ended(const FileDescriptor& fd) {
  char bytes[256];
  ssize_t got;
  while ((got = ::recv(fd.get(), bytes, sizeof bytes, MSG_DONTWAIT)) > 0) continue;
  return got == 0 || errno != EAGAIN;
}

template <class Condition>
bool eventually(Condition&& condition) {
  const auto until = std::chrono::steady_clock::now() + milliseconds(10'000);
  while (std::chrono::steady_clock::now() < until) {
    if (condition()) return true;
    std::this_thread::sleep_for(milliseconds(10));
  }
  return condition();
}

// Stands between one guest and a host, and passes on no more than so many bytes of the guest's.
class Relay {
 public:
  Relay(const std::string& to, std::size_t bytes) : left_(bytes), listener_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* raw = reinterpret_cast<sockaddr*>(&address);
    REQUIRE(::bind(listener_.get(), raw, size) == 0);
    REQUIRE(::listen(listener_.get(), 1) == 0);
    REQUIRE(::getsockname(listener_.get(), raw, &size) == 0);
    endpoint_ = "tcp://127.0.0.1:" + std::to_string(ntohs(address.sin_port));
    host_ = connect_to(to);
    thread_ = std::thread([this] { run(); });
  }
  ~Relay() {
    stopping_.store(true);
    thread_.join();
  }
  const std::string& endpoint() const { return endpoint_; }

 private:
  void run() {
    const FileDescriptor guest(::accept(listener_.get(), nullptr, nullptr));
    std::vector<char> bytes(1 << 16);
    while (!stopping_.load()) {
      pollfd fds[2] = {{guest.get(), static_cast<short>(left_ > 0 ? POLLIN : 0), 0}, {host_.get(), POLLIN, 0}};
      ::poll(fds, 2, 20);
      if ((fds[0].revents & POLLIN) != 0) {
        const ssize_t got = ::recv(guest.get(), bytes.data(), std::min(bytes.size(), left_), 0);
        if (got <= 0 || ::send(host_.get(), bytes.data(), static_cast<std::size_t>(got), MSG_NOSIGNAL) != got) return;
        left_ -= static_cast<std::size_t>(got);
      }
      if ((fds[1].revents & POLLIN) != 0) {
        const ssize_t got = ::recv(host_.get(), bytes.data(), bytes.size(), 0);
        if (got <= 0 || ::send(guest.get(), bytes.data(), static_cast<std::size_t>(got), MSG_NOSIGNAL) != got) return;
      }
    }
  }

  std::size_t left_;
  std::atomic<bool> stopping_{false};
  FileDescriptor listener_, host_;
  std::string endpoint_;
  std::thread thread_;
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
  CHECK(contains(guest.why(), "does not let this daemon's key in"));
  CHECK(host.receive(milliseconds(0)) == "none");
  CHECK(host.admission->refused() >= 1);
  host.logger->flush();
  CHECK(contains(host.lines.str(), "refused a peer at 127.0.0.1 that connects to the host: its key " + a.identity.key));
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
  CHECK(contains(plain.why(), "it wants keys, and this daemon has none"));
  Guest misled(host, &a, pair_of("other").identity.key);
  CHECK(contains(misled.why(), "does not show the key that [security] coordinator_key names"));
  CHECK(host.receive(milliseconds(50)) == "none");
}

TEST_CASE("a host without keys is told apart from the one that was meant") {
  zmq::context_t context(1);
  zmq::socket_t open(context, zmq::socket_type::router);
  Host host;
  host.endpoint = bind_endpoint(open, "tcp://127.0.0.1:*").value();
  const KeyPair a = pair_of("a");
  Guest guest(host, &a, host.own.identity.key);
  CHECK(contains(guest.why(), "or has none"));
}

TEST_CASE("connections that never show a key keep nobody out, and are cut beyond their bound") {
  Host host(true, {.newcomers = [] { return 20; }});
  std::vector<FileDescriptor> silent;
  for (int i = 0; i < 300; ++i) silent.push_back(connect_to(host.endpoint));
  const KeyPair a = pair_of("a");
  host.allow(a.identity.key);
  Guest guest(host, &a, host.own.identity.key);
  CHECK(host.receive() == a.identity.key);
  CHECK(eventually([&] { return std::ranges::count_if(silent, ended) >= 280; }));
  CHECK(host.admission->cut() >= 280);
  guest.say_hello();
  CHECK(host.receive() == a.identity.key);
}

TEST_CASE("half-sent messages together stay within their bound, and whole ones get through") {
  Host host(true, {.held_bytes = [] { return 8ull << 20; }});
  const KeyPair a = pair_of("a"), b = pair_of("b");
  host.allow(a.identity.key);
  host.allow(b.identity.key);
  const zmq::message_t large(4u << 20);
  std::vector<std::unique_ptr<Relay>> relays;
  std::vector<std::unique_ptr<Guest>> guests;
  for (int i = 0; i < 6; ++i) {
    relays.push_back(std::make_unique<Relay>(host.endpoint, 3u << 20));
    guests.push_back(std::make_unique<Guest>(relays.back()->endpoint(), &a, host.own.identity.key));
    CHECK(host.receive() == a.identity.key);
    zmq::message_t copy(large.data(), large.size());
    send_now(guests.back()->socket, copy, false);
  }
  CHECK(eventually([&] { return host.admission->cut() >= 4; }));
  CHECK(eventually([&] { return host.admission->held_bytes() <= 8u << 20; }));
  Guest honest(host, &b, host.own.identity.key);
  CHECK(host.receive() == b.identity.key);
  zmq::message_t copy(large.data(), large.size());
  send_now(honest.socket, copy, false);
  CHECK(host.receive() == b.identity.key);
}

TEST_CASE("messages that were received leave nothing that counts as half-sent") {
  Host host;
  const KeyPair a = pair_of("a");
  host.allow(a.identity.key);
  Guest guest(host, &a, host.own.identity.key);
  CHECK(host.receive() == a.identity.key);
  for (std::size_t i = 0; i < 6000; ++i) {
    zmq::message_t word(i % 600);
    REQUIRE(eventually([&] { return send_now(guest.socket, word, false); }));
    if (i % 50 == 49) {
      for (int k = 0; k < 50; ++k) REQUIRE(host.receive() == a.identity.key);
    }
  }
  std::this_thread::sleep_for(milliseconds(3 * Admission::kLookMs));
  CHECK(host.admission->held_bytes() == 0);
}

TEST_CASE("a key that connects again and again waits after its first handshakes") {
  Host host(true, {.of_key = [](const std::string&) { return 1000; }});
  const KeyPair a = pair_of("a");
  host.allow(a.identity.key);
  zmq::context_t context(1);
  std::vector<zmq::socket_t> sockets;
  for (int i = 0; i < 400; ++i) {
    sockets.emplace_back(context, zmq::socket_type::dealer);
    set_common_options(sockets.back(), 1 << 20, 100);
    connect_with(sockets.back(), a, host.own.identity.key);
    sockets.back().connect(host.endpoint);
    zmq::message_t word("hello", 5);
    send_now(sockets.back(), word, false);
  }
  int heard = 0;
  while (host.receive(milliseconds(20'000)) == a.identity.key && ++heard < 400) continue;
  CHECK(heard == 400);
  CHECK(host.admission->late() >= 1);
  CHECK(host.admission->refused() == 0);
}

TEST_CASE("where the admission is missing everybody is refused") {
  Host host(false);
  const KeyPair a = pair_of("a");
  Guest guest(host, &a, host.own.identity.key);
  CHECK(host.receive(milliseconds(300)) == "none");
}

}  // namespace tributary::testing::admission_test
