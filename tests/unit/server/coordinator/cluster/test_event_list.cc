#include <doctest/doctest.h>

#include <string>

#include "common/base/utf8.h"
#include "server/coordinator/cluster/event_list.h"

namespace tributary::event_list_test {
namespace {

EventList::Event event(const std::string& words, std::uint64_t at_ms) {
  return {"2026-01-31T12:00:00Z", LogLevel::kWarning, words, at_ms};
}

}  // namespace

TEST_CASE("events of the last hour are told, the oldest first, and older ones no more") {
  EventList events;
  CHECK(events.recent(0).empty());
  events.add(event("lost server 1", 1000));
  events.add(event("server 1 is there", 5000));
  REQUIRE(events.recent(5000).size() == 2);
  CHECK(events.recent(5000)[0].words == "lost server 1");
  CHECK(events.recent(5000)[0].level == LogLevel::kWarning);
  CHECK(events.recent(5000)[0].time == "2026-01-31T12:00:00Z");
  CHECK(events.recent(1000 + EventList::kKeepMs - 1).size() == 2);
  REQUIRE(events.recent(1000 + EventList::kKeepMs).size() == 1);
  CHECK(events.recent(1000 + EventList::kKeepMs)[0].words == "server 1 is there");
  CHECK(events.recent(5000 + EventList::kKeepMs).empty());
}

TEST_CASE("of more events than the bound the newest are kept") {
  EventList events;
  for (std::size_t i = 0; i < EventList::kMost + 7; ++i) events.add(event(std::to_string(i), i));
  const auto recent = events.recent(EventList::kMost);
  REQUIRE(recent.size() == EventList::kMost);
  CHECK(recent.front().words == "7");
  CHECK(recent.back().words == std::to_string(EventList::kMost + 6));
}

TEST_CASE("words over the bound are cut between two characters") {
  EventList events;
  const std::string most(EventList::kMaxBytes, 'x');
  events.add(event(most, 0));
  events.add(event(most + "y", 0));
  events.add(event(most.substr(1) + "\u20ac", 0));  // begins within the bound, and ends behind it
  const auto recent = events.recent(0);
  CHECK(recent[0].words == most);
  CHECK(recent[1].words == most + " ...");
  CHECK(recent[2].words == most.substr(1) + " ...");
  CHECK(is_utf8(recent[2].words));
}

}  // namespace tributary::event_list_test
