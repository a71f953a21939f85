// GradientPath: how parameters come to the device that computes, and how gradients leave it. The passes work on device
// memory that the path names; the path brings it together with what the session offers: host memory, through which
// everything is copied (train/host_staging.h), or memory of the device itself (train/device_path.h).
//
// One round of it, all on the thread that enqueues:
//     for each tensor, once the session's wait(t) has returned:      fetch(t)
//     for each tensor, once the work that makes it is enqueued:      publish(t)
//     drain()
// publish() leads to ready(t) as soon as the device is there, on a thread of the CUDA driver.
//
// The memory rule of session/session.h: after ready(t) the session's parameters of t may change. So ready(t) comes
// after everything that reads them: the copy that fetch(t) began, or the kernels enqueued before publish(t).
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <span>

#include "common/base/result.h"
#include "train/pass.h"

namespace tributary::train {

// Thread rule: one thread at a time. Errors: kDevice.
class GradientPath {
 public:
  virtual ~GradientPath() = default;

  // By tensor, where the kernels read and write.
  virtual std::span<const float* const> parameters() const = 0;
  virtual std::span<float* const> gradients() const = 0;

  // What is enqueued on `compute` after this sees the parameters of `tensor` that the session has now.
  virtual Status fetch(std::size_t tensor, cudaStream_t compute) = 0;
  // When what is enqueued on `compute` so far is done: brings the gradient into its place and calls `ready`, which must
  // stay until drain() has returned and must not call CUDA. It may be null.
  virtual Status publish(std::size_t tensor, cudaStream_t compute, const TensorReady& ready) = 0;
  // Waits, asleep, until all that was fetched and published is done: no copy is under way, every ready() has returned.
  // To be called after an error, too.
  virtual Status drain() = 0;
};

}  // namespace tributary::train
