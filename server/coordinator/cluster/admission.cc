#include "server/coordinator/cluster/admission.h"

#include <linux/tcp.h>
#include <netdb.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <optional>
#include <utility>

#include "common/base/clock.h"
#include "common/daemon/daemon_thread.h"
#include "common/security/keys.h"
#include "common/security/socket_keys.h"
#include "common/wire/zmq_util.h"

namespace tributary {
namespace {

constexpr const char* kEndpoint = "inproc://zeromq.zap.01";
constexpr std::size_t kBinaryKey = 32;
// routing id, an empty frame, version, request, domain, address, identity, mechanism; then the mechanism's credentials
constexpr int kFrames = 8;
constexpr int kMaxFrames = kFrames + 2;

// More than a handshake has: a greeting, HELLO and INITIATE.
constexpr std::uint64_t kHandshakeBytes = 4096;

constexpr int kAcceptedAtOnce = 64;  // before those beyond the bounds are cut
// Bytes in addition to a CURVE frame's own: the command's name, a short nonce, flags and an authenticator.
constexpr std::uint64_t kCurveOverhead = 8 + 8 + 1 + 16;

// Wire size of a frame with so many bytes behind its header (ZMTP 3.1).
std::uint64_t wire_bytes(std::uint64_t bytes) {
  return bytes + (bytes > 255 ? 9 : 2);
}

std::optional<sockaddr_storage> peer_at(int descriptor) {
  sockaddr_storage peer{};
  socklen_t size = sizeof peer;
  if (::getpeername(descriptor, reinterpret_cast<sockaddr*>(&peer), &size) != 0) return std::nullopt;
  return peer;
}

std::string address_of(const sockaddr_storage& peer) {
  char host[NI_MAXHOST] = "";
  const bool known = peer.ss_family != AF_UNIX && ::getnameinfo(reinterpret_cast<const sockaddr*>(&peer), sizeof peer,
                                                                host, sizeof host, nullptr, 0, NI_NUMERICHOST) == 0;
  return known ? host : "this machine";
}

// Bytes received by the kernel since the connection began; 0 where it does not count them. None: no such connection.
std::optional<std::uint64_t> bytes_received(int descriptor) {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (::getsockopt(descriptor, IPPROTO_TCP, TCP_INFO, &info, &size) == 0) {
    return size >= offsetof(tcp_info, tcpi_bytes_received) + sizeof info.tcpi_bytes_received ? info.tcpi_bytes_received
                                                                                             : 0;
  }
  if (errno == EBADF || errno == ENOTSOCK) return std::nullopt;
  return 0;
}

std::string text_of(const zmq::message_t& frame) {
  return {static_cast<const char*>(frame.data()), frame.size()};
}

}  // namespace

Result<std::unique_ptr<Admission>> Admission::start(zmq::context_t& context, zmq::socket_t& socket, std::string what,
                                                    Decide decide, ConnectionLimits limits, Logger logger) {
  Result<EventFd> stop = EventFd::create();
  if (!stop) return tl::unexpected(stop.error());
  std::unique_ptr<Admission> self(
      new Admission(context, socket, std::move(what), std::move(decide), std::move(limits), logger, std::move(*stop)));
  self->socket_.set(zmq::sockopt::linger, 0);
  if (const auto bound = bind_endpoint(self->socket_, kEndpoint); !bound) return tl::unexpected(bound.error());
  self->thread_ = start_thread("admission", logger, [&admission = *self] { admission.run(); });
  return self;
}

Admission::Admission(zmq::context_t& context, zmq::socket_t& socket, std::string what, Decide decide,
                     ConnectionLimits limits, Logger logger, EventFd stop)
    : what_(std::move(what)),
      decide_(std::move(decide)),
      noise_(std::move(logger)),
      stop_(std::move(stop)),
      overhead_(socket.get(zmq::sockopt::mechanism) == ZMQ_CURVE ? kCurveOverhead : 0),
      book_(std::move(limits)),
      socket_(context, zmq::socket_type::router),
      events_(context, socket, "connections", ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_DISCONNECTED) {}

Admission::~Admission() {
  // First, while the thread still reads: ZeroMQ's own thread waits when events are not.
  events_.stop();
  if (thread_.joinable()) {
    stopping_.store(true, std::memory_order_release);
    stop_.notify();
    thread_.join();
  }
  socket_.close();
}

void Admission::run() {
  while (!stopping_.load(std::memory_order_acquire)) {
    zmq::pollitem_t items[3] = {{socket_.handle(), 0, ZMQ_POLLIN, 0},
                                {events_.handle(), 0, ZMQ_POLLIN, 0},
                                {nullptr, stop_.fd(), ZMQ_POLLIN, 0}};
    // A silent peer can hold bytes; without connections there is nothing to measure.
    zmq_poll(items, 3, static_cast<long>(book_.size() != 0 ? kLookMs : RateLimitedLog::kIntervalMs));
    noise_.tick(steady_ms());
    // First, because what comes over a connection counts from its beginning, and nothing comes before the answer.
    follow_connections();
    if (items[0].revents != 0) take_questions();
    let_in_those_that_waited();
    if (steady_ms() >= looked_ms_ + kLookMs) look();
  }
}

bool Admission::take_handshake(const std::string& key) {
  const std::uint64_t now = steady_ms();
  const auto left = [now](const Handshakes& of) {
    const double since = static_cast<double>(now - of.as_of_ms) / 1000.0;
    return std::min(of.left + since * kHandshakesOfKeyPerSecond, kHandshakesOfKey);
  };
  // Keys that have all of theirs again are as good as new.
  std::erase_if(handshakes_, [&](const auto& entry) { return left(entry.second) >= kHandshakesOfKey; });
  Handshakes& own = handshakes_[key];
  own = {left(own), now};
  if (own.left < 1.0) return false;
  own.left -= 1.0;
  return true;
}

void Admission::heard(std::span<zmq::message_t> frames) {
  if (frames.empty()) return;
  std::uint64_t bytes = 0;
  for (const zmq::message_t& frame : frames) bytes += wire_bytes(frame.size() + overhead_);
  const char* key = zmq_msg_gets(frames[0].handle(), "User-Id");
  counts_.add(zmq_msg_get(frames[0].handle(), ZMQ_SRCFD), bytes, key ? key : "");
}

void Admission::follow_connections() {
  int accepted = 0;
  while (const auto event = events_.next()) {
    const int id = event->value;
    book_.ended(id);
    followed_.erase(id);
    if (event->kind != ZMQ_EVENT_ACCEPTED) continue;
    Followed connection;
    const auto peer = peer_at(id);
    if (!peer) continue;  // it has gone already
    connection.peer = *peer;
    counts_.ready(id);
    connection.before = counts_.of(id);
    followed_[id] = connection;
    book_.accepted(id, address_of(*peer), steady_ms());
    if (++accepted % kAcceptedAtOnce == 0) cut_those_beyond();
  }
  if (accepted % kAcceptedAtOnce != 0) cut_those_beyond();
}

// Measures the bytes held: those that the kernel counts, less those handed over as whole messages.
void Admission::look() {
  looked_ms_ = steady_ms();
  for (const int id : book_.ids()) {
    const auto received = bytes_received(id);
    if (!received) {
      book_.ended(id);
      followed_.erase(id);
      continue;
    }
    Followed& connection = followed_[id];
    const MessageCounts::Count count = counts_.of(id);
    const std::uint64_t messages = count.messages - connection.before.messages;
    if (messages != std::exchange(connection.messages, messages)) book_.brought(id, counts_.key(id), looked_ms_);
    std::uint64_t handed = count.bytes - connection.before.bytes;
    if (handed > *received) {  // messages of the descriptor's last connection
      connection.before.bytes += handed - *received;
      handed = *received;
    }
    // Greeting and handshake are no message.
    const std::uint64_t held = *received - handed;
    book_.holds(id, held > kHandshakeBytes ? held : 0);
  }
  held_.store(book_.held_bytes(), std::memory_order_relaxed);
  cut_those_beyond();
}

void Admission::cut_those_beyond() {
  for (const ConnectionBook::Cut& cut : book_.beyond()) {
    const auto peer = peer_at(cut.id);
    // Another connection may have the descriptor by now.
    if (!peer || std::memcmp(&*peer, &followed_[cut.id].peer, sizeof *peer) != 0) continue;
    ::shutdown(cut.id, SHUT_RDWR);
    cut_.fetch_add(1, std::memory_order_relaxed);
    noise_.warn("cut, of " + what_ + ": " + cut.why, steady_ms());
  }
}

// Receives the library's questions. The library makes their frames, which follow RFC 27; the contents are the peer's.
void Admission::take_questions() {
  std::array<zmq::message_t, kMaxFrames> asked;
  const int frames = receive_frames(socket_, asked);
  if (frames < kFrames || frames > kMaxFrames) return;
  const std::string address = text_of(asked[5]), mechanism = text_of(asked[7]);
  const std::size_t shown = static_cast<std::size_t>(frames - kFrames);
  const Result<std::string> key = judge(std::span(asked).subspan(kFrames, shown), mechanism);
  Question question{std::move(asked[0]), text_of(asked[3]), key.value_or(""), steady_ms()};
  if (key) return let_wait(std::move(question));
  refused_.fetch_add(1, std::memory_order_relaxed);
  noise_.warn("refused a peer at " + address + " that connects to " + what_ + ": " + key.error().message, steady_ms());
  answer(question, "400");
}

Result<std::string> Admission::judge(std::span<const zmq::message_t> credentials, const std::string& mechanism) const {
  if (mechanism == "CURVE" && credentials.size() == 1 && credentials[0].size() == kBinaryKey) {
    char text[kKeyText + 1];
    return decide_({.key = zmq_z85_encode(text, static_cast<const std::uint8_t*>(credentials[0].data()), kBinaryKey)});
  }
  if (mechanism == "PLAIN" && credentials.size() == 2) {
    return decide_({.key = "", .token = text_of(credentials[0]), .proof = text_of(credentials[1])});
  }
  return fail(ErrorCode::kInvalidArgument, "it shows no key (mechanism " + mechanism + ")");
}

void Admission::answer(Question& question, const char* status) {
  const bool in = std::string_view(status) == "200";
  const std::string frames[] = {"", "1.0", question.request, status, in ? "" : "not authorized", question.key, ""};
  if (!send_now(socket_, question.from, true)) return;  // its connection has gone
  for (std::size_t i = 0; i < std::size(frames); ++i) {
    zmq::message_t frame(frames[i].data(), frames[i].size());
    if (!send_now(socket_, frame, i + 1 < std::size(frames))) return;
  }
}

void Admission::let_wait(Question question) {
  if (take_handshake(question.key)) return answer(question, "200");
  late_.fetch_add(1, std::memory_order_relaxed);
  noise_.warn("a peer that connects to " + what_ + " waits: its key " + question.key + " connects too often",
              question.since_ms);
  waiting_.push_back(std::move(question));
  if (waiting_.size() > kMaxWaiting) waiting_.pop_front();
}

// Admits peers whose turn has come. Connections that have waited for longer than a handshake may take are gone.
void Admission::let_in_those_that_waited() {
  const std::uint64_t now = steady_ms();
  std::erase_if(waiting_, [&](Question& question) {
    if (now >= question.since_ms + kHandshakeMs) return true;
    if (!take_handshake(question.key)) return false;
    answer(question, "200");
    return true;
  });
}

}  // namespace tributary
