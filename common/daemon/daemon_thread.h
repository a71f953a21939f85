// The threads of a daemon, and work on them that may fail by itself. Every thread of the product starts here (a test
// looks for others).
#pragma once

#include <functional>
#include <string>
#include <thread>
#include <utility>

#include "common/base/result.h"

namespace tributary {

// Starts a thread. No exception leaves it: one ends the process with a message in the log and on standard error, and
// the exit code kExitFailed. So no peer gets the thread's half-changed state; peers continue as after any crash. log:
// for that message; may be empty.
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

// Runs work for one job, order or connection: its exceptions are its own failure. kLimit: there was no memory.
Status contained(const std::function<Status()>& work);

}  // namespace tributary
