// What the server's shells (lane, coordinator, control) share: the clock, incarnations, and ZeroMQ calls without
// exceptions for what is no exception.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <zmq.hpp>

namespace tributary {

inline std::uint64_t steady_ms() {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now().time_since_epoch())
          .count());
}

// Random and never 0 (which means "nobody"): a restarted process is a new one.
inline std::uint64_t random_incarnation() {
  std::random_device device;
  return ((std::uint64_t{device()} << 32) | device()) | 1;
}

// One frame, if there is one.
inline bool receive_now(zmq::socket_t& socket, zmq::message_t& frame) {
  int size;
  do {
    size = zmq_msg_recv(frame.handle(), socket.handle(), ZMQ_DONTWAIT);
  } while (size < 0 && zmq_errno() == EINTR);
  return size >= 0;
}

// False with zmq_errno() EAGAIN (the peer takes nothing) or EHOSTUNREACH (it is gone).
inline bool send_now(zmq::socket_t& socket, zmq::message_t& frame, bool more) {
  int size;
  do {
    size = zmq_msg_send(frame.handle(), socket.handle(), ZMQ_DONTWAIT | (more ? ZMQ_SNDMORE : 0));
  } while (size < 0 && zmq_errno() == EINTR);
  return size >= 0;
}

// The frames of a message up to its end into `frames`; those beyond are dropped one by one, so that a message of many
// frames takes no memory here. Returns how many there were; 0 if none.
inline int receive_frames(zmq::socket_t& socket, std::span<zmq::message_t> frames) {
  std::size_t count = 0;
  zmq::message_t surplus;
  for (bool more = true; more; ++count) {
    zmq::message_t& frame = count < frames.size() ? frames[count] : surplus;
    if (!receive_now(socket, frame)) break;
    more = zmq_msg_more(frame.handle()) != 0;
  }
  return static_cast<int>(count);
}

inline std::span<const std::byte> bytes_of(const zmq::message_t& frame) {
  return {static_cast<const std::byte*>(frame.data()), frame.size()};
}

}  // namespace tributary
