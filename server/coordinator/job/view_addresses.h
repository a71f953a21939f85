// ViewAddresses: the addresses and keys with which an all-reduce view's nodes connect. The coordinator gathers them and
// sends each node those of the others in lists: at once when every node has sent something new, else now and then.
// So a view of n nodes costs the coordinator a few messages a node, and each node the values of its two neighbours and
// the keys of all. Pure. A view of a job in the coordinator owns it.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "common/base/result.h"
#include "common/wire/messages.h"

namespace tributary {

class ViewAddresses {
 public:
  static constexpr std::size_t kMaxOfNode = 8;              // keys of a node in a view
  static constexpr std::uint64_t kMaxListBytes = 8u << 20;  // of values in a message; more go in several
  using Tell = std::function<void(const PeerAddresses&)>;

  explicit ViewAddresses(std::uint32_t nodes) : said_(nodes) {}

  // The first value of a node and key counts. The author must be a node of the view. kLimit: it has too many keys.
  Status add(const PeerAddress& m);
  // Returns whether every node has sent something that the others have not got.
  bool complete() const { return news_of_ == said_.size(); }
  bool news() const { return news_of_ != 0; }
  // Send `node` the news of the others, or everything so far.
  void tell_news(std::uint32_t node, const Tell& tell) const { tell_some(node, true, tell); }
  void tell_all(std::uint32_t node, const Tell& tell) const { tell_some(node, false, tell); }
  void told();  // all nodes have got everything so far

 private:
  struct OfNode {
    std::vector<PeerAddress> addresses;
    std::size_t told = 0;  // of them
  };
  void tell_some(std::uint32_t node, bool news_alone, const Tell& tell) const;

  std::vector<OfNode> said_;  // by node
  std::size_t news_of_ = 0;   // nodes
};

}  // namespace tributary
