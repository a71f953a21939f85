// Passes with and without CUDA in the build, and with and without a device in the machine.
#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "common/devices/cuda_devices.h"
#include "common/devices/kept_context.h"
#include "tests/unit/expect.h"
#include "tests/unit/temp_dir.h"

namespace tributary::cuda_devices_test {
namespace {

TEST_CASE("There are CUDA devices, or a reason why there are none that says what to do") {
  const CudaSystem system = inspect_cuda();
  CHECK(system.devices.empty() == !system.no_devices.empty());
  CHECK(system.built == !system.runtime.empty());
  if (!system.built) {
    CHECK(system.devices.empty());
    CHECK(testing::contains(system.no_devices, "TRIBUTARY_CUDA=ON"));
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

TEST_CASE("A driver that is too old for this build is told with all that helps") {
  CudaSystem system{.runtime = "13.0", .driver = "12.4"};
  const std::string text = driver_too_old(system);
  CHECK(testing::contains(text, "serves CUDA 12.4, older than this build's 13.0"));
  CHECK(testing::contains(text, "cuda-compat-13-0"));
  CHECK(testing::contains(text, "toolkit of CUDA 12"));
}

TEST_CASE("settings of CUDA and NCCL are ours unless the environment has them") {
  const char* names[] = {"CUDA_MODULE_LOADING", "CUDA_DEVICE_MAX_CONNECTIONS", "NCCL_RUNTIME_CONNECT"};
  for (const char* name : names) ::unsetenv(name);
  choose_cuda_settings();
  CHECK(std::string(::getenv("CUDA_MODULE_LOADING")) == "EAGER");
  CHECK(std::string(::getenv("CUDA_DEVICE_MAX_CONNECTIONS")) == "32");
  CHECK(std::string(::getenv("NCCL_RUNTIME_CONNECT")) == "0");
  ::setenv("CUDA_MODULE_LOADING", "LAZY", 1);
  choose_cuda_settings();
  CHECK(std::string(::getenv("CUDA_MODULE_LOADING")) == "LAZY");
  for (const char* name : names) ::unsetenv(name);
}

// A driver that keeps one thread's context.
int contexts[2];
void* current = nullptr;
int get_context(void** context) {
  *context = current;
  return 0;
}
int set_context(void* context) {
  current = context;
  return 0;
}

TEST_CASE("a thread has the context afterwards that it had, also none") {
  const KeptContext::Driver driver{get_context, set_context};
  void* before = nullptr;
  SUBCASE("none") {}
  SUBCASE("another device's") {
    before = &contexts[0];
  }
  current = before;
  {
    const KeptContext kept(driver);
    current = &contexts[1];  // as cudaSetDevice() does
  }
  CHECK(current == before);
  const KeptContext without_driver(KeptContext::Driver{});
}

TEST_CASE("MPS is where its daemon's pipe is, and nowhere else") {
  const testing::TempDir folder;
  ::setenv("CUDA_MPS_PIPE_DIRECTORY", folder.path().c_str(), 1);
  CHECK(mps_folder().empty());
  std::ofstream(folder / "control") << "";
  CHECK(mps_folder() == folder.path());
  ::unsetenv("CUDA_MPS_PIPE_DIRECTORY");
}

TEST_CASE("A device is called by its number and name") {
  CudaDevice device{.index = 3, .name = "NVIDIA H200"};
  CHECK(device.describe() == "cuda:3 NVIDIA H200");
}

}  // namespace
}  // namespace tributary::cuda_devices_test
