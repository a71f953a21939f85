// Facts of a machine's GPUs and their libraries and settings. gpu_checks.h judges them.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "common/devices/cuda_devices.h"

namespace tributary {

// A library that is loaded at run time: its file and version, or why it cannot be loaded.
struct LibraryFact {
  std::string file, version, problem;
  std::string left_out;  // why this build does not use it, and the cure; empty: it does, or has no CUDA
};

struct GpuFacts {
  CudaSystem cuda;
  std::vector<std::pair<int, int>> no_peer_access;  // pairs of devices
  std::vector<std::string> ipc_problems;            // by device; empty: its memory can be lent to other processes
  LibraryFact nccl;
  std::vector<std::pair<std::string, std::string>> cuda_environment;  // CUDA_*
  std::vector<std::pair<std::string, std::string>> nccl_environment;  // NCCL_*
  std::vector<std::string> nccl_files;                                // configuration files that NCCL reads
};

// kThorough allocates on each device, to try whether its memory can be lent. A daemon at work omits that.
enum class GpuLook { kThorough, kAtWork };
GpuFacts gather_gpu_facts(GpuLook look);

}  // namespace tributary
