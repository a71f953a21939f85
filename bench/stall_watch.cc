#include "bench/stall_watch.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <system_error>

namespace tributary::bench {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kNap{1};

std::vector<int> cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> found;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return found;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) found.push_back(core);
  }
  return found;
}

void watch(const std::stop_token& stop, std::vector<Stall>& late) {
  Clock::time_point before = Clock::now();
  while (!stop.stop_requested()) {
    std::this_thread::sleep_for(kNap);
    const Clock::time_point now = Clock::now();
    if (now - before >= kNap + StallWatch::kShortest) late.push_back({before + kNap, now});
    before = now;
  }
}

bool make_urgent(std::jthread& thread, int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  const sched_param urgent{sched_get_priority_min(SCHED_FIFO)};
  const pthread_t handle = thread.native_handle();
  return pthread_setaffinity_np(handle, sizeof(set), &set) == 0 &&
         pthread_setschedparam(handle, SCHED_FIFO, &urgent) == 0;
}

}  // namespace

StallWatch::StallWatch() {
  const std::vector<int> all = cores();
  late_.resize(all.size());
  watches_ = !all.empty();
  try {
    for (std::size_t i = 0; i < all.size(); ++i) {
      threads_.emplace_back([this, i](const std::stop_token& stop) { watch(stop, late_[i]); });
      watches_ = watches_ && make_urgent(threads_.back(), all[i]);
    }
  } catch (const std::system_error&) {
    watches_ = false;
  }
}

std::vector<Stall> StallWatch::finish() {
  threads_.clear();
  if (!watches_) return {};
  std::vector<Stall> stalls = late_.front();
  for (std::size_t i = 1; i < late_.size(); ++i) stalls = in_both(stalls, late_[i]);
  std::erase_if(stalls, [](const Stall& stall) { return stall.end - stall.begin < kShortest; });
  return stalls;
}

std::vector<Stall> in_both(const std::vector<Stall>& a, const std::vector<Stall>& b) {
  std::vector<Stall> both;
  for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const Stall overlap{std::max(a[i].begin, b[j].begin), std::min(a[i].end, b[j].end)};
    if (overlap.begin < overlap.end) both.push_back(overlap);
    if (a[i].end < b[j].end) {
      ++i;
    } else {
      ++j;
    }
  }
  return both;
}

double milliseconds_without(const std::vector<Stall>& stalls, Clock::time_point begin, Clock::time_point end) {
  Clock::duration rest = end - begin;
  auto at = std::ranges::lower_bound(stalls, begin, {}, &Stall::end);
  for (; at != stalls.end() && at->begin < end; ++at) rest -= std::min(at->end, end) - std::max(at->begin, begin);
  return std::chrono::duration<double, std::milli>(rest).count();
}

}  // namespace tributary::bench
