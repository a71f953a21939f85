// NCCL's functions, loaded at run time: a relocatable install does not carry it, and a node with one GPU needs none.
#pragma once

#include <nccl.h>

#include <string>

#include "common/base/result.h"
#include "common/devices/dynamic_library.h"

namespace tributary {

struct NcclLibrary {
  // kNotFound lists the candidates; kUnavailable if it is too old.
  static Result<NcclLibrary> load();

  std::string version;  // "NCCL 2.28.9 (/usr/lib/.../libnccl.so.2)"
  decltype(&ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&ncclCommInitRankConfig) comm_init_rank_config = nullptr;
  decltype(&ncclCommGetAsyncError) comm_get_async_error = nullptr;
  decltype(&ncclCommAbort) comm_abort = nullptr;
  decltype(&ncclGroupStart) group_start = nullptr;
  decltype(&ncclGroupEnd) group_end = nullptr;
  decltype(&ncclReduceScatter) reduce_scatter = nullptr;
  decltype(&ncclAllGather) all_gather = nullptr;
  decltype(&ncclAllReduce) all_reduce = nullptr;
  decltype(&ncclGetErrorString) get_error_string = nullptr;
  decltype(&ncclGetLastError) get_last_error = nullptr;

  // "unhandled cuda error: NCCL's last message"
  std::string words(ncclResult_t code, ncclComm_t comm = nullptr) const;
};

}  // namespace tributary
