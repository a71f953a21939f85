// OrderThread: work that takes as long as a disk takes, carried out in order by a thread of its own. Bounded.
//
// Thread rule: order() and stop() from any thread. Work and Done run on this one.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "common/base/result.h"
#include "common/daemon/daemon_thread.h"

namespace tributary {

class OrderThread {
 public:
  using Work = std::function<Status()>;
  using Done = std::function<void(const Status&)>;

  enum class Priority { kNormal, kLow };

  // most: orders that wait. kLow: training waits for none of its work; the name then has at most 15 characters.
  OrderThread(std::string name, std::size_t most, ThreadLog log, Priority priority = Priority::kNormal);
  ~OrderThread();  // stop()
  OrderThread(const OrderThread&) = delete;
  OrderThread& operator=(const OrderThread&) = delete;

  // Every order that is taken ends in one call of done. kLimit: so many wait already; kStopped: it was told to stop.
  [[nodiscard]] Status order(Work work, Done done);
  // For work that takes long: kStopped when it is to end.
  Status go_on() { return pause(0); }
  // The same after a while.
  Status pause(std::uint64_t ns);
  // The order under way ends when it looks at go_on(). Waiting orders end with kStopped, unbegun. Idempotent.
  void stop();

 private:
  void run();

  const std::size_t most_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::pair<Work, Done>> orders_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace tributary
