#include "server/coordinator/job/view_addresses.h"

#include <algorithm>
#include <utility>

namespace tributary {

Status ViewAddresses::add(const PeerAddress& m) {
  OfNode& author = said_[m.node.value];
  if (std::ranges::find(author.addresses, m.key, &PeerAddress::key) != author.addresses.end()) return {};
  if (author.addresses.size() == kMaxOfNode) {
    return fail(ErrorCode::kLimit, "node " + std::to_string(m.node.value) + " gave addresses of more than " +
                                       std::to_string(kMaxOfNode) + " kinds in one view");
  }
  if (author.told == author.addresses.size()) ++news_of_;
  author.addresses.push_back(m);
  return {};
}

void ViewAddresses::tell_some(std::uint32_t node, bool news_alone, const Tell& tell) const {
  const auto nodes = static_cast<std::uint32_t>(said_.size());
  PeerAddresses list;
  std::uint64_t bytes = 0;
  for (std::uint32_t author = 0; author < nodes; ++author) {
    if (author == node) continue;
    const bool beside = (author + 1) % nodes == node || (node + 1) % nodes == author;
    const OfNode& of = said_[author];
    for (std::size_t i = news_alone ? of.told : 0; i < of.addresses.size(); ++i) {
      const PeerAddress& address = of.addresses[i];
      const bool whole = beside || address.for_all;
      const std::uint64_t size = whole ? address.value.size() : 0;
      if (bytes + size > kMaxListBytes && !list.addresses.empty()) {
        tell(std::exchange(list, {}));
        bytes = 0;
      }
      bytes += size;
      list.addresses.push_back({address.job, address.view, address.node, address.key, {}, address.for_all});
      if (whole) list.addresses.back().value = address.value;
    }
  }
  if (!list.addresses.empty()) tell(list);
}

void ViewAddresses::told() {
  for (OfNode& of : said_) of.told = of.addresses.size();
  news_of_ = 0;
}

}  // namespace tributary
