// The threads of a daemon, and work on them that may fail by itself. Every thread of the product starts here (a test
// looks for others).
#pragma once

#include <functional>
#include <string>
#include <thread>
#include <utility>

#include "common/base/result.h"

namespace tributary {

// Nothing that is thrown leaves the thread: it ends the process with a message in the log and on standard error, and
// the exit code kExitFailed. What the thread left half-changed is served to nobody; peers go on as after any crash.
// log: for that message; may be empty.
using ThreadLog = std::function<void(const std::string&)>;
std::thread start_thread(std::string name, ThreadLog log, std::function<void()> run);

template <class Logger>
requires requires(Logger& logger, const std::string& line) {
  logger->critical(line);
}
std::thread start_thread(std::string name, Logger logger, std::function<void()> run) {
  return start_thread(std::move(name), ThreadLog([logger](const std::string& line) { logger->critical(line); }),
                      std::move(run));
}

// Work for one job, order or connection: what it throws is its own failure. kLimit: there was no memory.
Status contained(const std::function<Status()>& work);

}  // namespace tributary
