#include "tests/sim/virtual_clock.h"

#include <utility>

namespace tributary::sim {

void VirtualClock::after(std::uint64_t delay_ns, std::function<void()> action) {
  events_.push(Event{now_ns_ + delay_ns, sequence_++, std::move(action)});
}

bool VirtualClock::step() {
  if (events_.empty()) return false;
  // The queue offers only a const reference to its top; the element is dropped right after it was moved from.
  Event event = std::move(const_cast<Event&>(events_.top()));
  events_.pop();
  now_ns_ = event.at_ns;
  event.action();
  return true;
}

}  // namespace tributary::sim
