// SocketEvents: what ZeroMQ's monitor says of a socket's connections. Thread rule: the socket's.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <zmq.hpp>

namespace tributary {

class SocketEvents {
 public:
  static constexpr int kBatch = 64;  // that a caller looks at a turn

  // Before the socket connects. name: one a socket of the context. kinds: ZMQ_EVENT_... that are of interest.
  // zmq::error_t: the name is taken.
  SocketEvents(zmq::context_t& context, zmq::socket_t& socket, const std::string& name, int kinds);
  ~SocketEvents();  // REQUIRES: the socket is still there
  SocketEvents(SocketEvents&& other) noexcept
      : watched_(std::exchange(other.watched_, nullptr)), events_(std::move(other.events_)) {}
  SocketEvents& operator=(SocketEvents&&) = delete;

  // ZMQ_EVENT_...; none: nothing more has happened. Does not block.
  std::optional<std::uint16_t> next();

 private:
  void* watched_;
  zmq::socket_t events_;
};

}  // namespace tributary
