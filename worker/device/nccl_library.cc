#include "worker/device/nccl_library.h"

#include "common/devices/cuda_libraries.h"

namespace tributary {
namespace {

// Communicators that do not block, which a safe abort needs.
constexpr int kOldest = NCCL_VERSION(2, 14, 0);

}  // namespace

Result<NcclLibrary> NcclLibrary::load() {
  const auto library = open_nccl();
  if (!library) return tl::unexpected(library.error());
  NcclLibrary nccl;
  decltype(&ncclGetVersion) get_version = nullptr;
  Status found = library->resolve("ncclGetVersion", get_version);
  if (!found) return tl::unexpected(found.error());
  int version = 0;
  get_version(&version);
  if (version < kOldest) {
    return fail(ErrorCode::kUnavailable, library->path() + " is NCCL " + nccl_version(version) +
                                             "; sums over GPUs need " + nccl_version(kOldest) + " or newer");
  }
  nccl.version = "NCCL " + nccl_version(version) + " (" + library->path() + ")";
  const auto need = [&](const char* symbol, auto& function) {
    if (found) found = library->resolve(symbol, function);
  };
  need("ncclGetUniqueId", nccl.get_unique_id);
  need("ncclCommInitRankConfig", nccl.comm_init_rank_config);
  need("ncclCommGetAsyncError", nccl.comm_get_async_error);
  need("ncclCommAbort", nccl.comm_abort);
  need("ncclGroupStart", nccl.group_start);
  need("ncclGroupEnd", nccl.group_end);
  need("ncclReduceScatter", nccl.reduce_scatter);
  need("ncclAllGather", nccl.all_gather);
  need("ncclAllReduce", nccl.all_reduce);
  need("ncclGetErrorString", nccl.get_error_string);
  need("ncclGetLastError", nccl.get_last_error);
  if (!found) return tl::unexpected(found.error());
  return nccl;
}

std::string NcclLibrary::words(ncclResult_t code, ncclComm_t comm) const {
  std::string text = get_error_string(code);
  const char* last = get_last_error(comm);
  if (last && *last != '\0') text += std::string(": ") + last;
  return text;
}

}  // namespace tributary
