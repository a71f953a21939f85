// NodeReducer: sums the gradients of a node's ranks and encodes the sum for the wire. One interface, a backend each:
// host memory (host_reducer.h: SIMD, tree-ordered); NCCL comes behind the same interface, which is why completion is a
// callback and not a return value.
#pragma once

#include <cstdint>
#include <span>

#include "common/ids.h"

namespace tributary {

class ReduceListener {
 public:
  virtual ~ReduceListener() = default;
  // The encoded sum of `chunk` for `round` is in `frame`, which stays unchanged until release(chunk).
  virtual void reduced(ChunkIndex chunk, Round round, std::uint64_t weight, std::span<const std::byte> frame) = 0;
};

class NodeReducer {
 public:
  virtual ~NodeReducer() = default;
  // All local ranks' gradients of `chunk` are final. Calls reduced() now (host) or later from poll() (devices). The
  // host backend with one rank and fp32 lends the trainer's own memory: no copy.
  virtual void reduce(ChunkIndex chunk, Round round, std::uint64_t weight) = 0;
  // The answer has come: the chunk's frame may be reused.
  virtual void release(ChunkIndex chunk) = 0;
  // Completions of asynchronous backends; true if something is still under way.
  virtual bool poll() = 0;
  // Nanoseconds spent reducing and encoding, in total.
  virtual std::uint64_t busy_ns() const = 0;
};

}  // namespace tributary
