#include "tests/sim/network.h"

#include <utility>

namespace tributary::sim {

void Network::after(std::uint64_t delay_ns, std::function<void()> action) {
  events_.push(Event{now_ns_ + delay_ns, sequence_++, std::move(action)});
}

std::uint64_t Network::delay() {
  const std::uint64_t usual = random_.between(options_.min_delay_ns, options_.max_delay_ns);
  return random_.chance(options_.straggle) ? usual * random_.between(2, 50) : usual;
}

void Network::send(const std::function<void()>& deliver) {
  ++stats_.sent;
  int copies = 1;
  if (random_.chance(options_.lose)) {
    copies = 0;
    ++stats_.lost;
  } else if (random_.chance(options_.duplicate)) {
    copies = 2;
    ++stats_.duplicated;
  }
  for (int i = 0; i < copies; ++i) {
    after(delay(), [this, deliver] {
      ++stats_.delivered;
      deliver();
    });
  }
}

bool Network::step() {
  if (events_.empty()) return false;
  // The queue offers only a const reference to its top; the element is dropped right after it was moved from.
  Event event = std::move(const_cast<Event&>(events_.top()));
  events_.pop();
  now_ns_ = event.at_ns;
  event.action();
  return true;
}

}  // namespace tributary::sim
