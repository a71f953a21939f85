#include "tests/emulation/cuda_emulation.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tests/emulation/fiber_context.h"

tributary::emulation::Index threadIdx, blockIdx, blockDim, gridDim;

namespace tributary::emulation {
namespace {

constexpr unsigned kWarp = 32, kMaxThreads = 1024;

class Machine;

// A thread of a block, or the lanes of a warp and a whole block as those who wait for each other: they wait while
// `generation` is what it was.
struct Meeting {
  unsigned arrived = 0;
  unsigned generation = 0;
  int votes = 0, decided = 0;
  Exchange kind = Exchange::kShuffle;
  std::array<std::array<std::uint64_t, kWarp>, 2> values;  // in turns: a lane may be one exchange ahead of another
};

struct Fiber {
  FiberContext context;
  Meeting* waits_at = nullptr;
  unsigned generation = 0;
  bool done = true;

  explicit Fiber(Machine& machine);
};

struct SharedArray {
  std::unique_ptr<std::byte, decltype(&std::free)> memory;
  std::size_t bytes;
};

// All that there is while a grid runs. Fibers are kept for the next block: each runs the kernel in an endless loop.
class Machine {
 public:
  void use(const Schedule& next) {
    schedule_ = next;
    random_.seed(next.seed);
  }

  void run_grid(unsigned blocks, unsigned threads, const std::function<void()>& kernel) {
    if (threads == 0 || threads % kWarp != 0 || threads > kMaxThreads) {
      throw std::logic_error("emulated launch with " + std::to_string(threads) + " threads a block");
    }
    blocks = std::min(blocks, schedule_.max_blocks);
    if (blocks == 0) throw std::logic_error("emulated launch of no block");
    if (running_ != nullptr) throw std::logic_error("emulated launch from within a kernel");
    kernel_ = &kernel;
    while (fibers_.size() < threads) fibers_.push_back(std::make_unique<Fiber>(*this));
    blockDim = {threads, 1, 1};
    gridDim = {blocks, 1, 1};
    std::vector<unsigned> order(blocks);
    std::iota(order.begin(), order.end(), 0u);
    arrange(order);
    for (unsigned block : order) {
      blockIdx = {block, 0, 0};
      run_block(threads);
      if (error_.empty()) continue;
      fibers_.clear();  // they stand in the middle of the kernel
      throw std::logic_error("emulated kernel, block " + std::to_string(block) + ": " + std::exchange(error_, {}));
    }
  }

  void* shared_memory(const void* site, std::size_t bytes, std::size_t alignment) {
    auto found = shared_.find(site);
    if (found == shared_.end()) {
      const std::size_t align = std::max<std::size_t>(alignment, sizeof(void*));
      void* memory = std::aligned_alloc(align, (bytes + align - 1) / align * align);
      std::memset(memory, 0xa5, bytes);
      found = shared_.emplace(site, SharedArray{{static_cast<std::byte*>(memory), &std::free}, bytes}).first;
    }
    return found->second.memory.get();
  }

  int barrier(bool vote) {
    block_.votes += vote ? 1 : 0;
    if (++block_.arrived == blockDim.x) {
      block_.decided = std::exchange(block_.votes, 0);
      open(block_);
    } else {
      wait_at(block_);
    }
    return block_.decided;
  }

  const std::array<std::uint64_t, kWarp>& exchange(Exchange kind, unsigned mask, std::uint64_t value) {
    Meeting& warp = warps_[threadIdx.x / kWarp];
    if (mask != 0xffffffffu) give_up("an exchange whose mask leaves lanes out");
    if (warp.arrived > 0 && warp.kind != kind) give_up("lanes of its warp are at different exchanges");
    warp.kind = kind;
    auto& values = warp.values[warp.generation % 2];
    values[threadIdx.x % kWarp] = value;
    if (++warp.arrived == kWarp) {
      open(warp);
    } else {
      wait_at(warp);
    }
    return values;
  }

 private:
  friend struct Fiber;

  void run_fiber() {
    for (;;) {
      (*kernel_)();
      running_->done = true;
      leave();
    }
  }

  void run_block(unsigned threads) {
    shared_.clear();
    block_ = {};
    warps_.assign(threads / kWarp, {});
    for (unsigned t = 0; t < threads; ++t) {
      fibers_[t]->done = false;
      fibers_[t]->waits_at = nullptr;
    }
    // The groups that take turns, each until none of its threads can continue.
    const unsigned group_size = schedule_.turns == Turns::kThreads ? threads : kWarp;
    std::vector<unsigned> groups(threads / group_size);
    std::iota(groups.begin(), groups.end(), 0u);
    std::vector<unsigned> order(group_size);
    left_ = threads;
    while (left_ > 0) {
      bool progress = false;
      arrange(groups);
      for (unsigned group : groups) {
        std::iota(order.begin(), order.end(), group * group_size);
        while (run_some(order)) progress = true;
        if (!error_.empty()) return;
      }
      if (progress) continue;
      error_ = std::to_string(left_) + " of " + std::to_string(threads) +
               " threads wait at a barrier or an exchange that the others do not come to";
      return;
    }
  }

  // One turn for each of these threads that can go on; whether there was one.
  bool run_some(std::vector<unsigned>& order) {
    bool progress = false;
    arrange(order);
    for (unsigned t : order) {
      Fiber& fiber = *fibers_[t];
      if (fiber.done || (fiber.waits_at != nullptr && fiber.waits_at->generation == fiber.generation)) continue;
      progress = true;
      running_ = &fiber;
      threadIdx = {t, 0, 0};
      scheduler_.switch_to(fiber.context);
      running_ = nullptr;
      if (!error_.empty()) return false;
      if (fiber.done) --left_;
    }
    return progress;
  }

  void arrange(std::vector<unsigned>& order) {
    if (schedule_.seed == 1) std::sort(order.begin(), order.end(), std::greater<>());
    if (schedule_.seed > 1) std::shuffle(order.begin(), order.end(), random_);
  }

  void leave() { running_->context.switch_to(scheduler_); }

  static void open(Meeting& meeting) {
    meeting.arrived = 0;
    ++meeting.generation;
  }

  void wait_at(Meeting& meeting) {
    running_->waits_at = &meeting;
    running_->generation = meeting.generation;
    leave();
    running_->waits_at = nullptr;
  }

  [[noreturn]] void give_up(const char* what) {
    error_ = "thread " + std::to_string(threadIdx.x) + ": " + what;
    leave();
    std::abort();  // never resumed
  }

  const std::function<void()>* kernel_ = nullptr;
  Schedule schedule_;
  std::mt19937 random_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  FiberContext scheduler_;
  Fiber* running_ = nullptr;
  unsigned left_ = 0;  // threads of the block that have not ended
  Meeting block_;
  std::vector<Meeting> warps_;
  std::map<const void*, SharedArray> shared_;
  std::string error_;
};

Fiber::Fiber(Machine& machine) : context([](void* at) { static_cast<Machine*>(at)->run_fiber(); }, &machine) {}

Launcher& launcher() {
  static Launcher instance;
  return instance;
}

// One, as there is one `threadIdx`: kernels find it without being told.
Machine& machine() {
  static Machine instance;
  return instance;
}

}  // namespace

void use(const Schedule& schedule) {
  machine().use(schedule);
}
void run_grid(unsigned blocks, unsigned threads, const std::function<void()>& kernel) {
  machine().run_grid(blocks, threads, kernel);
}
void launch(const void* stream, unsigned blocks, unsigned threads, const std::function<void()>& kernel) {
  if (!launcher()) return run_grid(blocks, threads, kernel);
  launcher()(stream, [=] { run_grid(blocks, threads, kernel); });
}
void use_launcher(Launcher given) {
  launcher() = std::move(given);
}
void* shared_memory(const void* site, std::size_t bytes, std::size_t alignment) {
  return machine().shared_memory(site, bytes, alignment);
}
int barrier(bool vote) {
  return machine().barrier(vote);
}
std::uint64_t exchange(Exchange kind, unsigned mask, std::uint64_t value, unsigned source) {
  return machine().exchange(kind, mask, value)[source];
}
std::uint32_t reduce(Exchange kind, unsigned mask, std::uint32_t value) {
  const auto& values = machine().exchange(kind, mask, value);
  std::uint32_t result = 0;
  for (std::uint64_t other : values) {
    const auto lane_value = static_cast<std::uint32_t>(other);
    result = kind == Exchange::kReduceAdd ? result + lane_value : std::max(result, lane_value);
  }
  return result;
}
unsigned lane() {
  return threadIdx.x % kWarp;
}

}  // namespace tributary::emulation
