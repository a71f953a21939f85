#include "worker/node/lane_link.h"

#include <functional>

#include "common/base/assert.h"

namespace tributary {

Result<LaneLink> LaneLink::ask(FileDescriptor socket, const LinkRequest& request,
                               std::vector<const SharedMemory*> regions, std::uint64_t now_ms) {
  TRIB_ASSERT(!regions.empty() && regions.size() <= kMaxLinkRegions);
  std::vector<FileDescriptor> readable;
  std::vector<int> fds;
  for (const SharedMemory* region : regions) {
    auto fd = region->read_only();
    if (!fd) return tl::unexpected(fd.error());
    fds.push_back(fd->get());
    readable.push_back(std::move(*fd));
  }
  if (Status sent = send_link(socket.get(), request, fds); !sent) return tl::unexpected(sent.error());
  LaneLink link;
  link.socket_ = std::move(socket);
  link.until_ms_ = now_ms + kLinkPatienceMs;
  link.regions_ = std::move(regions);
  return link;
}

Status LaneLink::poll(std::uint64_t now_ms) {
  TRIB_ASSERT(asked());
  auto reply = receive_link_reply(socket_.get());
  if (reply && !*reply) {
    if (now_ms < until_ms_) return {};
    reply = fail(ErrorCode::kTimeout, "no reply within " + std::to_string(kLinkPatienceMs) + " ms");
  }
  FileDescriptor socket = std::move(socket_);
  if (!reply) return tl::unexpected(reply.error());
  auto& [message, fds] = **reply;
  if (message.link == 0) return tl::unexpected(message.why);
  if (fds.size() != 1) return fail(ErrorCode::kMalformed, "a link's reply without the server's memory");
  auto buffers = SharedMemory::map_sealed(std::move(fds[0]), "the server's answers");
  if (!buffers) return tl::unexpected(buffers.error());
  buffers->close_fd();
  buffers_ = std::move(*buffers);
  number_ = message.link;
  socket_ = std::move(socket);
  return {};
}

PayloadPlace LaneLink::place(std::span<const std::byte> payload) const {
  PayloadPlace place;
  place.link = number_;
  place.ticket = read_.newest();
  if (number_ == 0 || payload.empty()) return place;
  const std::less_equal<> before;  // a total order of pointers
  for (std::uint32_t i = 0; i < regions_.size(); ++i) {
    const std::span<const std::byte> region = regions_[i]->bytes();
    if (!before(region.data(), payload.data()) ||
        !before(payload.data() + payload.size(), region.data() + region.size())) {
      continue;
    }
    place.region = i;
    place.offset = static_cast<std::uint64_t>(payload.data() - region.data());
    place.bytes = payload.size();
    break;
  }
  return place;
}

Result<std::span<const std::byte>> LaneLink::payload(const PayloadPlace& place) const {
  if (number_ == 0 || place.link != number_) {
    return fail(ErrorCode::kInvalidArgument, "a payload in the memory of link " + std::to_string(place.link) +
                                                 ", which this connection does not have");
  }
  if (read_.over(place.ticket)) {
    return fail(ErrorCode::kInvalidArgument, "place " + std::to_string(place.ticket) + " of link " +
                                                 std::to_string(number_) + ", when " + std::to_string(read_.newest()) +
                                                 " had been read");
  }
  return payload_in(buffers_, place);
}

}  // namespace tributary
