#include "common/wire/zmq_util.h"

#include <malloc.h>

#include <cerrno>
#include <cstring>

#include "common/base/assert.h"

namespace tributary {
namespace {

void drop_buffer(void*, void* handle) {
  BufferRef::adopt(handle).reset();
}

void return_lent(void*, void* counter) {
  static_cast<std::atomic<std::uint64_t>*>(counter)->fetch_sub(1, std::memory_order_release);
}

}  // namespace

zmq::message_t borrow(const BufferRef& buffer, std::size_t size) {
  TRIB_ASSERT(buffer && size <= buffer.size());
  std::byte* data = buffer.data();
  return zmq::message_t(data, size, &drop_buffer, BufferRef(buffer).release());
}

LentMemory::~LentMemory() {
  TRIB_ASSERT(outstanding() == 0);
}

zmq::message_t LentMemory::lend(std::span<const std::byte> bytes) {
  outstanding_.fetch_add(1, std::memory_order_relaxed);
  // ZeroMQ takes a pointer to non-const, but only reads from messages it sends.
  return zmq::message_t(const_cast<std::byte*>(bytes.data()), bytes.size(), &return_lent, &outstanding_);
}

Payload to_payload(zmq::message_t message) {
  // Large frames lie behind the message's pointer, and stay where they are when the message moves. Small ones are
  // stored inside it and would move with it: those are copied into memory of their own.
  constexpr std::size_t kSurelyOutside = 64;
  if (message.size() < kSurelyOutside) {
    auto copy = std::make_unique<std::byte[]>(message.size());
    std::memcpy(copy.get(), message.data(), message.size());
    const std::span<std::byte> bytes(copy.get(), message.size());
    return Payload::alone(std::move(copy), bytes);
  }
  // A message that was received has memory of its own: sockets here are never of one process (inproc).
  const std::span<std::byte> bytes(static_cast<std::byte*>(message.data()), message.size());
  return Payload::alone(std::move(message), bytes);
}

Result<PeerId> peer_from_routing_id(std::span<const std::byte> routing_id) {
  if (routing_id.size() != 5 || routing_id[0] != std::byte{0}) {
    return fail(ErrorCode::kMalformed, "a peer chose its own routing id of " + std::to_string(routing_id.size()) +
                                           " bytes; connect without setting ZMQ_ROUTING_ID");
  }
  std::uint64_t value = 1ull << 40;  // so that no PeerId is 0, which means "none"
  for (std::size_t i = 1; i < 5; ++i)
    value |= std::uint64_t{std::to_integer<std::uint8_t>(routing_id[i])} << (8 * (4 - i));
  return PeerId(value);
}

zmq::message_t routing_id_of(PeerId peer) {
  std::byte bytes[5] = {};
  for (std::size_t i = 1; i < 5; ++i) bytes[i] = static_cast<std::byte>(peer.value >> (8 * (4 - i)));
  return zmq::message_t(bytes, sizeof bytes);
}

void set_common_options(zmq::socket_t& socket, std::size_t max_message, int high_water) {
  socket.set(zmq::sockopt::linger, 0);
  socket.set(zmq::sockopt::maxmsgsize, static_cast<std::int64_t>(max_message));
  socket.set(zmq::sockopt::sndhwm, high_water);
  socket.set(zmq::sockopt::rcvhwm, high_water);
  // A flow that the network drops without a word (NAT, a firewall's table) is found within some two minutes, idle or
  // not; the kernel's own limits are two hours and a quarter of an hour.
  socket.set(zmq::sockopt::tcp_keepalive, 1);
  socket.set(zmq::sockopt::tcp_keepalive_idle, 60);  // seconds
  socket.set(zmq::sockopt::tcp_keepalive_intvl, 15);
  socket.set(zmq::sockopt::tcp_keepalive_cnt, 4);
  socket.set(zmq::sockopt::tcp_maxrt, 120'000);  // milliseconds
  socket.set(zmq::sockopt::reconnect_ivl, 50);
  socket.set(zmq::sockopt::reconnect_ivl_max, 1000);
  if (socket.get(zmq::sockopt::type) == ZMQ_ROUTER) socket.set(zmq::sockopt::router_mandatory, true);
}

bool receive_now(zmq::socket_t& socket, zmq::message_t& frame) {
  int size;
  do {
    size = zmq_msg_recv(frame.handle(), socket.handle(), ZMQ_DONTWAIT);
  } while (size < 0 && zmq_errno() == EINTR);
  return size >= 0;
}

int receive_frames(zmq::socket_t& socket, std::span<zmq::message_t> frames) {
  std::size_t count = 0;
  zmq::message_t surplus;
  for (bool more = true; more; ++count) {
    zmq::message_t& frame = count < frames.size() ? frames[count] : surplus;
    if (!receive_now(socket, frame)) break;
    more = zmq_msg_more(frame.handle()) != 0;
  }
  return static_cast<int>(count);
}

bool send_now(zmq::socket_t& socket, zmq::message_t& frame, bool more) {
  int size;
  do {
    size = zmq_msg_send(frame.handle(), socket.handle(), ZMQ_DONTWAIT | (more ? ZMQ_SNDMORE : 0));
  } while (size < 0 && zmq_errno() == EINTR);
  return size >= 0;
}

Result<std::string> bind_endpoint(zmq::socket_t& socket, const std::string& endpoint) {
  try {
    socket.bind(endpoint);
    return socket.get(zmq::sockopt::last_endpoint);
  } catch (const zmq::error_t& e) {
    return fail(ErrorCode::kUnavailable,
                "cannot bind " + endpoint + ": " + e.what() +
                    (e.num() == EADDRINUSE ? "; another process has this port, stop it or choose another address"
                                           : "; check that the address exists on this machine and may be used"));
  }
}

void tune_malloc_for_frames() {
  // 32 MiB is glibc's upper limit for the mmap threshold (HEAP_MAX_SIZE / 2); larger frames are mapped each time.
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  mallopt(M_TOP_PAD, 16 << 20);
}

}  // namespace tributary
