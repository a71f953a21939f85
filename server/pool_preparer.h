// PoolPreparer: a thread that gets memory for a snapshot's copy-on-write before the first step needs it. Otherwise the
// first round after the capture takes as long as the kernel needs to zero and map as much memory as the state has.
#pragma once

#include <cstddef>
#include <system_error>
#include <thread>

#include "common/buffer_pool.h"
#include "server/background_thread.h"

namespace tributary {

// Thread rule: the pool's owning thread. The pool must stay until end(), or the destruction of this object.
class PoolPreparer {
 public:
  // For `blocks` blocks beyond those in use. What was begun before is given up.
  void begin(BufferPool& pool, std::size_t blocks) {
    thread_ = {};
    pool_ = &pool;
    const std::size_t missing = pool.expect(blocks);
    if (missing == 0) return;
    try {
      thread_ = std::jthread([&pool, missing](const std::stop_token& stop) {
        become_background("preparer", kPreparerNiceness);  // if not, it is done sooner
        for (std::size_t i = 0; i < missing && !stop.stop_requested() && pool.prepare_one(); ++i) {
        }
      });
    } catch (const std::system_error&) {
      // No thread to be had: the steps pay for their memory themselves.
    }
  }
  // The pool may go. Waits for one block at most.
  void end(const BufferPool& pool) {
    if (pool_ != &pool) return;
    thread_ = {};
    pool_ = nullptr;
  }

 private:
  const BufferPool* pool_ = nullptr;
  std::jthread thread_;
};

}  // namespace tributary
