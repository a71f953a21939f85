// The life of a daemon between its start and its exit code: one ready line, a stop in good order on the first signal,
// with a deadline, and at once on a later second one.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "common/base/exit_codes.h"
#include "common/base/result.h"
#include "common/daemon/log.h"

namespace tributary {

// A daemon that has started. The functions own it: it is stopped when the last of them is destroyed. They are called on
// the main thread.
struct Daemon {
  Logger logger;
  std::uint32_t stop_timeout_s = 0;         // after drain(), without progress: then it is abandoned
  std::string jobs;                         // what it stops, as the subject of a message: "jobs"
  std::function<std::string()> ready_line;  // for whoever started the process
  // What it cannot serve without, and whether that is there. An error: it never will be, as things are configured; the
  // process ends with it. Null: it serves from its start.
  std::string waits_for;
  std::function<Result<bool>()> serving;
  // Why the process cannot go on and must be started anew; empty: it can. It then gives up what it does and ends with
  // kExitFailed, for its supervisor. Null: nothing is like that.
  std::function<std::string()> broken;
  std::function<void()> drain;  // begins to stop in good order; drained() is true when that is done
  std::function<bool()> drained;
  std::function<std::uint64_t()> progress;  // another number after every step of the stop; may be empty
  std::function<std::string()> not_saved;   // what was to be kept and is not; empty: nothing, as is no function
  std::function<void(const std::string& why)> abandon;  // gives up what could not be stopped in time; may be empty
};

// Takes SIGTERM and SIGINT on this thread only, starts the daemon, prints its ready line as soon as it serves (before,
// if that takes a moment, what it waits for), and serves until it is stopped. `start` runs after the process is set up,
// and must be what starts the first thread. Errors go to stderr with the program's name. Returns the exit code; does
// not return after a second signal that comes kSameStopSignalMs or more after the first.
int run_daemon(const std::string& program, const std::function<Result<Daemon>()>& start);

// Of --check-config: one line, and the exit code.
int report_check(const std::string& config_path, const Status& checked);

}  // namespace tributary
