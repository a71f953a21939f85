// SelfDiagnosis: the thread on which a daemon diagnoses itself when the coordinator asks (Diagnose). A diagnosis takes
// seconds: it connects, and may measure. One runs at a time; the newest request ends it and follows. The coordinator
// repeats its request until it is answered: the result of a finished diagnosis is sent again. Thread rule: on() on
// any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>

#include "common/daemon/log.h"
#include "common/wire/doctor_messages.h"

namespace tributary {

class SelfDiagnosis {
 public:
  // Diagnoses the daemon, on a thread of its own. Ends soon once `stopping`, unless the system does not answer (a path
  // on a server that is gone): so it may outlive this object, and must own its data.
  using Look = std::function<Diagnosed(const Diagnose& order, const std::atomic<bool>& stopping)>;
  using Tell = std::function<void(const Diagnosed&)>;  // on that thread, too; never after the destructor has begun

  SelfDiagnosis(Look look, Tell tell, const Logger& logger);
  // Waits for a running diagnosis as long as it may take to notice `stopping`, and no longer.
  ~SelfDiagnosis();
  SelfDiagnosis(const SelfDiagnosis&) = delete;
  SelfDiagnosis& operator=(const SelfDiagnosis&) = delete;

  static constexpr std::chrono::seconds kStopPatience{2};

  void on(const Diagnose& order);

 private:
  struct State;
  static void run(const std::shared_ptr<State>& state);

  const std::shared_ptr<State> state_;
};

}  // namespace tributary
