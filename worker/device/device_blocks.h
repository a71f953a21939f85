// DeviceBlocks: one job's memory on this node's devices, and pinned host memory for them, until the job is over.
// Nothing is allocated or freed while a group of collectives is half launched (worker/device/launch_gate.h). Pinned
// memory is shared memory that other processes may read: servers on this machine read frames where a device wrote them.
//
// Thread rule: one thread at a time.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "common/system/shared_memory.h"
#include "worker/device/device_api.h"
#include "worker/device/numa_policy.h"

namespace tributary {

class DeviceBlocks {
 public:
  explicit DeviceBlocks(DeviceApi& api) : api_(api) {}  // which outlives it
  // REQUIRES: no work that uses them is under way.
  ~DeviceBlocks() {
    if (blocks_.empty() && pinned_.empty()) return;
    const LaunchGate::Hold hold = api_.launches().memory();
    for (const auto& [device, block] : blocks_) api_.free(device, block);
    for (const auto& memory : pinned_) api_.unpin({memory->data(), memory->size()});
  }
  DeviceBlocks(const DeviceBlocks&) = delete;
  DeviceBlocks& operator=(const DeviceBlocks&) = delete;
  // Frees nothing, because a device hangs and work on it may still touch the memory.
  void abandon() {
    blocks_.clear();
    for (auto& memory : pinned_) api_.keep(std::move(memory));
    pinned_.clear();
  }

  // Errors as DeviceApi::allocate() has them.
  Result<void*> take(DeviceIndex device, std::size_t bytes, const char* purpose) {
    const LaunchGate::Hold hold = api_.launches().memory();
    Result<void*> block = api_.allocate(device, bytes, purpose);
    if (block) blocks_.emplace_back(device, *block);
    return block;
  }
  // Zeroed. Errors as SharedMemory::create() and DeviceApi::pin() have them.
  Result<const SharedMemory*> take_pinned(DeviceIndex near, std::size_t bytes, const char* purpose) {
    const PreferNumaNode policy(api_.devices()[near.value].numa_node);
    // The pages are created here, which takes seconds for a large model; no group has to wait for that.
    auto memory = SharedMemory::create(bytes, purpose, SharedMemory::Peers::kRead);
    if (!memory) return tl::unexpected(memory.error());
    const LaunchGate::Hold hold = api_.launches().memory();
    if (Status pinned = api_.pin(near, {memory->data(), memory->size()}, purpose); !pinned) {
      return tl::unexpected(pinned.error());
    }
    return pinned_.emplace_back(std::make_unique<SharedMemory>(std::move(*memory))).get();
  }

 private:
  DeviceApi& api_;
  std::vector<std::pair<DeviceIndex, void*>> blocks_;
  std::vector<std::unique_ptr<SharedMemory>> pinned_;
};

}  // namespace tributary
