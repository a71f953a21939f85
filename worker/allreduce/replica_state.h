// ReplicaState: a node's own copy of the optimizer state of an all-reduce job, and the step. All nodes hold the same
// bits, because all of them apply the same sums in the same way. Parameters are where the trainers read them, in the
// node region.
//
// Thread rule: chunks are independent; one thread at a time for a chunk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <vector>

#include "common/base/layout.h"
#include "common/config/step_runs.h"
#include "common/math/encoding.h"

namespace tributary {

// Aligned floats that are not touched before they are used. `place`: arrays of different places do not alias in the
// first cache when they are read side by side (common/system/buffer_pool.h).
class FloatArray {
 public:
  FloatArray() = default;
  FloatArray(std::uint64_t elements, std::size_t place);
  float* data() const { return data_; }

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  std::unique_ptr<void, Free> memory_;
  float* data_ = nullptr;
};

class ReplicaState {
 public:
  // parameters: layout.flat_elements() values; they outlive this.
  ReplicaState(std::shared_ptr<const JobPlan> plan, std::shared_ptr<const Layout> layout, float* parameters);

  // Applies one round to one chunk. sum: of all ranks' gradients; weight: of all of them. As on servers, a round
  // without samples changes nothing.
  void step(ChunkIndex chunk, const float* sum, std::uint64_t weight, SaidSettings said = {});

  float* parameters() const { return parameters_; }
  std::span<float* const> slots() const { return slots_; }                            // state arrays, flat
  float* array(std::size_t i) const { return i == 0 ? parameters_ : slots_[i - 1]; }  // parameters, then slots
  std::span<std::uint64_t> steps() { return steps_; }                                 // by chunk

 private:
  const std::shared_ptr<const JobPlan> plan_;
  const std::shared_ptr<const Layout> layout_;
  const std::shared_ptr<const Encoding> fp32_;
  float* const parameters_;
  std::vector<FloatArray> arrays_;
  std::vector<float*> slots_;
  std::vector<std::uint64_t> steps_;
};

}  // namespace tributary
