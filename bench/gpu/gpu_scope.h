// GpuScope: streams, events and memory of one device, for the time of one measurement. After the first failure all its
// results are null, and status() has the error.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <string>
#include <vector>

#include "common/base/result.h"

namespace tributary::bench {

class GpuScope {
 public:
  explicit GpuScope(const char* who) : who_(who) {}
  ~GpuScope();
  GpuScope(const GpuScope&) = delete;
  GpuScope& operator=(const GpuScope&) = delete;

  const Status& status() const { return status_; }
  const std::string& name() const { return name_; }  // of the device
  void check(cudaError_t error, const char* what);

  void select(int device);
  cudaStream_t stream();
  cudaEvent_t event(bool timed = false);
  void* memory(std::size_t bytes);  // the device's
  void* pinned(std::size_t bytes);
  void register_memory(void* memory, std::size_t bytes);  // which outlives this

 private:
  const char* const who_;
  Status status_;
  std::string name_;
  std::vector<cudaStream_t> streams_;
  std::vector<cudaEvent_t> events_;
  std::vector<void*> device_, pinned_, registered_;
};

}  // namespace tributary::bench
