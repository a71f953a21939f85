#include "server/lane/lane_links.h"

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
  const bool accepts = listener_ && pending_.size() < kMaxPending && pause_.over(now_ms);
  if (accepts) items.push_back({nullptr, listener_.get(), ZMQ_POLLIN, 0});
  for (const Pending& pending : pending_) items.push_back({nullptr, pending.socket.get(), ZMQ_POLLIN, 0});
  for (const auto& [link, peer] : peers_) {
    if (peer.socket) items.push_back({nullptr, peer.socket.get(), ZMQ_POLLIN, 0});
  }
}

void LaneLinks::serve(std::uint64_t now_ms, const FindPool& find_pool) {
  if (!listener_) return;
  for (auto& [link, peer] : peers_) {
    if (!peer.socket || link_is_open(peer.socket.get())) continue;
    peer.socket.reset();
    told_.closed(link);
  }
  forget_those_over();
  for (std::size_t i = 0; i < kMaxPending && pending_.size() < kMaxPending && pause_.over(now_ms); ++i) {
    auto connected = accept_link(listener_.get());
    if (connected && !*connected) break;
    if (connected) {
      pending_.push_back({std::move(*connected), now_ms + kLinkPatienceMs});
    } else if (connected.error().code == ErrorCode::kLimit) {
      pause_.begin(now_ms);
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
    if (reply.link != 0) peers_.at(reply.link).socket = std::move(pending.socket);
    return true;
  });
}

LinkReply LaneLinks::grant(LinkReceived<LinkRequest>& request, const FindPool& find_pool, FileDescriptor& buffers) {
  const auto refuse = [](Error why) { return LinkReply{0, std::move(why)}; };
  const LinkRequest& m = request.message;
  const Result<LaneJobs::Shared> shared = find_pool(m);
  if (!shared) return refuse(shared.error());
  if (request.fds.empty() || request.fds.size() > kMaxLinkRegions) {
    return refuse({ErrorCode::kMalformed, "a link of " + std::to_string(request.fds.size()) + " regions; 1 to " +
                                              std::to_string(kMaxLinkRegions) + " are possible"});
  }
  Peer peer;
  for (FileDescriptor& fd : request.fds) {
    auto memory = SharedMemory::map_sealed(std::move(fd), "pushes of node " + std::to_string(m.node.value));
    if (!memory) return refuse(memory.error());
    memory->close_fd();
    peer.regions.push_back(std::make_shared<const SharedMemory>(std::move(*memory)));
  }
  auto readable = shared->pool->share();
  if (!readable) return refuse(readable.error());
  const Result<std::uint32_t> link = told_.open(m.job, m.view, m.node, *shared->pool, shared->chunks);
  if (!link) return refuse(link.error());
  forget_those_over();
  buffers = std::move(*readable);
  peers_[*link] = std::move(peer);
  return {*link, {}};
}

Result<Payload> LaneLinks::payload(const PayloadPlace& place) const {
  const auto found = peers_.find(place.link);
  if (found == peers_.end() || place.region >= found->second.regions.size()) {
    return fail(ErrorCode::kInvalidArgument, "a payload in region " + std::to_string(place.region) + " of link " +
                                                 std::to_string(place.link) + ", which has no such region");
  }
  const auto& region = found->second.regions[place.region];
  const auto bytes = payload_in(*region, place);
  if (!bytes) return tl::unexpected(bytes.error());
  return Payload(std::shared_ptr<const SharedMemory>(region), *bytes);
}

// Links of views that are over drop their regions and, without a reader, their entries.
void LaneLinks::forget_those_over() {
  for (auto& [link, peer] : peers_) {
    if (!told_.current(link)) peer.regions.clear();
  }
  std::erase_if(peers_, [&](const auto& entry) { return !entry.second.socket && !told_.current(entry.first); });
}

void LaneLinks::end() {
  told_.clear();
  peers_.clear();
}

std::uint64_t LaneLinks::mapped_bytes() const {
  std::uint64_t total = 0;
  for (const auto& [link, peer] : peers_) {
    for (const auto& region : peer.regions) total += region->size();
  }
  return total;
}

}  // namespace tributary
