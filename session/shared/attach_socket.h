// The attach protocol's transport: a Unix socket of type SOCK_SEQPACKET that carries messages of codec.h's attach kind
// and file descriptors (SCM_RIGHTS).
//
// The kernel bounds a packet by the socket's send buffer, a declaration of many tensors may be larger,
// so a message travels as one or more packets:
//     packet  := u32 kPacketMagic | u32 message_bytes | u32 offset | u32 zero | piece of at most kMaxPiece bytes
//     message := packets with offset 0, kMaxPiece, 2 * kMaxPiece, ... of the same message_bytes;
//                descriptors come with the first
// A packet that breaks this grammar gives kMalformed, and the connection is given up.
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/system/socket_peer.h"
#include "common/wire/fd_packet.h"
#include "common/wire/messages.h"
#include "session/shared/not_inherited.h"

namespace tributary {

struct AttachReceived {
  AttachMessage message;
  std::vector<FileDescriptor> fds;
};

// Thread rule: one thread at a time.
class AttachSocket {
 public:
  static constexpr std::size_t kMaxFds = kMaxPacketFds;  // node region, gradient region, one eventfd per worker lane
  static constexpr std::size_t kMaxPiece = 64u << 10;
  // How long a packet may wait for a peer that does not read. After that send() drops the message, and also the peer if
  // a part of the message has been sent.
  static constexpr std::chrono::milliseconds kSendTimeout{2000};
  // Descriptors that a trainer may send with a message.
  static constexpr std::size_t kMaxFdsOfTrainer = 1;

  // kUnavailable if no process listens on `path` (named), kInvalidArgument if it is too long for a Unix socket. kIo:
  // another user's process listens, and not root's.
  static Result<AttachSocket> connect(const std::string& path);
  // Takes an accepted connection.
  static AttachSocket adopt(FileDescriptor fd) { return AttachSocket(std::move(fd), kMaxFdsOfTrainer); }

  // patience: the wait for a peer that does not read, for each packet. kUnavailable: the peer has closed; kTimeout.
  Status send(const AttachMessage& message, std::span<const int> fds = {},
              std::chrono::milliseconds patience = kSendTimeout);
  // Returns a complete message if there is one, without waiting. kUnavailable: the peer has closed. Bytes that are no
  // message give the codec's error.
  Result<std::optional<AttachReceived>> receive_now();
  // Waits for a message at most until `deadline`: then kTimeout.
  Result<AttachReceived> receive(std::chrono::steady_clock::time_point deadline);

  int fd() const { return fd_.get(); }
  // The process at the other end.
  SocketPeer peer() const;
  // Ends the connection: messages that the peer has sent before are still received, and then the end.
  void hang_up();

 private:
  explicit AttachSocket(FileDescriptor fd, std::size_t takes_fds = kMaxFds)
      : fd_(std::move(fd)), takes_fds_(takes_fds) {}
  // True if `partial_` is complete now, false if there is no packet to read.
  Result<bool> receive_packet();

  FileDescriptor fd_;
  std::size_t takes_fds_;           // with a message
  NotInherited own_;                // of a connecting trainer: the worker is to see the end of this process
  std::vector<std::byte> partial_;  // message under way
  std::size_t expected_ = 0;        // its size; 0: none under way
  std::vector<FileDescriptor> partial_fds_;
};

// The address of a Unix socket at `path`, for bind and connect. kInvalidArgument if the path is empty or too long.
struct UnixAddress {
  alignas(8) std::byte storage[128];
  unsigned length = 0;
};
Result<UnixAddress> unix_address(const std::string& path);

}  // namespace tributary
