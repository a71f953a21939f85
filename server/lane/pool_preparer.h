// PoolPreparer: a thread that gets memory for a snapshot's copy-on-write before the first step needs it. Otherwise the
// first round after the capture takes as long as the kernel needs to zero and map as much memory as the state has.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <system_error>
#include <thread>
#include <utility>

#include "common/daemon/background_thread.h"
#include "common/daemon/daemon_thread.h"
#include "server/lane/lane_jobs.h"

namespace tributary {

// Thread rule: the pool's owning thread. The pool must outlive this object, or its preparation must have ended: end().
class PoolPreparer final : public PoolPreparing {
 public:
  void begin(BufferPool& pool, std::size_t blocks, std::function<void()> done) override {
    end();
    const std::size_t missing = pool.expect(blocks);
    if (missing == 0) return done();
    auto work = std::make_unique<Work>();
    try {
      work->thread = start_thread("preparer", ThreadLog(), [&pool, missing, done, &stopping = work->stopping] {
        become_background("preparer");  // if not, it is done sooner
        for (std::size_t i = 0; i < missing && pool.prepare_one(); ++i) {
          if (stopping.load(std::memory_order_relaxed)) return;
        }
        done();
      });
      work_ = std::move(work);
    } catch (const std::system_error&) {
      done();  // no thread to be had: the steps pay for their memory themselves
    }
  }
  // Waits for one block at most.
  void end() override { work_.reset(); }

 private:
  struct Work {
    std::atomic<bool> stopping{false};
    std::thread thread;
    ~Work() {
      stopping.store(true, std::memory_order_relaxed);
      if (thread.joinable()) thread.join();
    }
  };
  std::unique_ptr<Work> work_;
};

}  // namespace tributary
