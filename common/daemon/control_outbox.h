// ControlOutbox: a daemon's messages to the coordinator while that does not listen, in order and bounded. Pure.
//
// Most of its bytes by far are ranks' states (a stop makes every rank of every job give its last ones). These are also
// the least important: only the newest of each rank wait, and they are dropped first when there is no room. So they
// never displace another job's messages.
#pragma once

#include <cstdint>
#include <list>
#include <string>

#include "common/wire/messages.h"

namespace tributary {

class ControlOutbox {
 public:
  static constexpr std::size_t kMaxMessages = 4096;
  static constexpr std::uint64_t kMaxBytes = 64u << 20;
  // The round of a snapshot that is under way, and the two that a stop may be after.
  static constexpr std::size_t kStatesARank = 3;

  // Queues a message. Returns the names of messages that were dropped for lack of room; empty: none.
  std::string push(const ControlMessage& message);

  struct Waiting {
    std::uint64_t number = 0;
    ControlMessage message;
    std::uint64_t bytes = 0;
  };
  // The oldest; null if nothing waits. Valid until the next push().
  const Waiting* next() const { return waiting_.empty() ? nullptr : &waiting_.front(); }
  // Removes the sent message; does nothing if it has been dropped meanwhile.
  void sent(std::uint64_t number);

  std::size_t size() const { return waiting_.size(); }
  std::uint64_t bytes() const { return bytes_; }

 private:
  using Place = std::list<Waiting>::iterator;
  void erase(Place place);
  void supersede(const NodeRankState& state);
  void supersede(const RankValues& values);  // sent again, with at least as many of them
  std::string make_room();

  std::list<Waiting> waiting_;
  std::uint64_t bytes_ = 0, last_number_ = 0;
};

}  // namespace tributary
