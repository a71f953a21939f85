#include "common/devices/cuda_devices.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <span>

#include "common/devices/cuda_error.h"
#include "common/devices/kept_context.h"

namespace tributary {

namespace {

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

std::string uuid_text(const cudaUUID_t& uuid) {
  std::string text = "GPU-";
  for (std::size_t i = 0; i < sizeof uuid.bytes; ++i) {
    char hex[3];
    std::snprintf(hex, sizeof hex, "%02x", static_cast<unsigned char>(uuid.bytes[i]));
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += hex;
  }
  return text;
}

int numa_node_of(std::string pci_bus_id) {
  std::ranges::transform(pci_bus_id, pci_bus_id.begin(), [](unsigned char c) { return std::tolower(c); });
  std::ifstream in("/sys/bus/pci/devices/" + pci_bus_id + "/numa_node");
  int node = -1;
  in >> node;
  return in ? node : -1;
}

// Returns why the driver shows no device, and the cure.
std::string why_none(cudaError_t error, const CudaSystem& system) {
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  const std::string hidden =
      visible == nullptr ? "" : "; CUDA_VISIBLE_DEVICES is \"" + std::string(visible) + "\", which may hide devices";
  switch (error) {
    case cudaErrorInsufficientDriver:
      if (system.driver.empty()) {
        return "no NVIDIA driver is installed (libcuda.so.1 is not there); install one that serves CUDA " +
               system.runtime + " or newer";
      }
      return driver_too_old(system);
    case cudaSuccess:
    case cudaErrorNoDevice:
      return "the NVIDIA driver shows no device" + (hidden.empty() ? "; see whether nvidia-smi lists one" : hidden);
    default:
      return std::string("the NVIDIA driver answered: ") + cudaGetErrorString(error) + " (" + cudaGetErrorName(error) +
             "); see whether nvidia-smi works" + hidden;
  }
}

CudaDevice inspect_device(int index) {
  CudaDevice device;
  device.index = index;
  cudaDeviceProp properties{};
  if (const cudaError_t error = cudaGetDeviceProperties(&properties, index); error != cudaSuccess) {
    device.name = "unknown device";
    device.unusable = std::string("its properties cannot be read: ") + cudaGetErrorString(error);
    cudaGetLastError();  // cleared, so that no later call reports it
    return device;
  }
  device.name = properties.name;
  device.uuid = uuid_text(properties.uuid);
  device.memory = properties.totalGlobalMem;
  device.major = properties.major;
  device.minor = properties.minor;
  device.multiprocessors = properties.multiProcessorCount;
  char bus_id[32] = {};
  if (cudaDeviceGetPCIBusId(bus_id, sizeof bus_id, index) == cudaSuccess) {
    device.pci_bus_id = bus_id;
    device.numa_node = numa_node_of(bus_id);
  }
  int mode = cudaComputeModeDefault;
  cudaDeviceGetAttribute(&mode, cudaDevAttrComputeMode, index);
  device.exclusive = mode == cudaComputeModeExclusiveProcess || mode == cudaComputeModeExclusive;
  if (mode == cudaComputeModeProhibited) {
    device.unusable = "its compute mode is Prohibited; nvidia-smi -c DEFAULT changes that";
  } else if (device.major < kMinComputeMajor) {
    device.unusable = "its compute capability is " + std::to_string(device.major) + "." + std::to_string(device.minor) +
                      ", and this build has kernels for " + std::to_string(kMinComputeMajor) + ".0 and newer";
  }
  cudaGetLastError();
  return device;
}

}  // namespace

CudaSystem inspect_cuda() {
  CudaSystem system;
  system.built = true;
  system.driver_module = nvidia_driver_module();
  system.mps = mps_folder();
  int version = 0;
  if (cudaRuntimeGetVersion(&version) == cudaSuccess) system.runtime = version_text(version);
  if (cudaDriverGetVersion(&version) == cudaSuccess && version > 0) system.driver = version_text(version);
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  cudaGetLastError();
  if (error != cudaSuccess || count == 0) {
    system.no_devices = why_none(error, system);
    system.may_come = may_pass(error);
    return system;
  }
  for (int i = 0; i < count; ++i) system.devices.push_back(inspect_device(i));
  return system;
}

bool cuda_peer_access(int from, int to) {
  int can = 0;
  const bool answered = cudaDeviceCanAccessPeer(&can, from, to) == cudaSuccess;
  cudaGetLastError();
  return answered && can != 0;
}

std::string cuda_ipc_problem(int device) {
  const KeptContext kept;
  void* memory = nullptr;
  cudaIpcMemHandle_t handle;
  cudaError_t error = cudaSetDevice(device);
  if (error == cudaSuccess) error = cudaMalloc(&memory, 1);
  if (error == cudaSuccess) error = cudaIpcGetMemHandle(&handle, memory);
  const std::string problem = error == cudaSuccess
                                  ? std::string()
                                  : std::string(cudaGetErrorString(error)) + " (" + cudaGetErrorName(error) + ")";
  if (memory != nullptr) cudaFree(memory);
  cudaGetLastError();
  return problem;
}

}  // namespace tributary
