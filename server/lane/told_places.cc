#include "server/lane/told_places.h"

#include <algorithm>
#include <string>

namespace tributary {
namespace {

// A chunk has an answer on its way, and in front of a view's first one a residual; besides some repeated ones.
constexpr std::size_t kPerChunk = 2, kSpare = 16;

}  // namespace

void ToldPlaces::Link::read_up_to(std::uint64_t ticket) {
  while (read < ticket) shares[++read % shares.size()].reset();
}

Result<std::uint32_t> ToldPlaces::open(JobId job, ViewId view, NodeRank node, const BufferPool& pool,
                                       std::size_t chunks) {
  if (over_.size() >= kMaxOver) {
    return fail(ErrorCode::kLimit,
                std::to_string(over_.size()) +
                    " links of views that are over are still open; end the workers that are stopped");
  }
  Link link;
  link.number = next_number_++;
  if (next_number_ == 0) next_number_ = 1;  // 0 is no link
  link.view = view;
  link.pool = &pool;
  link.shares.resize(kPerChunk * chunks + kSpare);
  const std::uint32_t number = link.number;
  Link& place = links_[{job, node}];
  end(std::exchange(place, std::move(link)));
  return number;
}

ToldPlaces::Link* ToldPlaces::find(const ChunkKey& key) {
  const auto found = links_.find({key.job, key.node});
  return found == links_.end() || found->second.view != key.view ? nullptr : &found->second;
}

Status ToldPlaces::bind(PeerId from, const ChunkKey& key, const PayloadPlace& place) {
  Link* link = find(key);
  if (link == nullptr || link->number != place.link) {
    return fail(ErrorCode::kInvalidArgument, "link " + std::to_string(place.link) + " is not one of node " +
                                                 std::to_string(key.node.value) + "; attach again");
  }
  if (place.ticket > link->told) {
    return fail(ErrorCode::kInvalidArgument,
                "node " + std::to_string(key.node.value) + " says that it has read place " +
                    std::to_string(place.ticket) + " of link " + std::to_string(place.link) + ", which was told " +
                    std::to_string(link->told) + "; worker and server must be of the same release");
  }
  link->peer = from;
  link->read_up_to(place.ticket);
  return {};
}

std::optional<PayloadPlace> ToldPlaces::tell(PeerId to, const ChunkKey& key, const BufferRef& payload) {
  constexpr PayloadPlace kNowhere;
  Link* link = find(key);
  if (link == nullptr || link->peer != to) return kNowhere;
  if (!link->reads) return std::nullopt;
  if (link->told - link->read == link->shares.size()) return kNowhere;
  const auto offset = link->pool->offset(payload.bytes());
  if (!offset) return kNowhere;
  link->shares[++link->told % link->shares.size()] = payload;
  return PayloadPlace{link->number, 0, *offset, payload.size(), link->told};
}

void ToldPlaces::end(Link link) {
  if (link.number != 0 && link.reads) over_.push_back(std::move(link));
}

void ToldPlaces::end_view(JobId job) {
  for (auto& [key, link] : links_) {
    if (key.first == job) end(std::move(link));
  }
  std::erase_if(links_, [&](const auto& entry) { return entry.first.first == job; });
}

void ToldPlaces::closed(std::uint32_t number) {
  std::erase_if(over_, [&](const Link& link) { return link.number == number; });
  for (auto& [key, link] : links_) {
    if (link.number != number) continue;
    link.reads = false;
    link.read_up_to(link.told);
  }
}

void ToldPlaces::clear() {
  links_.clear();
  over_.clear();
}

bool ToldPlaces::current(std::uint32_t number) const {
  return std::ranges::any_of(links_, [&](const auto& entry) { return entry.second.number == number; });
}

std::size_t ToldPlaces::size_of(JobId job) const {
  return static_cast<std::size_t>(
      std::ranges::count_if(links_, [&](const auto& entry) { return entry.first.first == job; }));
}

std::size_t ToldPlaces::unread() const {
  std::size_t total = 0;
  for (const auto& [key, link] : links_) total += link.told - link.read;
  for (const Link& link : over_) total += link.told - link.read;
  return total;
}

}  // namespace tributary
