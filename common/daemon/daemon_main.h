// The life of a daemon between its start and its exit code: one ready line, a clean stop with a deadline on the first
// signal, and an immediate one on a later second signal.
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
  // After drain(), without progress: then it is abandoned. An abandoned daemon ends after as long, even if a destructor
  // hangs.
  std::uint32_t stop_timeout_s = 0;
  std::string jobs;                         // its work to be stopped, as the subject of a message: "jobs"
  std::function<std::string()> ready_line;  // for the parent process
  // A condition of serving, in words, and whether it holds. An error: with this configuration it never will; the
  // process ends with the error. Null: it serves from its start.
  std::string waits_for;
  std::function<Result<bool>()> serving;
  // The reason why the process must be restarted; empty: it can continue. With a reason it abandons its work and ends
  // with kExitFailed, for its supervisor. Null: there never is one.
  std::function<std::string()> broken;
  std::function<void()> drain;  // begins a clean stop; drained() is true when that is done
  std::function<bool()> drained;
  std::function<std::uint64_t()> progress;  // another number after every step of the stop; may be empty
  std::function<std::string()> not_saved;   // names state that could not be saved; empty, or no function: none
  std::function<void(const std::string& why)> abandon;  // gives up jobs that could not be stopped in time; may be empty
};

// Takes SIGTERM and SIGINT on this thread only, starts the daemon, prints its ready line as soon as it serves (before
// that, if it takes a moment, the condition it waits for), and serves until it is stopped. `start` runs after the
// process is set up, and must start the first thread. Errors go to stderr with the program's name. Returns the exit
// code; does not return after a second signal that comes kSameStopSignalMs or more after the first.
int run_daemon(const std::string& program, const std::function<Result<Daemon>()>& start);

// Prints the line of --check-config, and returns the exit code.
int report_check(const std::string& config_path, const Status& checked);

}  // namespace tributary
