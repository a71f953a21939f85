// An emulation of CUDA's streams, events and memory, for tests of the code that drives a GPU: tests/emulation runs its
// kernels. One thread does everything.
//
// Enqueued operations run later: any call of the runtime runs some operations that the streams' order and the events
// allow. A seed decides how many, and of which streams; the rest run when a caller waits for them. So a dependency that
// the code forgot shows as a wrong result under some seed. Memory of the device begins as NaN. Pinned host memory is
// read and written when the copy's turn comes; pageable memory at once, after the stream has come to it. cudaMemcpy()
// is of the legacy stream, which others do not wait for, and returns when pageable memory is read, before it has
// arrived.
//
// The error of a call is kept until cudaGetLastError(), as in CUDA: code that asks after a launch finds older errors.
//
// Mistakes that CUDA leaves undefined end in an exception: a call of CUDA from a host function, a copy beyond an
// allocation, memory or streams that do not exist, a wait that can never end.
//
// Not emulated: true parallelism, costs, and further refusals of a real runtime.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tests/emulation/runtime/cuda_runtime_api.h"

namespace tributary::emulation {

struct RuntimeOptions {
  std::uint32_t seed = 0;  // 0: nothing runs before somebody waits; 1: everything at once; others: by chance
  // The number of the call of the runtime that fails, from 1; 0: none. One that enqueues work fails when the work is
  // run, as on a device: everything later fails too, and nothing more is run, no host function either. One that gives
  // something back returns an error and gives it back.
  std::size_t failing_call = 0;
};

// For what follows. REQUIRES: nothing is alive.
void start_runtime(const RuntimeOptions& options);

// Begins or ends the capture of a stream into a graph. Work is enqueued all the same.
void capture(cudaStream_t stream, bool captured);

struct RuntimeCounts {
  std::size_t calls = 0;
  std::size_t pending = 0;     // operations enqueued and not run
  std::size_t alive = 0;       // allocations, streams, events
  std::size_t registered = 0;  // pieces of host memory
};
RuntimeCounts runtime_counts();

}  // namespace tributary::emulation
