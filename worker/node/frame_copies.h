// FrameCopies: what a node that reduces on devices pushes to servers on its own machine. Its frames lie in pinned
// memory, which cannot be handed to another process; so they are copied into shared memory, a place per chunk, on their
// way. Thread rule: the lane's thread.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "common/base/layout.h"
#include "common/base/shared_memory.h"
#include "common/math/encoding.h"

namespace tributary {

class FrameCopies {
 public:
  // For one lane's chunks.
  FrameCopies(const Layout& layout, const std::vector<ChunkIndex>& chunks, EncodingSpec push);
  std::size_t bytes() const { return bytes_; }
  // kLimit if the machine has no memory for bytes().
  Status allocate();

  const SharedMemory& memory() const { return memory_; }
  // The payload of a push, where a server can read it. `alone`: it is a residual without frame, which does not touch
  // the frame that the server may still hold. REQUIRES: allocate().
  std::span<const std::byte> copy(ChunkIndex chunk, std::span<const std::byte> payload, bool alone);

 private:
  struct Place {
    std::size_t offset = 0, residual = 0, bytes = 0;  // residual: where it begins behind the frame
  };
  std::vector<Place> places_;  // by chunk index
  std::size_t bytes_ = 0;
  SharedMemory memory_;
};

}  // namespace tributary
