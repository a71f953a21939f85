// Passes with and without CUDA in the build, and with and without a device in the machine.
#include <doctest/doctest.h>

#include <string>

#include "common/cuda_devices.h"

namespace tributary {
namespace {

TEST_CASE("There are CUDA devices, or a reason why there are none that says what to do") {
  const CudaSystem system = inspect_cuda();
  CHECK(system.devices.empty() == !system.no_devices.empty());
  CHECK(system.built == !system.runtime.empty());
  if (!system.built) {
    CHECK(system.devices.empty());
    CHECK(system.no_devices.find("TRIBUTARY_CUDA=ON") != std::string::npos);
  }
  if (system.built && system.devices.empty()) CHECK(system.no_devices.find(';') != std::string::npos);
  for (std::size_t i = 0; i < system.devices.size(); ++i) {
    const CudaDevice& device = system.devices[i];
    CHECK(device.index == static_cast<int>(i));
    CHECK(device.uuid.size() == 40);
    CHECK(device.memory > 0);
    if (device.major < kMinComputeMajor) CHECK_FALSE(device.unusable.empty());
  }
}

TEST_CASE("A device is called by its number and name") {
  CudaDevice device;
  device.index = 3;
  device.name = "NVIDIA H200";
  CHECK(device.describe() == "cuda:3 NVIDIA H200");
}

}  // namespace
}  // namespace tributary
