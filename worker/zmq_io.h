// What the worker's shells share: the clock, and ZeroMQ calls without exceptions for what is no exception.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <zmq.hpp>

namespace tributary::worker_io {

inline std::uint64_t now_ns() {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
          .count());
}

inline std::uint64_t now_ms() {
  return now_ns() / 1'000'000;
}

// One frame, if there is one.
inline bool try_receive(zmq::socket_t& socket, zmq::message_t& frame) {
  int size;
  do {
    size = zmq_msg_recv(frame.handle(), socket.handle(), ZMQ_DONTWAIT);
  } while (size < 0 && zmq_errno() == EINTR);
  return size >= 0;
}

// False if the peer takes nothing at the moment or nobody is connected; the frame is then still the caller's.
inline bool try_send(zmq::socket_t& socket, zmq::message_t& frame, bool more) {
  int size;
  do {
    size = zmq_msg_send(frame.handle(), socket.handle(), ZMQ_DONTWAIT | (more ? ZMQ_SNDMORE : 0));
  } while (size < 0 && zmq_errno() == EINTR);
  return size >= 0;
}

inline bool has_more(zmq::message_t& frame) {
  return zmq_msg_more(frame.handle()) != 0;
}

// Takes the remaining frames of the message that `frame` belongs to off the socket.
inline void drop_rest(zmq::socket_t& socket, zmq::message_t& frame) {
  while (has_more(frame)) {
    if (!try_receive(socket, frame)) return;
  }
}

inline std::span<const std::byte> bytes_of(const zmq::message_t& frame) {
  return {static_cast<const std::byte*>(frame.data()), frame.size()};
}

}  // namespace tributary::worker_io
