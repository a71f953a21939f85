// SessionDevice: the C interface's part for a trainer on a GPU. It pins the session's host memory, so that copies
// overlap with all else, and declares a gradient ready when the stream that produces it gets there.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "session/trainer_device.h"

namespace tributary::c {

class SessionDevice {
 public:
  SessionDevice(std::shared_ptr<TrainerDevice> device, std::size_t tensors);
  // Waits for the calls that ready_after() put on streams. REQUIRES: no copy is under way.
  ~SessionDevice();
  SessionDevice(const SessionDevice&) = delete;
  SessionDevice& operator=(const SessionDevice&) = delete;

  // Pins whole pages for as long as this object lives. An error leaves memory as it is, so that copies are slower.
  Status pin(const std::vector<std::span<std::byte>>& memory);

  // Calls `ready` on a thread of the driver when the work now on `stream` is done. One call for a tensor at a time.
  // Different tensors may be called from different threads. kDevice: the device, or the stream, does not take it.
  Status ready_after(void* stream, std::size_t tensor, std::function<void()> ready);
  // Blocks until `ready` has been called for the tensor, or for all. kDevice: the device has failed, or a stream has
  // ended without the call. After that no `ready` is called, and later calls return the same error.
  Status said(std::size_t tensor);
  Status all_said();

 private:
  // Outlives this object where the driver still holds a call of it, which it may never make.
  struct State {
    std::mutex mutex;
    std::condition_variable called;
    struct Tensor {
      void* stream = nullptr;
      bool under_way = false;
    };
    std::vector<Tensor> tensors;
    std::optional<Error> failed;
  };
  struct Call {
    std::shared_ptr<State> state;
    std::size_t tensor;
    std::function<void()> ready;
  };
  static void call(void* given);

  const std::shared_ptr<TrainerDevice> device_;
  std::vector<std::span<std::byte>> pinned_;
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace tributary::c
