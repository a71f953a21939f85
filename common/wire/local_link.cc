#include "common/wire/local_link.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>

#include "common/system/incarnation.h"
#include "common/system/socket_peer.h"
#include "common/wire/fd_packet.h"

namespace tributary {
namespace {

constexpr std::uint32_t kMagic = 0x6b6e696c;  // "link" in memory
constexpr int kBacklog = 256;

// One packet of a fixed size, in the machine's own byte order. The protocol version stands first after the magic,
// whatever the version.
struct Packet {
  std::uint32_t magic = kMagic;
  std::uint16_t protocol = kProtocolVersion;
  std::uint16_t code = 0;  // reply: ErrorCode, if link is 0
  std::uint64_t job = 0;   // request
  std::uint32_t view = 0;  // request
  std::uint32_t node = 0;  // request
  std::uint32_t link = 0;  // reply
  char why[228] = {};      // reply
};
static_assert(sizeof(Packet) == 256);

Error gone() {
  return {ErrorCode::kUnavailable, "the other side of the link is gone"};
}

// Name without a file: the first byte of the path is 0.
socklen_t address_of(const std::string& name, sockaddr_un& address) {
  address.sun_family = AF_UNIX;
  const std::size_t length = std::min(name.size(), sizeof address.sun_path - 1);
  std::memcpy(address.sun_path + 1, name.data(), length);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
}

// Passes only a peer that could read our memory anyway.
Status check_user(int socket) {
  const auto peer = peer_at(socket);
  if (!peer) return tl::unexpected(gone());
  if (is_trusted(*peer)) return {};
  return fail(ErrorCode::kUnavailable, "the other side is " + in_words(*peer) + ", this one of user " +
                                           std::to_string(::geteuid()) +
                                           "; run worker and server as the same user to let them share memory");
}

Status send_one(int socket, Packet packet, std::span<const int> fds) {
  const iovec part{&packet, sizeof packet};
  const int problem = send_packet(socket, {&part, 1}, fds);
  if (problem != 0) return tl::unexpected(gone());
  return {};
}

Result<std::optional<LinkReceived<Packet>>> receive_one(int socket) {
  LinkReceived<Packet> received;
  const iovec part{&received.message, sizeof received.message};
  FdPacket packet = receive_packet(socket, {&part, 1});
  if (packet.error == EAGAIN) return std::optional<LinkReceived<Packet>>();
  if (packet.error != 0 || packet.bytes == 0) return tl::unexpected(gone());
  if (packet.bytes >= offsetof(Packet, code) && received.message.magic == kMagic &&
      received.message.protocol != kProtocolVersion) {
    return fail(ErrorCode::kProtocolVersion,
                "the other side of the link speaks protocol version " + std::to_string(received.message.protocol) +
                    ", this one " + std::to_string(kProtocolVersion) + "; install the same release on both");
  }
  if (packet.bytes != sizeof(Packet) || packet.truncated || received.message.magic != kMagic) {
    return fail(ErrorCode::kMalformed, "a packet of " + std::to_string(packet.bytes) +
                                           " bytes came over a link's socket that is none of its protocol");
  }
  received.fds = std::move(packet.fds);
  return received;
}

}  // namespace

std::string new_link_name(ShardIndex shard, LaneIndex lane) {
  char random[17];
  std::snprintf(random, sizeof random, "%016llx", static_cast<unsigned long long>(random_incarnation()));
  return "tributary-" + std::to_string(shard.value) + "-" + std::to_string(lane.value) + "-" + random;
}

Result<FileDescriptor> listen_for_links(const std::string& name) {
  FileDescriptor fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_un address{};
  const socklen_t length = address_of(name, address);
  if (!fd || ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
      ::listen(fd.get(), kBacklog) != 0) {
    return fail(ErrorCode::kIo, "cannot listen on the abstract Unix socket " + name + ": " + std::strerror(errno));
  }
  return fd;
}

Result<FileDescriptor> accept_link(int listener) {
  FileDescriptor fd(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!fd && errno != EAGAIN && errno != ECONNABORTED && errno != EINTR) {
    return fail(ErrorCode::kLimit, std::string("cannot accept a link: ") + std::strerror(errno));
  }
  if (!fd) return fd;
  if (Status ours = check_user(fd.get()); !ours) return tl::unexpected(ours.error());
  return fd;
}

Result<FileDescriptor> connect_link(const std::string& name) {
  FileDescriptor fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_un address{};
  const socklen_t length = address_of(name, address);
  if (!fd || ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) {
    return fail(ErrorCode::kUnavailable, errno == ECONNREFUSED
                                             ? std::string("it is on another machine")
                                             : std::string("cannot connect: ") + std::strerror(errno));
  }
  if (Status ours = check_user(fd.get()); !ours) return tl::unexpected(ours.error());
  return fd;
}

bool link_is_open(int socket) {
  std::byte byte{};  // no more messages come over it: a peer that sends one breaks the protocol
  return ::recv(socket, &byte, sizeof byte, MSG_DONTWAIT) < 0 && (errno == EAGAIN || errno == EINTR);
}

Status send_link(int socket, const LinkRequest& request, std::span<const int> regions) {
  Packet packet;
  packet.job = request.job.value;
  packet.view = request.view.value;
  packet.node = request.node.value;
  return send_one(socket, packet, regions);
}

Status send_link(int socket, const LinkReply& reply, std::span<const int> buffers) {
  Packet packet;
  packet.link = reply.link;
  packet.code = static_cast<std::uint16_t>(reply.why.code);
  reply.why.message.copy(packet.why, sizeof packet.why - 1);
  return send_one(socket, packet, buffers);
}

Result<std::optional<LinkReceived<LinkRequest>>> receive_link_request(int socket) {
  auto packet = receive_one(socket);
  if (!packet) return tl::unexpected(packet.error());
  if (!*packet) return std::optional<LinkReceived<LinkRequest>>();
  const Packet& m = (*packet)->message;
  return LinkReceived<LinkRequest>{{JobId(m.job), ViewId(m.view), NodeRank(m.node)}, std::move((*packet)->fds)};
}

Result<std::optional<LinkReceived<LinkReply>>> receive_link_reply(int socket) {
  auto packet = receive_one(socket);
  if (!packet) return tl::unexpected(packet.error());
  if (!*packet) return std::optional<LinkReceived<LinkReply>>();
  Packet& m = (*packet)->message;
  m.why[sizeof m.why - 1] = '\0';
  return LinkReceived<LinkReply>{{m.link, {static_cast<ErrorCode>(m.code), m.why}}, std::move((*packet)->fds)};
}

Result<std::span<const std::byte>> payload_in(const SharedMemory& memory, const PayloadPlace& place) {
  if (place.offset <= memory.size() && place.bytes <= memory.size() - place.offset && place.bytes <= kMaxDataPayload) {
    return memory.bytes().subspan(place.offset, place.bytes);
  }
  return fail(ErrorCode::kInvalidArgument,
              "the payload at offset " + std::to_string(place.offset) + " with " + std::to_string(place.bytes) +
                  " bytes does not lie in the shared memory of " + std::to_string(memory.size()) + " bytes");
}

}  // namespace tributary
