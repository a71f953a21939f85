// Vector clocks, and a record of the accesses to a block of memory, which finds two conflicting accesses of which
// neither happened before the other.
//
// Actors are the host (0) and every stream. An operation happens after another one if a chain of stream order, events,
// collectives, host callbacks and calls leads from one to the other; not because it was executed later.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tributary::testing {

class Clock {
 public:
  std::uint64_t of(std::size_t actor) const { return actor < times_.size() ? times_[actor] : 0; }
  // The actor's next moment.
  std::uint64_t tick(std::size_t actor) {
    if (times_.size() <= actor) times_.resize(actor + 1);
    return ++times_[actor];
  }
  void join(const Clock& other) {
    if (times_.size() < other.times_.size()) times_.resize(other.times_.size());
    for (std::size_t i = 0; i < other.times_.size(); ++i) times_[i] = std::max(times_[i], other.times_[i]);
  }

 private:
  std::vector<std::uint64_t> times_;
};

struct Access {
  std::size_t begin = 0, end = 0;  // bytes of the block
  bool write = false;
  std::size_t actor = 0;
  std::uint64_t time = 0;  // the actor's
  std::string what;
};

// The accesses to one block that a later one may conflict with.
class AccessHistory {
 public:
  // `knows`: the accessing actor's clock, at `access.time` of its own. The conflict in words, if there is one.
  std::optional<std::string> add(const Access& access, const Clock& knows);
  // Returns an access to any part of the block that an actor with clock `knows` does not know of.
  std::optional<std::string> unknown(const Clock& knows) const;

 private:
  std::vector<Access> accesses_;
};

}  // namespace tributary::testing
