// AllreduceDevices: the memory of an all-reduce job on this node's devices, and the pinned host memory for them. The
// worker owns it and lends gradients and parameters to its trainers. Allocated before the view begins, freed when no
// trainer has it open any more.
//
//   per device  gradients   float[padded]          lent to its rank; a chunk's sum over all ranks takes their place
//               parameters  float[padded]          lent to its rank
//               state       float[state elements]  per array of the optimizer; sharded: of this device's chunks only
//               slots       each: the tail, and the node's sum of this device's chunk (sharded)
//   per device, slots       each: the tail out and in, and a chunk's parameters and state on their way to the host
//     pinned                or from it
#pragma once

#include <memory>
#include <vector>

#include "worker/device/allreduce_plan.h"
#include "worker/device/bucket_tail.h"
#include "worker/device/device_blocks.h"
#include "worker/device/device_loan.h"

namespace tributary {

class AllreduceDevices final : public DeviceLender {
 public:
  static constexpr std::uint32_t kSlots = 3;  // groups under way at a time

  // state_arrays: of the optimizer. kLimit, or the api's own words.
  static Result<std::shared_ptr<AllreduceDevices>> create(std::shared_ptr<DeviceApi> api, AllreducePlan plan,
                                                          std::uint32_t state_arrays, std::uint64_t timeout_ns);
  AllreduceDevices(const AllreduceDevices&) = delete;
  AllreduceDevices& operator=(const AllreduceDevices&) = delete;
  // Frees nothing, because a device hangs and work on it may still touch the memory.
  void abandon() { blocks_.abandon(); }

  DeviceApi& api() const { return *api_; }
  const AllreducePlan& plan() const { return plan_; }
  std::uint32_t state_arrays() const { return state_arrays_; }
  std::uint64_t timeout_ns() const { return timeout_ns_; }  // of connecting, and of a node's own collectives

  std::uint32_t width() const override { return plan_.devices(); }
  std::string describe(std::uint32_t position) const override { return plan_.node.describe(*api_, position); }
  const DeviceLoan& loan(std::uint32_t rank) const override { return loans_[rank]; }
  std::uint64_t pinned_bytes() const override { return plan_.devices() * kSlots * pinned_slot_bytes(); }

  float* gradients(std::uint32_t position, ChunkIndex chunk) const {
    return arrays_[position].gradients + chunk.value * plan_.chunk_elements();
  }
  float* parameters(std::uint32_t position, ChunkIndex chunk) const {
    return arrays_[position].parameters + chunk.value * plan_.chunk_elements();
  }
  // REQUIRES: the device has the chunk's state.
  float* state(std::uint32_t position, std::uint32_t array, ChunkIndex chunk) const {
    return arrays_[position].state[array] + plan_.group_of(chunk) * plan_.chunk_elements();
  }
  float* share(std::uint32_t position, std::uint32_t slot) const;  // sharded
  float* tail(std::uint32_t position, std::uint32_t slot) const;

  // Pinned. passage: 1 + state arrays, a chunk each.
  float* tail_out(std::uint32_t position, std::uint32_t slot) const { return pinned(position, slot); }
  float* tail_in(std::uint32_t position, std::uint32_t slot) const { return pinned(position, slot) + kPart; }
  float* passage(std::uint32_t position, std::uint32_t slot, std::uint32_t array) const {
    return pinned(position, slot) + 2 * kPart + array * plan_.chunk_elements();
  }

 private:
  static constexpr std::size_t kPart = 64;  // floats: a device's alignment
  static_assert(kPart >= kTailParts);
  struct Arrays {  // of a device
    float *gradients = nullptr, *parameters = nullptr, *slots = nullptr, *pinned = nullptr;
    std::vector<float*> state;
  };

  AllreduceDevices(std::shared_ptr<DeviceApi> api, AllreducePlan plan, std::uint32_t state_arrays,
                   std::uint64_t timeout_ns);
  Status allocate(std::uint32_t position);
  Result<float*> take(std::uint32_t position, std::size_t elements, const char* purpose);
  std::size_t slot_elements() const { return kPart + (plan_.sharded() ? plan_.chunk_elements() : 0); }
  std::size_t pinned_slot_elements() const { return 2 * kPart + (1 + state_arrays_) * plan_.chunk_elements(); }
  std::uint64_t pinned_slot_bytes() const { return pinned_slot_elements() * sizeof(float); }
  float* pinned(std::uint32_t position, std::uint32_t slot) const {
    return arrays_[position].pinned + slot * pinned_slot_elements();
  }

  const std::shared_ptr<DeviceApi> api_;
  const AllreducePlan plan_;
  const std::uint32_t state_arrays_;
  const std::uint64_t timeout_ns_;
  DeviceBlocks blocks_;
  std::vector<Arrays> arrays_;  // by position
  std::vector<DeviceLoan> loans_;
};

}  // namespace tributary
