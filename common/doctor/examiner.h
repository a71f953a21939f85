// Examiner: the thread on which a daemon examines itself when the coordinator asks (Examine). An examination takes
// seconds: it connects, and may measure. One runs at a time; the newest request ends it and follows. The coordinator
// repeats its request until it is answered: the result of a finished examination is sent again. Thread rule: on() on
// any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>

#include "common/daemon/log.h"
#include "common/wire/doctor_messages.h"

namespace tributary {

class Examiner {
 public:
  // Examines the daemon, on the examiner's thread. Ends soon once `stopping`, unless the system does not answer (a path
  // on a server that is gone): so it may outlive the examiner, and must own its data.
  using Look = std::function<Examined(const Examine& order, const std::atomic<bool>& stopping)>;
  using Tell = std::function<void(const Examined&)>;  // on that thread, too; never after the destructor has begun

  Examiner(Look look, Tell tell, const Logger& logger);
  // Waits for a running examination as long as it may take to notice `stopping`, and no longer.
  ~Examiner();
  Examiner(const Examiner&) = delete;
  Examiner& operator=(const Examiner&) = delete;

  static constexpr std::chrono::seconds kStopPatience{2};

  void on(const Examine& order);

 private:
  struct State;
  static void run(const std::shared_ptr<State>& state);

  const std::shared_ptr<State> state_;
};

}  // namespace tributary
