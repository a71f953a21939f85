#include "session/c_device.h"

#include <chrono>
#include <utility>

#include "common/base/assert.h"

namespace tributary::c {
namespace {

// How often who waits looks whether the device still works: a call that failed work has swallowed wakes nobody.
constexpr std::chrono::milliseconds kDeviceInterval{50};

// Whatever the device said: another attach does not help.
Status device_failed(const Error& error) {
  return fail(ErrorCode::kDevice, error.message);
}

}  // namespace

SessionDevice::SessionDevice(std::shared_ptr<TrainerDevice> device, std::size_t tensors)
    : device_(std::move(device)), calls_(tensors) {
  for (Call& call : calls_) call.owner = this;
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
  Call& next = calls_[tensor];
  {
    const std::lock_guard lock(mutex_);
    TRIB_ASSERT(!next.under_way);
    next.stream = stream;
    next.ready = std::move(ready);
    next.under_way = true;
  }
  const Status put = device_->call_after(stream, &SessionDevice::call, &next);
  if (put) return {};
  const std::lock_guard lock(mutex_);
  next.under_way = false;
  return device_failed(put.error());
}

void SessionDevice::call(void* given) {
  Call& that = *static_cast<Call*>(given);
  SessionDevice& owner = *that.owner;
  that.ready();
  // Told under the lock: who waits may destroy this object as soon as it is released.
  const std::lock_guard lock(owner.mutex_);
  that.under_way = false;
  owner.called_.notify_all();
}

Status SessionDevice::said(std::size_t tensor) {
  std::unique_lock lock(mutex_);
  Call& awaited = calls_[tensor];
  const auto over = [&] { return !awaited.under_way; };
  while (!called_.wait_for(lock, kDeviceInterval, over)) {
    lock.unlock();
    const Result<bool> idle = device_->idle(awaited.stream);
    lock.lock();
    if (over()) break;
    if (idle && !*idle) continue;
    if (!idle) {
      for (Call& call : calls_) call.under_way = false;  // no other will be made, either
      return device_failed(idle.error());
    }
    awaited.under_way = false;
    return fail(ErrorCode::kDevice, device_->uuid() +
                                        ": a stream that a gradient was to be ready after has ended "
                                        "without it; keep streams until tributary_wait() has returned");
  }
  return {};
}

Status SessionDevice::all_said() {
  Status first;
  for (std::size_t tensor = 0; tensor < calls_.size(); ++tensor) {
    Status one = said(tensor);
    if (first && !one) first = std::move(one);
  }
  return first;
}

}  // namespace tributary::c
