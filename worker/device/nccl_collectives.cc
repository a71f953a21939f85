#include "worker/device/nccl_collectives.h"

#include <cstring>
#include <utility>

#include "common/base/assert.h"
#include "common/devices/cuda_error.h"
#include "worker/device/nccl_library.h"

namespace tributary {
namespace {

struct Comm {
  ncclComm_t comm = nullptr;  // NCCL writes to it until the communicator is settled
  std::uint32_t device = 0;
  std::size_t rank = 0;
};

// Ids are the objects' addresses.
CommId id_of(Comm* comm) {
  return CommId(reinterpret_cast<std::uintptr_t>(comm));
}
Comm& comm_of(CommId id) {
  TRIB_ASSERT(id.value != 0);
  return *reinterpret_cast<Comm*>(static_cast<std::uintptr_t>(id.value));
}

class LoadedNccl final : public NcclCollectives {
 public:
  LoadedNccl(NcclLibrary library, std::vector<Device> devices)
      : nccl_(std::move(library)), devices_(std::move(devices)) {}

  const std::string& version() const override { return nccl_.version; }

  Result<CommKey> make_key() override {
    static_assert(sizeof(ncclUniqueId) == sizeof(CommKey));
    ncclUniqueId unique;
    if (Status made = status(nccl_.get_unique_id(&unique), {}, "ncclGetUniqueId"); !made) {
      return tl::unexpected(made.error());
    }
    CommKey key;
    std::memcpy(key.bytes.data(), &unique, sizeof unique);
    return key;
  }

  Result<std::vector<CommId>> join(const CommKey& key, std::uint32_t size, std::span<const CommSeat> seats) override {
    ncclUniqueId unique;
    std::memcpy(&unique, key.bytes.data(), sizeof unique);
    std::vector<CommId> ids;
    Status joined = group_start();
    if (!joined) return tl::unexpected(joined.error());
    for (const CommSeat& seat : seats) {
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.blocking = 0;
      auto comm = std::make_unique<Comm>(Comm{nullptr, seat.device.value, seat.rank});
      joined = select(comm->device);
      if (joined) {
        joined = status(nccl_.comm_init_rank_config(&comm->comm, static_cast<int>(size), unique,
                                                    static_cast<int>(seat.rank), &config),
                        *comm, "ncclCommInitRankConfig");
      }
      ids.push_back(id_of(comm.release()));
      if (!joined) break;
    }
    const Status ended = group_end();
    if (joined && !ended) joined = ended;
    if (joined) return ids;
    for (const CommId id : ids) abort(id);
    return tl::unexpected(joined.error());
  }

  Result<bool> settled(CommId id) override {
    const Comm& comm = comm_of(id);
    ncclResult_t state = ncclSuccess;
    const ncclResult_t asked = nccl_.comm_get_async_error(comm.comm, &state);
    if (asked == ncclSuccess && state == ncclInProgress) return false;
    if (Status done = status(asked != ncclSuccess ? asked : state, comm, "an asynchronous error"); !done) {
      return tl::unexpected(done.error());
    }
    return true;
  }

  Status group_start() override { return status(nccl_.group_start(), {}, "ncclGroupStart"); }
  Status group_end() override { return status(nccl_.group_end(), {}, "ncclGroupEnd"); }

  Status reduce_scatter(CommId id, cudaStream_t stream, const float* send, float* receive, std::size_t count) override {
    const Comm& comm = comm_of(id);
    return status(nccl_.reduce_scatter(send, receive, count, ncclFloat, ncclSum, comm.comm, stream), comm,
                  "ncclReduceScatter");
  }
  Status all_gather(CommId id, cudaStream_t stream, float* gathered, std::size_t count) override {
    const Comm& comm = comm_of(id);
    const float* own = gathered + comm.rank * count;
    return status(nccl_.all_gather(own, gathered, count, ncclFloat, comm.comm, stream), comm, "ncclAllGather");
  }
  Status all_reduce(CommId id, cudaStream_t stream, float* values, std::size_t count) override {
    const Comm& comm = comm_of(id);
    return status(nccl_.all_reduce(values, values, count, ncclFloat, ncclSum, comm.comm, stream), comm,
                  "ncclAllReduce");
  }
  void abort(CommId id) override {
    const std::unique_ptr<Comm> comm(&comm_of(id));
    if (!comm->comm) return;
    (void)select(comm->device);  // a lost device cannot be: what NCCL has on the host is given back all the same
    nccl_.comm_abort(comm->comm);
  }

 private:
  Status select(std::uint32_t device) const {
    return cuda_status(cudaSetDevice(devices_[device].cuda_index), devices_[device].name, "cudaSetDevice");
  }
  Status status(ncclResult_t code, const Comm& comm, const char* operation) const {
    if (code == ncclSuccess || code == ncclInProgress) return {};
    const std::string device = comm.comm ? devices_[comm.device].name + ": " : std::string();
    // A remote error is one of another process or of the network, not of this process.
    const ErrorCode kind = code == ncclRemoteError ? ErrorCode::kUnavailable : ErrorCode::kDevice;
    return fail(kind, device + operation + ": " + nccl_.words(code, comm.comm));
  }

  NcclLibrary nccl_;
  std::vector<Device> devices_;
};

}  // namespace

Result<std::unique_ptr<NcclCollectives>> NcclCollectives::load(std::vector<Device> devices) {
  Result<NcclLibrary> library = NcclLibrary::load();
  if (!library) return tl::unexpected(library.error());
  return std::make_unique<LoadedNccl>(std::move(*library), std::move(devices));
}

}  // namespace tributary
