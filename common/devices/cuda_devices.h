// This machine's CUDA devices, or why it has none: for their users and for `tributary doctor`.
// In a build without CUDA the functions answer too, with the reason.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tributary {

// The oldest devices that our kernels are compiled for.
inline constexpr int kMinComputeMajor = 8;

struct CudaDevice {
  int index = 0;             // as the CUDA runtime counts; CUDA_VISIBLE_DEVICES changes it
  std::string name;          // "NVIDIA H200"
  std::string uuid;          // "GPU-xxxxxxxx-xxxx-..."
  std::string pci_bus_id;    // "0000:1b:00.0"
  std::uint64_t memory = 0;  // bytes
  int major = 0, minor = 0;  // compute capability
  int multiprocessors = 0;
  int numa_node = -1;      // of its PCI slot; -1: unknown, or the machine has only one
  bool exclusive = false;  // only one process at a time may use it
  std::string unusable;    // why this build cannot use it; empty: it can

  std::string describe() const;  // "cuda:0 NVIDIA H200"
};

struct CudaSystem {
  bool built = false;         // whether this program was built with CUDA
  std::string runtime;        // version of the runtime in this program: "13.0"; empty without CUDA in the build
  std::string driver;         // newest CUDA version that the driver serves: "13.0"; empty without a driver
  std::string driver_module;  // release of the kernel's driver module: "580.65.06"; empty if there is none
  std::string mps;            // mps_folder()
  std::vector<CudaDevice> devices;
  std::string no_devices;  // why there are none, and what to do; empty if there are
  bool may_come = false;   // there are none yet: the driver, its fabric manager or MPS is about to begin
};

// Sets the environment of a process that runs collectives. Variables that are already set are left alone. Call before
// the first thread and the first call of CUDA.
//   CUDA_MODULE_LOADING=EAGER       CUDA loads a kernel when it is launched first, and loading may wait for work on the
//                                   device: with NCCL's kernels under way, forever.
//   CUDA_DEVICE_MAX_CONNECTIONS=32  A job has seven streams a device, and NCCL its own. Streams that share one of the
//                                   eight queues of the default wait for each other.
//   NCCL_RUNTIME_CONNECT=0          NCCL takes memory for its connections when a communicator is made, not at the first
//                                   collective of a kind, when another job's group may be half launched.
void choose_cuda_settings();

// Queries the driver; starts it if need be, which takes a moment. Do not fork afterwards without exec.
CudaSystem inspect_cuda();

// Returns the fault and the cure where the driver serves an older CUDA than this build's.
std::string driver_too_old(const CudaSystem& system);

// Whether `from` can reach memory of `to` directly, over NVLink or PCIe.
bool cuda_peer_access(int from, int to);

// Returns why a device's memory cannot be lent to other processes (CUDA IPC); empty: it can. Allocates a little there.
std::string cuda_ipc_problem(int device);

// Returns the folder of NVIDIA's Multi-Process Service (CUDA_MPS_PIPE_DIRECTORY, or NVIDIA's default); empty: it does
// not run. Without it the contexts of several processes on one device, a worker's and its trainers', take turns by time
// slices, so a collective that waits for a part of itself crawls while a trainer computes.
std::string mps_folder();

// Returns the release of the kernel's driver module from /proc, without CUDA; empty if it is not loaded.
std::string nvidia_driver_module();

}  // namespace tributary
