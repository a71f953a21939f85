// The collectives of CudaDeviceApi: NCCL, loaded at run time. A build without NCCL's header only returns the reason
// (nccl_collectives_none.cc).
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "worker/device/device_api.h"

namespace tributary {

// Owned by the device API. The calls and their rules are those of worker/device/device_api.h.
class NcclCollectives {
 public:
  struct Device {
    int cuda_index = 0;
    std::string name;  // for messages
  };
  // devices: what DeviceIndex counts. kNotFound: no library, or a build without it; kUnavailable: it is too old.
  static Result<std::unique_ptr<NcclCollectives>> load(std::vector<Device> devices);
  virtual ~NcclCollectives() = default;

  virtual const std::string& version() const = 0;
  virtual Result<CommKey> make_key() = 0;
  virtual Result<std::vector<CommId>> join(const CommKey& key, std::uint32_t size, std::span<const CommSeat> seats) = 0;
  virtual Result<bool> settled(CommId comm) = 0;
  virtual Status group_start() = 0;
  virtual Status group_end() = 0;
  virtual Status reduce_scatter(CommId comm, cudaStream_t stream, const float* send, float* receive,
                                std::size_t count) = 0;
  virtual Status all_gather(CommId comm, cudaStream_t stream, float* gathered, std::size_t count) = 0;
  virtual Status all_reduce(CommId comm, cudaStream_t stream, float* values, std::size_t count) = 0;
  virtual void abort(CommId comm) = 0;
};

}  // namespace tributary
