#include "worker/device/device_thread.h"

#include <poll.h>
#include <time.h>

#include <chrono>
#include <utility>

#include "common/base/clock.h"
#include "common/daemon/daemon_thread.h"

namespace tributary {
namespace {

constexpr std::uint64_t kForEver = ~0ull;

void sleep_a_moment() {
  std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

}  // namespace

DeviceThread::DeviceThread(StreamPipeline& pipeline, Logger logger, std::function<void()> nap)
    : pipeline_(pipeline),
      logger_(std::move(logger)),
      nap_(nap ? std::move(nap) : std::function<void()>(sleep_a_moment)) {}

void DeviceThread::sleep_on(int fd, std::uint64_t ns) {
  pollfd item{fd, POLLIN, 0};
  const timespec time{static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
  ::ppoll(&item, 1, ns == kForEver ? nullptr : &time, nullptr);
}

void DeviceThread::run(const More& more) {
  while (!given_up()) {
    const std::uint64_t now = steady_ns();
    pipeline_.step(now);
    if (!more(now)) return;
    const std::uint64_t next = pipeline_.next_step_ns(now);
    // Asked again: the step may have taken the bell that give_up() rang.
    if (next > now && !given_up())
      sleep_on(pipeline_.inbox().fd(), next == StreamPipeline::kIdle ? kForEver : next - now);
  }
}

void DeviceThread::start(const char* name, More more) {
  thread_ = start_thread(name, logger_, [this, more = std::move(more)] { run(more); });
}

void DeviceThread::give_up() {
  giving_up_.store(true, std::memory_order_release);
  pipeline_.inbox().rouse();
}

void DeviceThread::join() {
  give_up();
  if (thread_.joinable()) thread_.join();
}

bool DeviceThread::becomes_quiet() {
  const std::uint64_t deadline = steady_ms() + kQuietMs;
  while (!pipeline_.quiet()) {
    if (steady_ms() > deadline) return false;
    nap_();
  }
  return true;
}

void DeviceThread::end() {
  if (std::exchange(ended_, true)) return;
  join();
  if (becomes_quiet()) return;
  pipeline_.abort_collectives();
  if (becomes_quiet()) return;
  logger_->error("devices still work on a job that is over after {} ms: their memory is not freed; restart the worker",
                 2 * kQuietMs);
  pipeline_.abandon();
}

}  // namespace tributary
