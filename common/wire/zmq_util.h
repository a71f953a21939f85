// ZeroMQ as this project uses it: zero-copy messages on reference-counted memory,
// routing ids as PeerId, one set of socket options.
#pragma once

#include <atomic>
#include <cstddef>
#include <span>
#include <string>
#include <zmq.hpp>

#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/system/buffer_pool.h"
#include "common/wire/payload.h"

namespace tributary {

// A message that sends the buffer's first `size` bytes without copying them; the reference is dropped on ZeroMQ's I/O
// thread when the bytes have left for the kernel.
zmq::message_t borrow(const BufferRef& buffer, std::size_t size);

// Memory lent to ZeroMQ that is not a BufferRef (a trainer's shared memory): counted, so that it is not unmapped while
// a message still points to it. Thread rule: lend() on the owner's thread, returns on any.
class LentMemory {
 public:
  LentMemory() = default;
  ~LentMemory();  // REQUIRES: outstanding() == 0
  LentMemory(const LentMemory&) = delete;
  LentMemory& operator=(const LentMemory&) = delete;
  zmq::message_t lend(std::span<const std::byte> bytes);
  std::uint64_t outstanding() const { return outstanding_.load(std::memory_order_acquire); }

 private:
  std::atomic<std::uint64_t> outstanding_{0};
};

// Takes over a received message as a Payload: no copy.
Payload to_payload(zmq::message_t message);

// Packs a ROUTER's automatic routing id (5 bytes, the first 0) into a PeerId. kMalformed for ids that a peer chose
// itself: they could be used to take over another peer's connection.
Result<PeerId> peer_from_routing_id(std::span<const std::byte> routing_id);
zmq::message_t routing_id_of(PeerId peer);

// Options every socket of ours has. max_message: bytes, refused beyond (the peer is disconnected). high_water: messages
// queued per peer in each direction; beyond it a send gives EAGAIN.
void set_common_options(zmq::socket_t& socket, std::size_t max_message, int high_water);

// Sending and receiving without waiting, and without exceptions for ordinary results.

// One frame, if there is one.
bool receive_now(zmq::socket_t& socket, zmq::message_t& frame);

// The frames of a message up to its end into `frames`; those beyond are dropped one by one, so that a message of many
// frames takes no memory here. Returns how many there were; 0 if none.
int receive_frames(zmq::socket_t& socket, std::span<zmq::message_t> frames);

// Returns false with zmq_errno() EAGAIN (the peer takes nothing, or none is connected) or EHOSTUNREACH (it is gone);
// the frame is then still the caller's.
bool send_now(zmq::socket_t& socket, zmq::message_t& frame, bool more);

inline std::span<const std::byte> bytes_of(const zmq::message_t& frame) {
  return {static_cast<const std::byte*>(frame.data()), frame.size()};
}

// Binds; kUnavailable names the address and what to do. Returns the bound endpoint (wildcards resolved).
Result<std::string> bind_endpoint(zmq::socket_t& socket, const std::string& endpoint);

// ZeroMQ receives each large frame into freshly malloc'ed memory. glibc would map and unmap it every time; this keeps
// freed frames in the process, so that in the steady state no page is faulted in per chunk.
// Once per process, before threads start.
void tune_malloc_for_frames();

}  // namespace tributary
