// ArrivalOrder: numbers below a bound in the order in which they came, each at most once; any may leave. Its memory is
// taken once, and every operation is a few steps. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/base/assert.h"

namespace tributary {

class ArrivalOrder {
 public:
  explicit ArrivalOrder(std::size_t bound) : links_(bound + 1) {
    for (std::uint32_t i = 0; i < links_.size(); ++i) links_[i] = {i, i};
  }

  bool empty() const { return links_[end()].after == end(); }
  // REQUIRES: not empty().
  std::uint32_t first() const {
    TRIB_ASSERT(!empty());
    return links_[end()].after;
  }
  // REQUIRES: it is not here.
  void add(std::uint32_t number) {
    TRIB_ASSERT(number < end() && links_[number].after == number);
    const std::uint32_t last = links_[end()].before;
    links_[number] = {last, end()};
    links_[last].after = links_[end()].before = number;
  }
  // REQUIRES: it is here.
  void remove(std::uint32_t number) {
    TRIB_ASSERT(number < end() && links_[number].after != number);
    const Link link = links_[number];
    links_[link.before].after = link.after;
    links_[link.after].before = link.before;
    links_[number] = {number, number};
  }

 private:
  struct Link {
    std::uint32_t before, after;  // itself: it is not here
  };
  std::uint32_t end() const { return static_cast<std::uint32_t>(links_.size() - 1); }  // stands between last and first

  std::vector<Link> links_;
};

}  // namespace tributary
