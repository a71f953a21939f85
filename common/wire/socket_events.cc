#include "common/wire/socket_events.h"

#include <atomic>
#include <cstring>

#include "common/wire/zmq_util.h"

namespace tributary {

SocketEvents::SocketEvents(zmq::context_t& context, zmq::socket_t& socket, const std::string& name, int kinds)
    : watched_(socket.handle()), events_(context, zmq::socket_type::pair) {
  // ZeroMQ may still have the name of a monitor that has just ended.
  static std::atomic<std::uint64_t> last{0};
  const std::string endpoint = "inproc://" + name + "-" + std::to_string(++last);
  if (zmq_socket_monitor(watched_, endpoint.c_str(), kinds) != 0) throw zmq::error_t();
  events_.set(zmq::sockopt::linger, 0);
  events_.connect(endpoint);
}

SocketEvents::~SocketEvents() {
  stop();
}

void SocketEvents::stop() {
  if (void* watched = std::exchange(watched_, nullptr)) zmq_socket_monitor(watched, nullptr, 0);
}

std::optional<SocketEvents::Event> SocketEvents::next() {
  zmq::message_t frames[2];  // u16 event, u32 value; address
  Event event;
  std::int32_t value = 0;
  if (receive_frames(events_, frames) == 0 || frames[0].size() < sizeof event.kind + sizeof value) return std::nullopt;
  std::memcpy(&event.kind, frames[0].data(), sizeof event.kind);
  std::memcpy(&value, static_cast<const char*>(frames[0].data()) + sizeof event.kind, sizeof value);
  event.value = value;
  return event;
}

}  // namespace tributary
