#include "session/shared/attach_socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "common/wire/codec.h"

namespace tributary {
namespace {

constexpr std::uint32_t kPacketMagic = 0x74726174;  // "tart" in memory
struct PacketHeader {
  std::uint32_t magic = kPacketMagic;
  std::uint32_t message_bytes = 0;
  std::uint32_t offset = 0;
  std::uint32_t zero = 0;
};

using Clock = std::chrono::steady_clock;

// Waits until `events` or `deadline`; false when the time ran out.
bool wait_for(int fd, short events, Clock::time_point deadline) {
  while (true) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd item{fd, events, 0};
    const int rc = ::poll(&item, 1, static_cast<int>(std::clamp<long long>(left, 0, 1 << 30)));
    if (rc > 0) return true;
    if (rc == 0 && left <= 0) return false;
  }
}

Error closed_by_peer() {
  return {ErrorCode::kUnavailable, "the other side of the attach socket is gone"};
}

Error malformed(const std::string& what) {
  return {ErrorCode::kMalformed, "the attach socket received " + what + "; only Tributary trainers may connect to it"};
}

}  // namespace

Result<UnixAddress> unix_address(const std::string& path) {
  sockaddr_un address{};
  if (path.empty() || path.size() >= sizeof address.sun_path) {
    return fail(ErrorCode::kInvalidArgument, "socket path '" + path + "' has " + std::to_string(path.size()) +
                                                 " bytes; a Unix socket's path has 1 to " +
                                                 std::to_string(sizeof address.sun_path - 1));
  }
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  UnixAddress result;
  static_assert(sizeof address <= sizeof result.storage);
  std::memcpy(result.storage, &address, sizeof address);
  result.length = sizeof address;
  return result;
}

Result<AttachSocket> AttachSocket::connect(const std::string& path) {
  const auto address = unix_address(path);
  if (!address) return tl::unexpected(address.error());
  FileDescriptor fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!fd) return fail(ErrorCode::kIo, std::string("cannot create a Unix socket: ") + std::strerror(errno));
  NotInherited own(fd.get());
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(address->storage), address->length) != 0) {
    if (errno == EACCES) {
      return fail(ErrorCode::kIo, "the worker's socket " + path + " is not open to user " +
                                      std::to_string(::geteuid()) +
                                      ": a worker serves its own user's trainers; start tributary-worker as this user, "
                                      "or name the socket of one (TRIBUTARY_SOCKET)");
    }
    const bool may_come = errno == ENOENT || errno == ECONNREFUSED || errno == EAGAIN;
    return fail(may_come ? ErrorCode::kUnavailable : ErrorCode::kIo,
                "no worker daemon listens on " + path + ": " + std::strerror(errno) +
                    "; start tributary-worker on this machine, or name the socket of its worker.toml");
  }
  AttachSocket socket(std::move(fd));
  const SocketPeer worker = socket.peer();
  if (!is_trusted(worker)) {
    return fail(ErrorCode::kIo, "at the socket " + path + " answers " + in_words(worker) + ", neither this user (" +
                                    std::to_string(::geteuid()) +
                                    ") nor root: a model goes to a worker of its own user alone; start "
                                    "tributary-worker as this user, or name the socket of one (TRIBUTARY_SOCKET)");
  }
  socket.own_ = std::move(own);
  return socket;
}

void AttachSocket::hang_up() {
  ::shutdown(fd_.get(), SHUT_RDWR);
}

SocketPeer AttachSocket::peer() const {
  constexpr SocketPeer kUnknown{.pid = 0, .uid = static_cast<uid_t>(-1)};  // no user has this number
  return peer_at(fd_.get()).value_or(kUnknown);
}

Status AttachSocket::send(const AttachMessage& message, std::span<const int> fds, std::chrono::milliseconds patience) {
  const std::vector<std::byte> bytes = encode_attach(message);
  if (bytes.size() > kMaxAttachBytes || fds.size() > kMaxFds) {
    return fail(ErrorCode::kLimit, "an attach message of " + std::to_string(bytes.size()) +
                                       " bytes is over the limit of " + std::to_string(kMaxAttachBytes) +
                                       "; declare fewer tensors or set a larger chunk_bytes in the job file");
  }
  for (std::size_t offset = 0; offset < bytes.size(); offset += kMaxPiece) {
    PacketHeader header;
    header.message_bytes = static_cast<std::uint32_t>(bytes.size());
    header.offset = static_cast<std::uint32_t>(offset);
    const iovec parts[2] = {
        {&header, sizeof header},
        {const_cast<std::byte*>(bytes.data() + offset), std::min(kMaxPiece, bytes.size() - offset)}};
    const auto deadline = Clock::now() + patience;  // each packet is progress
    while (const int problem = send_packet(fd_.get(), parts, offset == 0 ? fds : std::span<const int>())) {
      if (problem != EAGAIN) return tl::unexpected(closed_by_peer());
      if (!wait_for(fd_.get(), POLLOUT, deadline)) {
        // A message that is cut off would make the next one unreadable.
        if (offset > 0) hang_up();
        return fail(ErrorCode::kTimeout,
                    "the other side of the attach socket has not read for " + std::to_string(patience.count()) + " ms");
      }
    }
  }
  return {};
}

Result<bool> AttachSocket::receive_packet() {
  PacketHeader header;
  std::byte piece[kMaxPiece];
  const iovec parts[2] = {{&header, sizeof header}, {piece, sizeof piece}};
  FdPacket packet = tributary::receive_packet(fd_.get(), parts);
  if (packet.error == EAGAIN) return false;
  if (packet.error != 0 || packet.bytes == 0) return tl::unexpected(closed_by_peer());
  if (packet.truncated || packet.bytes <= sizeof header || header.magic != kPacketMagic) {
    return tl::unexpected(
        malformed("a packet of " + std::to_string(packet.bytes) + " bytes that is none of the attach protocol"));
  }
  if (packet.fds.size() > takes_fds_) {
    return tl::unexpected(malformed("a packet with " + std::to_string(packet.fds.size()) + " descriptors"));
  }
  const std::size_t bytes = packet.bytes - sizeof header;
  if (expected_ == 0) {
    if (header.message_bytes > kMaxAttachBytes) {
      return tl::unexpected(malformed("a message announced with " + std::to_string(header.message_bytes) +
                                      " bytes, over the limit of " + std::to_string(kMaxAttachBytes)));
    }
    expected_ = header.message_bytes;
    partial_.clear();
    partial_fds_ = std::move(packet.fds);
  }
  if (header.offset != partial_.size() || header.message_bytes != expected_ || bytes > expected_ - partial_.size()) {
    return tl::unexpected(malformed("a packet out of order"));
  }
  partial_.insert(partial_.end(), piece, piece + bytes);
  return true;
}

Result<std::optional<AttachReceived>> AttachSocket::receive_now() {
  while (true) {
    const auto got = receive_packet();
    if (!got) return tl::unexpected(got.error());
    if (!*got) return std::optional<AttachReceived>{};
    if (partial_.size() < expected_) continue;
    expected_ = 0;
    auto message = decode_attach(partial_);
    if (!message) return tl::unexpected(message.error());
    return AttachReceived{std::move(*message), std::move(partial_fds_)};
  }
}

Result<AttachReceived> AttachSocket::receive(Clock::time_point deadline) {
  while (true) {
    auto got = receive_now();
    if (!got) return tl::unexpected(got.error());
    if (*got) return std::move(**got);
    if (!wait_for(fd_.get(), POLLIN, deadline)) {
      return fail(ErrorCode::kTimeout, "no message came over the attach socket in time");
    }
  }
}

}  // namespace tributary
