// NodeReducer: a node's side of one exchange. Sums the gradients of the node's ranks and encodes the sum for the wire;
// decodes answers into the parameters that the ranks read. One interface, a backend each: host memory
// (host_reducer.h: SIMD, tree-ordered) and devices (device_reducer.h), which complete later: hence callbacks and not
// return values.
//
// Encodings with error feedback keep a residual per chunk here: the values not sent yet. It is the node's only state
// that training depends on, so it goes to the servers where a snapshot needs it: behind the frame of the same round
// ("with residual": frame, padding to residual_offset() of common/wire/messages.h, the residual as fp32).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/math/encoding.h"
#include "common/system/shared_memory.h"
#include "common/wire/messages.h"
#include "worker/reduce/lane_chunk.h"

namespace tributary {

class ReduceListener {
 public:
  virtual ~ReduceListener() = default;
  // The encoded sum of the round LaneChunk::gradient names is in its frame, with the residual behind it if that was
  // asked for. It stays unchanged until release(chunk).
  virtual void reduced(LaneChunk& chunk) = 0;
  // The parameters of `chunk` at `version` are where the trainers read them.
  virtual void delivered(LaneChunk& chunk, Version version) = 0;
  // Devices only: the job cannot continue (a collective failed or hangs); names rank or device and operation.
  virtual void reducer_failed(Error error) = 0;
};

class NodeReducer {
 public:
  virtual ~NodeReducer() = default;
  // All local ranks' gradients of `chunk` are final, for the round and of the weight that LaneChunk::gradient says.
  // Calls reduced() now (host) or later from poll() (devices). The host backend with one rank and fp32 lends the
  // trainer's own memory: no copy.
  virtual void reduce(LaneChunk& chunk, bool with_residual) = 0;
  // An answer. `full`: fp32 parameters, whatever the job's pull encoding (the first answer of a view); else in the pull
  // encoding. `payload` is valid during the call only. Calls delivered() now or later.
  virtual void deliver(LaneChunk& chunk, Version version, bool full, std::span<const std::byte> payload) = 0;
  // The answer has come: the chunk's frame may be reused.
  virtual void release(LaneChunk& chunk) = 0;
  // Encodings with error feedback only. The residual of a resumed job, before the chunk's first reduce().
  virtual void restore_residual(LaneChunk& chunk, std::span<const std::byte> values) = 0;
  // The residual after the last round that was answered, even if a later one has been reduced: the node leaves, and no
  // reduce() follows. It stays until the reducer is destroyed. Devices may wait for copies here.
  virtual std::span<const std::byte> residual(const LaneChunk& chunk) = 0;
  // Memory that frames (and residuals) lie in, for other processes to read.
  virtual std::vector<const SharedMemory*> frames() const = 0;
  // Payloads lie in the gradients of the node's only rank.
  virtual bool lends_gradients() const { return false; }
  // Completions of asynchronous backends; true if something is still under way.
  virtual bool poll() = 0;
  // Readable when poll() has something to do; -1: never.
  virtual int wake_fd() const { return -1; }
  // Nanoseconds spent reducing and encoding, in total.
  virtual std::uint64_t busy_ns() const = 0;
};

}  // namespace tributary
