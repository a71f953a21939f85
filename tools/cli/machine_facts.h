// What `tributary doctor` asks of a machine. Only facts: tools/cli/doctor_checks.h judges them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/devices/cuda_devices.h"

namespace tributary::cli {

struct NetworkInterface {
  std::string name;
  std::vector<std::string> addresses;
  bool loopback = false;
  std::optional<std::uint32_t> mbit_per_s;  // where the driver knows it
  std::uint32_t mtu = 0;
};

// A library that is loaded at run time: its file and version, or why it cannot be loaded.
struct LibraryFact {
  std::string file, version, problem;
  std::string left_out;  // why this build has no use for it, and the cure; empty: it has, or has no CUDA
};

struct MachineFacts {
  // Processor and memory.
  std::string cpu;              // "Intel(R) Xeon(R) ..."
  std::string instruction_set;  // that our kernels use: "AVX-512", "AVX2" or "baseline"
  std::uint32_t cores = 0;      // of the machine
  std::uint32_t usable_cores = 0;
  std::optional<double> core_quota;  // of the control group
  std::uint64_t memory = 0, memory_available = 0;
  std::optional<std::uint64_t> memory_limit;                // of the control group
  std::uint64_t shared_memory = 0, shared_memory_free = 0;  // /dev/shm; 0: not mounted
  std::uint64_t open_files = 0, open_files_most = 0;        // soft and hard limit
  std::string huge_pages;                                   // "always", "madvise", "never"; empty: unknown

  // Network.
  std::vector<NetworkInterface> interfaces;  // that are up and have an address

  // GPUs.
  CudaSystem cuda;
  std::vector<std::pair<int, int>> no_peer_access;  // pairs of devices
  std::vector<std::string> ipc_problems;            // by device; empty: its memory can be lent to other processes
  LibraryFact cublas, nccl;
  std::vector<std::pair<std::string, std::string>> cuda_environment;  // CUDA_*
  std::vector<std::pair<std::string, std::string>> nccl_environment;  // NCCL_*
  std::vector<std::string> nccl_files;                                // configuration files that NCCL reads

  // Tributary itself.
  std::string folder;                         // of the programs
  std::vector<std::string> missing_programs;  // that should lie beside this one
  std::string data_dir;                       // of the built-in trainer
  bool has_data = false;
};

MachineFacts gather_facts();

// The chosen one of "always [madvise] never"; empty if nothing is chosen.
std::string chosen_of(const std::string& choices);

}  // namespace tributary::cli
