// The product's calls of the CUDA runtime, on the emulation of it.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <span>
#include <vector>

#include "common/devices/cuda_devices.h"
#include "common/devices/kept_context.h"
#include "session/trainer_device.h"
#include "tests/emulation/runtime/emulated_runtime.h"
#include "tests/unit/expect.h"
#include "tests/unit/required.h"
#include "worker/device/cuda_device_api.h"
#include "worker/device/nccl_collectives.h"

namespace tributary {

// In place of the libraries that look for devices, drivers and NCCL.
CudaSystem inspect_cuda() {
  CudaSystem system;
  system.devices.push_back({.index = 0, .name = "Emulated GPU", .uuid = "GPU-emulated"});
  return system;
}
std::string CudaDevice::describe() const {
  return "cuda:" + std::to_string(index) + " " + name;
}
const KeptContext::Driver& KeptContext::loaded() {
  static const Driver none;
  return none;
}
Result<std::unique_ptr<NcclCollectives>> NcclCollectives::load(std::vector<Device>) {
  return fail(ErrorCode::kNotFound, "the emulation has no NCCL");
}

namespace {

using testing::contains;

TEST_CASE("a gradient is not said to be ready on a stream that is captured into a graph") {
  emulation::start_runtime({});
  const auto device = required(make_cuda_trainer_device(0));
  cudaStream_t stream = nullptr;
  REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
  int calls = 0;
  const auto count = [](void* given) { ++*static_cast<int*>(given); };
  emulation::capture(stream, true);
  const Status put = device->call_after(stream, count, &calls);
  REQUIRE_FALSE(put);
  CHECK(put.error().code == ErrorCode::kInvalidArgument);
  CHECK(contains(put.error().message, "captured into a CUDA graph"));
  CHECK(emulation::runtime_counts().pending == 0);
  emulation::capture(stream, false);
  REQUIRE(device->call_after(stream, count, &calls));
  REQUIRE(cudaStreamSynchronize(stream) == cudaSuccess);
  CHECK(calls == 1);
  REQUIRE(cudaStreamDestroy(stream) == cudaSuccess);
}

// Takes memory, a stream and an event, gives them back, and then launches a kernel. Returns the numbers of the calls
// that gave back.
std::vector<std::size_t> give_back_and_launch(std::size_t failing_call) {
  constexpr std::size_t kCount = 1024;
  const DeviceIndex device(0);
  emulation::start_runtime({.seed = 1, .failing_call = failing_call});
  const std::unique_ptr<void, void (*)(void*)> pages(std::aligned_alloc(4096, 4096), std::free);
  const std::span<std::byte> pinned(static_cast<std::byte*>(pages.get()), 4096);
  const auto api = required(make_cuda_device_api());
  void* const memory = required(api->allocate(device, 2 * kCount * sizeof(float), "test"));
  const StreamId stream = required(api->create_stream(device, "test"));
  REQUIRE(api->pin(device, pinned, "test"));

  std::vector<std::size_t> calls;
  const auto done = [&] { calls.push_back(emulation::runtime_counts().calls); };
  void* const block = required(api->allocate(device, 1, "test"));
  api->free(device, block);
  done();
  api->unpin(pinned);
  done();
  const EventId event = required(api->create_event(device, "test"));
  api->destroy_event(event);
  done();
  const StreamId other = required(api->create_stream(device, "other"));
  api->destroy_stream(other);
  done();

  auto* const values = static_cast<float*>(memory);
  const float* const inputs[] = {values, values};
  const Status launched = api->sum(stream, inputs, kCount, values + kCount);
  CHECK_MESSAGE(launched, (launched ? "" : launched.error().message));
  api->destroy_stream(stream);
  api->free(device, memory);
  CHECK(emulation::runtime_counts().alive == 0);
  return calls;
}

TEST_CASE("a launch is not blamed for the failure of a call that gave something back") {
  const std::vector<std::size_t> calls = give_back_and_launch(0);
  REQUIRE(calls.size() == 4);
  for (const std::size_t call : calls) {
    CAPTURE(call);
    give_back_and_launch(call);
  }
}

}  // namespace
}  // namespace tributary
