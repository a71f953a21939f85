// EventList: the coordinator's log lines of the last hour: peers that came and were lost, views, recoveries, stalls,
// failed snapshots. For status and page, which must not need the log's file. Pure. Lives in the coordinator.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "server/coordinator/cluster/coordinator_output.h"

namespace tributary {

class EventList {
 public:
  static constexpr std::uint64_t kKeepMs = 3'600'000;
  static constexpr std::size_t kMost = 200;      // newer ones take the place of the oldest
  static constexpr std::size_t kMaxBytes = 400;  // of an event's words; the log has all of them

  struct Event {
    std::string time;  // of day, for people
    LogLevel level = LogLevel::kInfo;
    std::string words;
    std::uint64_t at_ms = 0;
  };

  void add(Event event) {
    if (event.words.size() > kMaxBytes) {
      std::size_t end = kMaxBytes;
      while (end > 0 && is_inside_character(event.words[end])) --end;
      event.words = event.words.substr(0, end) + " ...";
    }
    events_.push_back(std::move(event));
    if (events_.size() > kMost) events_.pop_front();
  }
  // Returns the events of the last hour, the oldest first.
  std::vector<Event> recent(std::uint64_t now_ms) const {
    std::vector<Event> found;
    for (const Event& event : events_) {
      if (now_ms < event.at_ms + kKeepMs) found.push_back(event);
    }
    return found;
  }

 private:
  static bool is_inside_character(char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; }

  std::deque<Event> events_;
};

}  // namespace tributary
