// SIGINT, SIGTERM and SIGHUP as a file descriptor, for commands that start processes which they must stop cleanly.
#pragma once

#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

namespace tributary::cli {

// The signals are blocked from construction on. REQUIRES: no thread has been started.
class StopSignals {
 public:
  StopSignals() {
    sigemptyset(&set_);
    for (const int s : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&set_, s);
    ::pthread_sigmask(SIG_BLOCK, &set_, nullptr);
    fd_ = ::signalfd(-1, &set_, SFD_CLOEXEC | SFD_NONBLOCK);
  }
  ~StopSignals() {
    ::close(fd_);
    release();
  }
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;
  int fd() const { return fd_; }
  // Returns whether a signal came since the last call.
  bool taken() const {
    signalfd_siginfo info;
    return ::read(fd_, &info, sizeof info) == sizeof info;
  }
  // The same; and if so, the next one ends this process at once.
  bool taken_first() {
    if (!taken()) return false;
    release();
    return true;
  }
  // From now on they end this process as usual (and the kernel then ends the children).
  void release() { ::pthread_sigmask(SIG_UNBLOCK, &set_, nullptr); }

 private:
  sigset_t set_;
  int fd_ = -1;
};

}  // namespace tributary::cli
