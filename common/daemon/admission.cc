#include "common/daemon/admission.h"

#include <array>
#include <cstddef>
#include <utility>

#include "common/base/clock.h"
#include "common/daemon/daemon_thread.h"
#include "common/security/keys.h"
#include "common/wire/zmq_util.h"

namespace tributary {
namespace {

constexpr const char* kEndpoint = "inproc://zeromq.zap.01";
constexpr std::size_t kBinaryKey = 32;
// version, request, domain, address, routing id, mechanism; then the mechanism's credentials
constexpr int kFrames = 6;
constexpr int kMaxFrames = kFrames + 2;

std::string text_of(const zmq::message_t& frame) {
  return {static_cast<const char*>(frame.data()), frame.size()};
}

}  // namespace

Result<std::unique_ptr<Admission>> Admission::start(zmq::context_t& context, std::string what, Decide decide,
                                                    Logger logger) {
  Result<EventFd> stop = EventFd::create();
  if (!stop) return tl::unexpected(stop.error());
  std::unique_ptr<Admission> self(new Admission(context, std::move(what), std::move(decide), logger, std::move(*stop)));
  self->socket_.set(zmq::sockopt::linger, 0);
  if (const auto bound = bind_endpoint(self->socket_, kEndpoint); !bound) return tl::unexpected(bound.error());
  self->thread_ = start_thread("admission", logger, [&admission = *self] { admission.run(); });
  return self;
}

Admission::Admission(zmq::context_t& context, std::string what, Decide decide, Logger logger, EventFd stop)
    : what_(std::move(what)),
      decide_(std::move(decide)),
      noise_(std::move(logger)),
      stop_(std::move(stop)),
      socket_(context, zmq::socket_type::rep) {}

Admission::~Admission() {
  if (thread_.joinable()) {
    stopping_.store(true, std::memory_order_release);
    stop_.notify();
    thread_.join();
  }
  socket_.close();
}

void Admission::run() {
  while (!stopping_.load(std::memory_order_acquire)) {
    zmq::pollitem_t items[2] = {{socket_.handle(), 0, ZMQ_POLLIN, 0}, {nullptr, stop_.fd(), ZMQ_POLLIN, 0}};
    zmq_poll(items, 2, static_cast<long>(RateLimitedLog::kIntervalMs));
    noise_.tick(steady_ms());
    if (items[0].revents != 0) answer();
  }
}

// The library asks, so the frames are what RFC 27 says; what they hold is the peer's.
void Admission::answer() {
  std::array<zmq::message_t, kMaxFrames> asked;
  const int frames = receive_frames(socket_, asked);
  if (frames == 0) return;
  const std::string address = text_of(asked[3]), mechanism = text_of(asked[5]);
  Result<std::string> decided = fail(ErrorCode::kInvalidArgument, "it shows no key (mechanism " + mechanism + ")");
  if (frames == kFrames + 1 && mechanism == "CURVE" && asked[6].size() == kBinaryKey) {
    char text[kKeyText + 1];
    decided = decide_({.key = zmq_z85_encode(text, static_cast<const std::uint8_t*>(asked[6].data()), kBinaryKey)});
  } else if (frames == kFrames + 2 && mechanism == "PLAIN") {
    decided = decide_({.key = "", .token = text_of(asked[6]), .proof = text_of(asked[7])});
  }
  if (!decided) {
    refused_.fetch_add(1, std::memory_order_relaxed);
    noise_.warn("refused a peer at " + address + " that connects to " + what_ + ": " + decided.error().message,
                steady_ms());
  }
  const std::string version = "1.0", status = decided ? "200" : "400", reason = decided ? "" : "not authorized";
  const std::string reply[] = {version, text_of(asked[1]), status, reason, decided.value_or(""), ""};
  for (std::size_t i = 0; i < std::size(reply); ++i) {
    zmq::message_t frame(reply[i].data(), reply[i].size());
    if (!send_now(socket_, frame, i + 1 < std::size(reply))) return;
  }
}

}  // namespace tributary
