// LaunchGate: device memory is neither allocated nor freed while a group of collectives is half launched.
//
// cudaMalloc, cudaFree, cudaHostAlloc and cudaFreeHost may wait for work on a device, and keep launches on the others
// waiting meanwhile. A collective that is already on one device waits for those launches: a deadlock. NCCL launches on
// a thread of its own, so only comm_settled() shows when a group is whole. Any number of groups may be half launched at
// a time; a caller that wants memory comes before the next ones.
//
// A wait for a group ends after kPatienceMs in any case: then it hangs for another reason, and its watcher ends it.
//
// Thread rule: any thread; a hold may be released on another thread than took it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <utility>

namespace tributary {

class LaunchGate {
 public:
  static constexpr std::uint64_t kPatienceMs = 10'000;

  class Hold {
   public:
    Hold() = default;  // of nothing
    Hold(Hold&& other) noexcept : gate_(std::exchange(other.gate_, nullptr)), count_(other.count_) {}
    Hold& operator=(Hold&& other) noexcept {
      if (this != &other) {
        let_go();
        gate_ = std::exchange(other.gate_, nullptr);
        count_ = other.count_;
      }
      return *this;
    }
    ~Hold() { let_go(); }
    void let_go() {
      if (LaunchGate* gate = std::exchange(gate_, nullptr)) gate->leave(count_);
    }

   private:
    friend class LaunchGate;
    Hold(LaunchGate& gate, std::uint32_t LaunchGate::*count) : gate_(&gate), count_(count) {}
    LaunchGate* gate_ = nullptr;
    std::uint32_t LaunchGate::*count_ = nullptr;
  };

  // Held from before the group's start until it is settled or aborted.
  [[nodiscard]] Hold launch() {
    return enter(&LaunchGate::launches_, [this] { return memory_ + waiting_ == 0; });
  }
  // Held while memory is allocated or freed.
  [[nodiscard]] Hold memory() {
    {
      const std::lock_guard lock(mutex_);
      ++waiting_;
    }
    Hold hold = enter(&LaunchGate::memory_, [this] { return launches_ == 0; });
    leave(&LaunchGate::waiting_);
    return hold;
  }

 private:
  template <class Free>
  Hold enter(std::uint32_t LaunchGate::*count, Free free) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::milliseconds(kPatienceMs), free);
    ++(this->*count);
    return Hold(*this, count);
  }
  void leave(std::uint32_t LaunchGate::*count) {
    {
      const std::lock_guard lock(mutex_);
      --(this->*count);
    }
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint32_t launches_ = 0, memory_ = 0, waiting_ = 0;  // waiting_: for memory
};

}  // namespace tributary
