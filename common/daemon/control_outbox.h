// ControlOutbox: what a daemon has to say to the coordinator while that does not listen, in order and bounded. Pure.
//
// What ranks keep is most of it by far (a stop makes every rank of every job give its last states), and the least: of
// that only the newest of each rank wait, and it goes first when there is no room. So it never costs another job a
// message about its life.
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

  // What had no room because of it, and is lost, in words; empty: nothing.
  std::string push(const ControlMessage& message);

  struct Waiting {
    std::uint64_t number = 0;
    ControlMessage message;
    std::uint64_t bytes = 0;
  };
  // The oldest; null if nothing waits. Valid until the next push().
  const Waiting* next() const { return waiting_.empty() ? nullptr : &waiting_.front(); }
  // That one has left; nothing happens if it has given way meanwhile.
  void sent(std::uint64_t number);

  std::size_t size() const { return waiting_.size(); }
  std::uint64_t bytes() const { return bytes_; }

 private:
  using Place = std::list<Waiting>::iterator;
  void erase(Place place);
  void supersede(const NodeRankState& state);
  void supersede(const RankValues& values);  // said again, with more of them or as many
  std::string make_room();

  std::list<Waiting> waiting_;
  std::uint64_t bytes_ = 0, last_number_ = 0;
};

}  // namespace tributary
