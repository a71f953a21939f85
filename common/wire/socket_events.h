// SocketEvents: the events of a socket's connections, from ZeroMQ's monitor. Thread rule: the socket's, or another
// one's, if that alone calls next().
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

  // Before the socket connects. name: what it is for. kinds: ZMQ_EVENT_... that are of interest.
  SocketEvents(zmq::context_t& context, zmq::socket_t& socket, const std::string& name, int kinds);
  ~SocketEvents();  // REQUIRES: the socket is still there
  SocketEvents(SocketEvents&& other) noexcept
      : watched_(std::exchange(other.watched_, nullptr)), events_(std::move(other.events_)) {}
  SocketEvents& operator=(SocketEvents&&) = delete;

  struct Event {
    std::uint16_t kind = 0;  // ZMQ_EVENT_...
    int value = 0;           // descriptor of the connection, with some kinds
  };
  // None: nothing more has happened. Does not block.
  std::optional<Event> next();
  // Ends the events; the watched socket's threads do not wait for a reader any more. Idempotent.
  void stop();
  void* handle() { return events_.handle(); }  // to be polled

 private:
  void* watched_;
  zmq::socket_t events_;
};

}  // namespace tributary
