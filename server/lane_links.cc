#include "server/lane_links.h"

#include <algorithm>

namespace tributary {

Status LaneLinks::listen(std::string name) {
  auto listener = listen_for_links(name);
  if (!listener) return tl::unexpected(listener.error());
  listener_ = std::move(*listener);
  name_ = std::move(name);
  return {};
}

void LaneLinks::add_poll_items(std::vector<zmq::pollitem_t>& items, std::uint64_t now_ms) const {
  const bool accepts = listener_ && pending_.size() < kMaxPending && now_ms >= paused_until_ms_;
  if (accepts) items.push_back({nullptr, listener_.get(), ZMQ_POLLIN, 0});
  for (const Pending& pending : pending_) items.push_back({nullptr, pending.socket.get(), ZMQ_POLLIN, 0});
}

void LaneLinks::serve(std::uint64_t now_ms, const FindPool& find_pool) {
  if (!listener_) return;
  for (std::size_t i = 0; i < kMaxPending && pending_.size() < kMaxPending && now_ms >= paused_until_ms_; ++i) {
    auto connected = accept_link(listener_.get());
    if (connected && !*connected) break;
    if (connected) {
      pending_.push_back({std::move(*connected), now_ms + kLinkPatienceMs});
    } else if (connected.error().code == ErrorCode::kLimit) {
      paused_until_ms_ = now_ms + kPauseMs;
    }
  }
  std::erase_if(pending_, [&](Pending& pending) {
    auto request = receive_link_request(pending.socket.get());
    if (request && !*request) return now_ms >= pending.until_ms;
    LinkReply reply;
    FileDescriptor buffers;
    if (!request) {
      reply.why = request.error();
    } else {
      reply = grant(**request, find_pool, buffers);
    }
    // A worker that does not get the reply gives up by itself.
    const int fd = buffers.get();
    (void)send_link(pending.socket.get(), reply, std::span(&fd, buffers ? 1u : 0u));
    return true;
  });
}

LinkReply LaneLinks::grant(LinkReceived<LinkRequest>& request, const FindPool& find_pool, FileDescriptor& buffers) {
  const auto refuse = [](Error why) { return LinkReply{0, std::move(why)}; };
  const LinkRequest& m = request.message;
  const Result<BufferPool*> pool = find_pool(m);
  if (!pool) return refuse(pool.error());
  if (request.fds.empty() || request.fds.size() > kMaxLinkRegions) {
    return refuse({ErrorCode::kMalformed, "a link of " + std::to_string(request.fds.size()) + " regions; 1 to " +
                                              std::to_string(kMaxLinkRegions) + " are possible"});
  }
  Link link;
  for (FileDescriptor& fd : request.fds) {
    auto memory = SharedMemory::map_sealed(std::move(fd), "pushes of node " + std::to_string(m.node.value));
    if (!memory) return refuse(memory.error());
    memory->close_fd();
    link.regions.push_back(std::make_shared<const SharedMemory>(std::move(*memory)));
  }
  auto shared = (*pool)->share();
  if (!shared) return refuse(shared.error());
  buffers = std::move(*shared);
  link.number = next_number_++;
  if (next_number_ == 0) next_number_ = 1;  // 0 is no link
  link.view = m.view;
  link.buffers = *pool;
  const std::uint32_t number = link.number;
  links_[{m.job, m.node}] = std::move(link);
  return {number, {}};
}

const LaneLinks::Link* LaneLinks::find(const ChunkKey& key) const {
  const auto found = links_.find({key.job, key.node});
  return found == links_.end() || found->second.view != key.view ? nullptr : &found->second;
}

Status LaneLinks::bind(PeerId from, const ChunkKey& key, const PayloadPlace& place) {
  Link* link = const_cast<Link*>(find(key));
  if (link == nullptr || link->number != place.link) {
    return fail(ErrorCode::kInvalidArgument, "link " + std::to_string(place.link) + " is not one of node " +
                                                 std::to_string(key.node.value) + "; attach again");
  }
  link->peer = from;
  return {};
}

Result<Payload> LaneLinks::payload(const ChunkKey& key, const PayloadPlace& place) const {
  const Link* link = find(key);
  if (link == nullptr || link->number != place.link || place.region >= link->regions.size()) {
    return fail(ErrorCode::kInvalidArgument, "a payload in region " + std::to_string(place.region) + " of link " +
                                                 std::to_string(place.link) + ", which has no such region");
  }
  const auto& region = link->regions[place.region];
  const auto bytes = payload_in(*region, place);
  if (!bytes) return tl::unexpected(bytes.error());
  return Payload(std::shared_ptr<const SharedMemory>(region), *bytes);
}

PayloadPlace LaneLinks::place(PeerId to, const ChunkKey& key, std::span<const std::byte> bytes) const {
  if (links_.empty()) return {};
  const Link* link = find(key);
  if (link == nullptr || link->peer != to) return {};
  const auto offset = link->buffers->offset(bytes);
  if (!offset) return {};
  return {link->number, 0, *offset, bytes.size()};
}

void LaneLinks::drop(JobId job) {
  std::erase_if(links_, [&](const auto& entry) { return entry.first.first == job; });
}

std::size_t LaneLinks::size_of(JobId job) const {
  return static_cast<std::size_t>(std::ranges::count(links_, job, [](const auto& entry) { return entry.first.first; }));
}

std::uint64_t LaneLinks::mapped_bytes() const {
  std::uint64_t total = 0;
  for (const auto& [key, link] : links_) {
    for (const auto& region : link.regions) total += region->size();
  }
  return total;
}

}  // namespace tributary
