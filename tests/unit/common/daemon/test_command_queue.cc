#include <doctest/doctest.h>
#include <poll.h>

#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include "common/daemon/command_queue.h"

namespace tributary::command_queue_test {

namespace {

template <class Command>
bool readable(const CommandQueue<Command>& queue) {
  pollfd item{queue.fd(), POLLIN, 0};
  return ::poll(&item, 1, 0) == 1;
}

}  // namespace

TEST_CASE("commands are taken in order, and the eventfd is readable until they are") {
  CommandQueue<int> queue(std::move(*EventFd::create()), 3);
  std::vector<int> taken{7};
  CHECK(queue.empty());
  CHECK_FALSE(readable(queue));
  queue.take(taken);
  CHECK(taken.empty());
  queue.push(1);
  queue.push(2);
  CHECK_FALSE(queue.empty());
  CHECK(readable(queue));
  queue.take(taken);
  CHECK(taken == std::vector<int>{1, 2});
  CHECK(queue.empty());
  CHECK_FALSE(readable(queue));
}

TEST_CASE("a full queue refuses") {
  CommandQueue<int> queue(std::move(*EventFd::create()), 2);
  CHECK(queue.try_push(1));
  CHECK(queue.try_push(2));
  CHECK_FALSE(queue.try_push(3));
  std::vector<int> taken;
  queue.take(taken);
  CHECK(taken == std::vector<int>{1, 2});
  CHECK(queue.try_push(3));
}

TEST_CASE("the thread can be roused without a command") {
  CommandQueue<int> queue(std::move(*EventFd::create()), 1);
  queue.rouse();
  queue.rouse();
  CHECK(readable(queue));
  std::vector<int> taken;
  queue.take(taken);
  CHECK(taken.empty());
  CHECK_FALSE(readable(queue));
}

TEST_CASE("commands that are functions are called with what the taker gives") {
  CommandQueue<std::function<void(std::vector<int>&, int)>> queue(std::move(*EventFd::create()));
  for (int i = 0; i < 3; ++i) {
    queue.push([i](std::vector<int>& seen, int base) { seen.push_back(base + i); });
  }
  std::vector<int> seen;
  queue.run(seen, 10);
  queue.run(seen, 20);
  CHECK(seen == std::vector<int>{10, 11, 12});
}

TEST_CASE("who pushes into a full queue waits for room; nothing is lost and each thread's order is kept") {
  constexpr int kThreads = 4, kEach = 5'000;
  CommandQueue<std::pair<int, int>> queue(std::move(*EventFd::create()), 8);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&queue, thread] {
      for (int i = 0; i < kEach; ++i) queue.push({thread, i});
    });
  }
  std::vector<int> next(kThreads);
  std::vector<std::pair<int, int>> taken;
  for (int count = 0; count < kThreads * kEach;) {
    pollfd item{queue.fd(), POLLIN, 0};
    REQUIRE(::poll(&item, 1, 10'000) == 1);  // a wake-up that is lost would be seen here
    queue.take(taken);
    CHECK(taken.size() <= queue.bound());
    for (const auto& [thread, i] : taken) {
      CHECK(next[static_cast<std::size_t>(thread)]++ == i);
      ++count;
    }
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_FALSE(readable(queue));
}

}  // namespace tributary::command_queue_test
