// DeviceMemory: a job's memory on the node's devices, and the pinned host memory for them. Allocated when the job
// begins, freed when it is over; nothing in between.
//
//   per rank      gradients   float[padded]           lent to its trainer
//   per device    parameters  float[padded]           lent to its trainers
//                 residuals   2 x float[groups * chunk]   of this device's chunks, for encodings with error feedback;
//                             two, in turn: until a round is answered, the residual before that round remains
//                 staging     per slot: the sum of the ranks here, the device's share of the node's sum, its frame,
//                             the encoder's scratch, and the answer's frame
//   per device,   areas       one per chunk of this device: frame | pad | residual | answer
//     pinned
//
// An area's frame is pushed, with the residual behind it when a snapshot wants the residual. Without error feedback
// nothing needs the frame once the answer is there, so the answer takes the frame's place.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/wire/messages.h"
#include "worker/device/device_blocks.h"
#include "worker/device/device_plan.h"

namespace tributary {

class DeviceMemory {
 public:
  struct Slot {  // of one device
    float* sum = nullptr;
    float* share = nullptr;
    std::byte* frame = nullptr;
    std::byte* scratch = nullptr;
    std::byte* answer = nullptr;
  };

  // kLimit or the api's own words. The plan and the api outlive it.
  static Result<std::unique_ptr<DeviceMemory>> allocate(DeviceApi& api, const DevicePlan& plan, std::uint32_t slots);
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  // Frees nothing, because a device hangs and work on it may still touch the memory.
  void abandon() { blocks_.abandon(); }

  // Pinned bytes that a job with this plan takes.
  static std::uint64_t pinned_bytes(const DevicePlan& plan);
  // Bytes of each rank's gradients, and of a device's parameters.
  static std::uint64_t array_bytes(const DevicePlan& plan) { return plan.padded_elements() * sizeof(float); }

  float* gradients(std::uint32_t rank, std::uint32_t group) const {
    return gradients_[rank] + group * plan_.group_elements();
  }
  float* parameters(std::uint32_t position, std::uint32_t group) const {
    return parameters_[position] + group * plan_.group_elements();
  }
  float* residual(ChunkIndex chunk, std::uint32_t turn) const;
  const Slot& slot(std::uint32_t position, std::uint32_t slot) const { return slots_[position * slot_count_ + slot]; }

  // Pinned; by position, for servers on this machine.
  const std::vector<const SharedMemory*>& areas() const { return areas_; }
  std::byte* frame(ChunkIndex chunk) const;
  std::byte* residual_behind(ChunkIndex chunk) const { return frame(chunk) + residual_offset(frame_bytes(chunk)); }
  std::byte* answer(ChunkIndex chunk) const;
  std::size_t frame_bytes(ChunkIndex chunk) const { return plan_.push->bytes(plan_.elements(chunk)); }

 private:
  DeviceMemory(DeviceApi& api, const DevicePlan& plan, std::uint32_t slots);
  Status allocate_all();
  Status allocate_device(std::uint32_t position);
  Result<void*> take(std::uint32_t position, std::size_t bytes, const char* purpose) {
    return blocks_.take(plan_.devices[position], bytes, purpose);
  }

  DeviceApi& api_;
  const DevicePlan& plan_;
  const std::uint32_t slot_count_;
  DeviceBlocks blocks_;
  std::vector<float*> gradients_;   // by rank
  std::vector<float*> parameters_;  // by position, as all below
  std::vector<float*> residuals_;
  std::vector<const SharedMemory*> areas_;
  std::vector<Slot> slots_;  // [position * slot_count + slot]
};

}  // namespace tributary
