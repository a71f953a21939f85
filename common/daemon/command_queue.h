// CommandQueue: other threads' commands to one thread, in order, and the eventfd that wakes it. Bounded: a push into a
// full queue waits for room, or is refused.
//
// The eventfd is readable if and only if a command was pushed, or the thread roused, since its last take(). So a thread
// that polls it misses no command, and a look at an empty queue costs a load.
//
// Thread rule: take() and run() on one thread, which push() must not wait for there; everything else on any.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <utility>
#include <vector>

#include "common/system/event_fd.h"

namespace tributary {

template <class Command>
class CommandQueue {
 public:
  static constexpr std::size_t kMaxCommands = 1u << 16;

  explicit CommandQueue(EventFd wake, std::size_t bound = kMaxCommands) : wake_(std::move(wake)), bound_(bound) {}
  CommandQueue(const CommandQueue&) = delete;
  CommandQueue& operator=(const CommandQueue&) = delete;

  void push(Command command) {
    std::unique_lock lock(mutex_);
    room_.wait(lock, [this] { return commands_.size() < bound_; });
    commands_.push_back(std::move(command));
    wake_up();
  }
  // Returns false if the queue is full.
  [[nodiscard]] bool try_push(Command command) {
    const std::lock_guard lock(mutex_);
    if (commands_.size() >= bound_) return false;
    commands_.push_back(std::move(command));
    wake_up();
    return true;
  }
  // Wakes the thread without a command.
  void rouse() {
    const std::lock_guard lock(mutex_);
    wake_up();
  }
  // Takes all commands. `out` is emptied first; the next commands reuse its memory, so that none need be allocated.
  void take(std::vector<Command>& out) {
    out.clear();
    if (empty()) return;
    {
      const std::lock_guard lock(mutex_);
      wake_.drain();
      some_.store(false, std::memory_order_release);
      commands_.swap(out);
    }
    room_.notify_all();
  }
  // Takes commands that are functions, and calls them.
  template <class... Arguments>
  void run(Arguments&&... arguments) {
    std::vector<Command> commands;
    take(commands);
    for (const Command& command : commands) command(arguments...);
  }
  // Returns whether nothing is queued. If so, the caller sees the thread's writes before its last take().
  bool empty() const { return !some_.load(std::memory_order_acquire); }
  int fd() const { return wake_.fd(); }
  std::size_t bound() const { return bound_; }

 private:
  // REQUIRES: mutex_ held.
  void wake_up() {
    if (!some_.exchange(true, std::memory_order_release)) wake_.notify();
  }

  const EventFd wake_;
  const std::size_t bound_;
  std::mutex mutex_;  // guards commands_
  std::condition_variable room_;
  std::vector<Command> commands_;
  std::atomic<bool> some_{false};
};

}  // namespace tributary
