// What the threads that step device engines (device_engine.h, allreduce_engine.h) have in common: the loop, and the
// end.
#pragma once

#include <poll.h>
#include <time.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

#include "common/clock.h"
#include "common/log.h"

namespace tributary {

// For work under way when a job is over, before and after an abort.
inline constexpr std::uint64_t kDevicesQuietMs = 5'000;

inline constexpr std::uint64_t kForEver = ~0ull;

inline void sleep_on(int fd, std::uint64_t ns) {
  pollfd item{fd, POLLIN, 0};
  const timespec time{static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
  ::ppoll(&item, 1, ns == kForEver ? nullptr : &time, nullptr);
}

// Until its wake() is written or the engine wants to be stepped again: not at all, if that is now.
template <class Engine>
void sleep_until_next(const Engine& engine, int wake_fd, std::uint64_t stepped_ns) {
  const std::uint64_t next = engine.next_step_ns(stepped_ns);
  if (next > stepped_ns) sleep_on(wake_fd, next == Engine::kIdle ? kForEver : next - stepped_ns);
}

// When nothing is to come any more: waits until the devices are done, aborts what is not done by then, and leaves its
// memory and streams alone if that does not help. nap: called between two looks.
template <class Engine, class Nap>
void end_device_work(Engine& engine, const Logger& logger, Nap nap) {
  const auto quiet = [&] {
    const std::uint64_t deadline = steady_ms() + kDevicesQuietMs;
    while (!engine.quiet()) {
      if (steady_ms() > deadline) return false;
      nap();
    }
    return true;
  };
  if (quiet()) return;
  engine.abort_collectives();
  if (quiet()) return;
  logger->error("devices still work on a job that is over after {} ms: their memory is not freed; restart the worker",
                2 * kDevicesQuietMs);
  engine.abandon();
}

inline void nap_for_devices() {
  std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

}  // namespace tributary
