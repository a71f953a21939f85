// DeviceBlocks: the memory of one job on this node's devices, and pinned beside them, until the job is over. Nothing is
// taken or given back while a group of collectives is half launched (worker/device/launch_gate.h).
//
// Thread rule: one thread at a time.
#pragma once

#include <utility>
#include <vector>

#include "worker/device/device_api.h"

namespace tributary {

class DeviceBlocks {
 public:
  explicit DeviceBlocks(DeviceApi& api) : api_(api) {}  // which outlives it
  // REQUIRES: no work that uses them is under way.
  ~DeviceBlocks() {
    if (blocks_.empty() && pinned_.empty()) return;
    const LaunchGate::Hold hold = api_.launches().memory();
    for (const auto& [device, block] : blocks_) api_.free(device, block);
    for (void* block : pinned_) api_.free_pinned(block);
  }
  DeviceBlocks(const DeviceBlocks&) = delete;
  DeviceBlocks& operator=(const DeviceBlocks&) = delete;
  // Frees nothing: a device hangs, and work on it may still touch the memory.
  void abandon() { blocks_.clear(), pinned_.clear(); }

  // Errors as DeviceApi::allocate() and allocate_pinned() have them.
  Result<void*> take(DeviceIndex device, std::size_t bytes, const char* purpose) {
    const LaunchGate::Hold hold = api_.launches().memory();
    Result<void*> block = api_.allocate(device, bytes, purpose);
    if (block) blocks_.emplace_back(device, *block);
    return block;
  }
  Result<void*> take_pinned(DeviceIndex near, std::size_t bytes, const char* purpose) {
    const LaunchGate::Hold hold = api_.launches().memory();
    Result<void*> block = api_.allocate_pinned(near, bytes, purpose);
    if (block) pinned_.push_back(*block);
    return block;
  }

 private:
  DeviceApi& api_;
  std::vector<std::pair<DeviceIndex, void*>> blocks_;
  std::vector<void*> pinned_;
};

}  // namespace tributary
