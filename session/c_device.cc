#include "session/c_device.h"

#include <chrono>
#include <utility>

#include "common/base/assert.h"

namespace tributary::c {
namespace {

// Interval at which a waiting thread checks the device: a call that failed work has swallowed wakes no thread.
constexpr std::chrono::milliseconds kDeviceInterval{50};

// The code for any error of the device: another attach does not help.
Error device_error(const Error& error) {
  return {ErrorCode::kDevice, error.message};
}

}  // namespace

SessionDevice::SessionDevice(std::shared_ptr<TrainerDevice> device, std::size_t tensors) : device_(std::move(device)) {
  state_->tensors.resize(tensors);
}

SessionDevice::~SessionDevice() {
  (void)all_said();  // of a device that has failed nothing is called any more
  for (const auto& memory : pinned_) device_->unpin(memory);
}

Status SessionDevice::pin(const std::vector<std::span<std::byte>>& memory) {
  for (const auto& one : memory) {
    if (Status pinned = device_->pin(one); !pinned) return pinned;
    pinned_.push_back(one);
  }
  return {};
}

Status SessionDevice::ready_after(void* stream, std::size_t tensor, std::function<void()> ready) {
  State::Tensor& next = state_->tensors[tensor];
  auto call = std::make_unique<Call>(Call{state_, tensor, std::move(ready)});
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->failed) return tl::unexpected(*state_->failed);
    TRIB_ASSERT(!next.under_way);
    next = {stream, true};
  }
  const Status put = device_->call_after(stream, &SessionDevice::call, call.get());
  if (put) {
    (void)call.release();  // the driver's
    return {};
  }
  const std::lock_guard lock(state_->mutex);
  next.under_way = false;
  return tl::unexpected(device_error(put.error()));
}

void SessionDevice::call(void* given) {
  const std::unique_ptr<Call> that(static_cast<Call*>(given));
  State& state = *that->state;
  // Under the lock: a caller that has the error of a failure may have ended the session.
  const std::lock_guard lock(state.mutex);
  if (state.failed) return;
  that->ready();
  state.tensors[that->tensor].under_way = false;
  state.called.notify_all();
}

Status SessionDevice::said(std::size_t tensor) {
  std::unique_lock lock(state_->mutex);
  const State::Tensor& awaited = state_->tensors[tensor];
  const auto over = [&] { return state_->failed || !awaited.under_way; };
  while (!state_->called.wait_for(lock, kDeviceInterval, over)) {
    void* stream = awaited.stream;
    lock.unlock();
    const Result<bool> idle = device_->idle(stream);
    lock.lock();
    if (over()) break;
    if (!idle) {
      state_->failed = device_error(idle.error());
    } else if (*idle) {
      state_->failed = Error{ErrorCode::kDevice, device_->uuid() +
                                                     ": a stream that a gradient was to be ready after has ended "
                                                     "without it; keep streams until tributary_wait() has returned"};
    }
  }
  return state_->failed ? tl::unexpected(*state_->failed) : Status();
}

Status SessionDevice::all_said() {
  for (std::size_t tensor = 0; tensor < state_->tensors.size(); ++tensor) {
    if (Status one = said(tensor); !one) return one;
  }
  return {};
}

}  // namespace tributary::c
