// Packets over Unix sockets: of the attach protocol in pieces, and of links between lanes on one machine.
#include <sys/socket.h>

#include "common/wire/codec.h"
#include "common/wire/local_link.h"
#include "session/shared/attach_socket.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/unit/common/wire/random_message.h"

namespace tributary::fuzz::packets {
namespace {

struct Pair {
  Pair() {
    int ends[2];
    require(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0, "there are sockets");
    near = FileDescriptor(ends[0]);
    far = FileDescriptor(ends[1]);
  }
  FileDescriptor near, far;
};

enum class Reader : std::uint8_t { kAttach, kRequest, kReply, kEnd };

// The input: who reads, then packets, each with its length before it.
Bytes input_of(Reader reader, const FileDescriptor& socket) {
  Bytes input{static_cast<std::byte>(reader)};
  std::byte packet[4096];
  for (ssize_t size; (size = ::recv(socket.get(), packet, sizeof packet, 0)) > 0;) {
    const auto length = static_cast<std::uint16_t>(size);
    const auto* const bytes = reinterpret_cast<const std::byte*>(&length);
    input.insert(input.end(), bytes, bytes + sizeof length);
    input.insert(input.end(), packet, packet + size);
  }
  return input;
}

}  // namespace

std::vector<Bytes> seeds() {
  std::vector<Bytes> all;
  testing::Random random(1);
  for (const AttachMessage& message : testing::one_of_each<AttachMessage>(random)) {
    Pair pair;
    require(AttachSocket::adopt(std::move(pair.near)).send(message).has_value(), "a message is sent");
    all.push_back(input_of(Reader::kAttach, pair.far));
  }
  Pair pair;
  require(send_link(pair.near.get(), LinkRequest{JobId(7), ViewId(3), NodeRank(1)}, {}).has_value(), "it is sent");
  all.push_back(input_of(Reader::kRequest, pair.far));
  require(send_link(pair.near.get(), LinkReply{0, {ErrorCode::kUnknownJob, "no such job"}}, {}).has_value(),
          "it is sent");
  all.push_back(input_of(Reader::kReply, pair.far));
  return all;
}

void run(std::span<const std::byte> bytes) {
  Choices input(bytes);
  const auto reader = static_cast<Reader>(input.number() % static_cast<unsigned>(Reader::kEnd));
  Pair pair;
  AttachSocket attached = AttachSocket::adopt(std::move(pair.near));
  while (!input.over()) {
    const auto packet = input.take(input.number<std::uint16_t>());
    if (packet.empty() || ::send(pair.far.get(), packet.data(), packet.size(), MSG_DONTWAIT | MSG_NOSIGNAL) < 0) break;
    if (reader == Reader::kAttach && !attached.receive_now()) break;
    if (reader == Reader::kRequest && !receive_link_request(attached.fd())) break;
    if (reader == Reader::kReply && !receive_link_reply(attached.fd())) break;
  }
}

Target target() {
  return {"packets", seeds, run};
}

}  // namespace tributary::fuzz::packets
