// Process: a child process that cannot outlive its owner.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/result.h"

namespace tributary {

struct ProcessOptions {
  std::vector<std::string> argv;  // argv[0]: path of the program
  std::string log_file;           // standard output and error are appended to it; empty: those of the caller
  std::string output_file;        // standard output alone is appended to this instead; empty: to the log file
  std::vector<std::pair<std::string, std::string>> environment;  // added to the caller's, or replacing it by name
  // A descriptor of the caller's that the child keeps open; -1: none. All others but the standard ones are closed.
  int inherit_fd = -1;
  // Path of a network namespace ("/run/netns/NAME") that the child enters before the program starts; empty: the
  // caller's. Only the network: the child sees the caller's files, so /sys still shows the caller's interfaces.
  std::string network_namespace;
};

struct ExitStatus {
  int code = 0;    // if signal is 0
  int signal = 0;  // that ended it
  bool ok() const { return code == 0 && signal == 0; }
  std::string describe() const;  // "exited with status 1", "was killed by signal 9 (Killed)"
};

struct ProcessUsage {
  double cpu_seconds = 0.0;               // user + system, of all its threads
  std::uint64_t resident_peak_bytes = 0;  // highest resident set so far (VmHWM)
};

// Returns the usage of a live process from /proc; zeros if it is gone.
ProcessUsage usage_of(pid_t pid);

class Process {
 public:
  // Starts a program in a process group of its own (a terminal's Ctrl-C reaches only the caller, which stops its
  // children in order). The kernel sends it SIGTERM when the calling THREAD ends, so spawn from a thread that lives as
  // long as the child should. kIo: the program cannot be started, or the log file or the namespace cannot be opened
  // (all named).
  static Result<Process> spawn(const ProcessOptions& options);
  Process() = default;
  Process(Process&& other) noexcept { swap(other); }
  Process& operator=(Process&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Process();  // terminate() with kDestructorGrace
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  static constexpr std::chrono::milliseconds kDestructorGrace{2000};

  explicit operator bool() const { return pid_ > 0; }
  pid_t pid() const { return pid_; }
  bool running() { return pid_ > 0 && !poll(); }
  // Returns the process' status if it has ended.
  std::optional<ExitStatus> poll();
  // Returns the process' status if it ends within `timeout`.
  std::optional<ExitStatus> wait(std::chrono::milliseconds timeout);
  // Signals the process and its whole process group, so that a script does not outlive its shell.
  void send_signal(int signal);
  // Kills the rest of its process group. REQUIRES: the process has just ended.
  void end_rest() const;
  // Sends SIGTERM, then SIGKILL if the process is still there after `grace`; without grace SIGKILL at once, so that it
  // cannot begin a clean shutdown. Returns how it ended.
  ExitStatus terminate(std::chrono::milliseconds grace);
  // So far; after its end, in total (the peak then includes that of the caller at the fork: ask before).
  ProcessUsage usage();

 private:
  void swap(Process& other) noexcept {
    std::swap(pid_, other.pid_);
    std::swap(status_, other.status_);
    std::swap(final_usage_, other.final_usage_);
  }

  pid_t pid_ = -1;
  std::optional<ExitStatus> status_;
  ProcessUsage final_usage_;
};

// Folder of the running program: where its siblings (tributary-server, ...) are.
std::string executable_dir();
std::uint64_t file_bytes(const std::string& file);  // 0: there is none
// The last `lines` lines of a file, from byte `from` on, each indented by two spaces; "  (nothing)" if there is none.
std::string last_lines(const std::string& file, std::size_t lines, std::uint64_t from = 0);

}  // namespace tributary
