// Examiner: the thread on which a daemon looks at itself when the coordinator asks (Examine), because that takes
// seconds: it connects, and may measure. One examination at a time; of those asked for meanwhile the newest follows,
// and ends the one before. The coordinator repeats its question until it is answered: an examination that is done is
// answered again, not made again. Thread rule: on() on any thread.
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
  // What the daemon finds; on the examiner's thread. It ends soon once `stopping`, unless the system does not answer (a
  // path on a server that is gone): so it may outlive the examiner, and must own what it uses.
  using Look = std::function<Examined(const Examine& order, const std::atomic<bool>& stopping)>;
  using Tell = std::function<void(const Examined&)>;  // on that thread, too; never after the destructor has begun

  Examiner(Look look, Tell tell, const Logger& logger);
  // Waits for what is under way for as long as it may take to notice, and no longer.
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
