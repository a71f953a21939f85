// A node's simulated devices, as its worker daemon and its trainers see them.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "common/daemon/log.h"
#include "session/trainer_device.h"
#include "tests/fake_device/fake_device_api.h"
#include "worker/node/node_devices.h"

namespace tributary::testing {

// Runs the devices as long as it lives.
class Runner {
 public:
  explicit Runner(std::shared_ptr<FakeDeviceApi> api)
      : thread_([api = std::move(api)](const std::stop_token& over) {
          while (!over.stop_requested()) {
            if (!api->run_one()) std::this_thread::sleep_for(std::chrono::microseconds(50));
          }
        }) {}

 private:
  std::jthread thread_;
};

class FakeTrainerDevice : public TrainerDevice {
 public:
  FakeTrainerDevice(std::shared_ptr<FakeDeviceApi> api, std::uint32_t device) : api_(std::move(api)), device_(device) {}
  std::string uuid() const override {
    return device_ < api_->devices().size() ? api_->devices()[device_].uuid : "GPU-elsewhere";
  }
  Result<void*> open(std::span<const std::byte> handle) override {
    if (refuse) return fail(ErrorCode::kDevice, "planned refusal of a mapping");
    IpcHandle copy;
    REQUIRE(handle.size() == copy.bytes.size());
    std::ranges::copy(handle, copy.bytes.begin());
    ++mapped;
    return api_->opened(copy);
  }
  void close(void* memory) override {
    CHECK(memory != nullptr);
    --mapped;
  }
  // Streams of these tests end at once.
  Status pin(std::span<std::byte> memory) override {
    pinned.push_back(memory);
    return {};
  }
  void unpin(std::span<std::byte> memory) override {
    const auto at = std::ranges::find(pinned, memory.data(), &std::span<std::byte>::data);
    REQUIRE(at != pinned.end());
    pinned.erase(at);
  }
  Status call_after(void*, void (*function)(void*), void* argument) override {
    function(argument);
    return {};
  }
  Result<bool> idle(void*) override { return true; }
  bool refuse = false;
  int mapped = 0;
  std::vector<std::span<std::byte>> pinned;

 private:
  const std::shared_ptr<FakeDeviceApi> api_;
  const std::uint32_t device_;
};

struct Devices {
  explicit Devices(std::uint32_t count, const std::string& mode = "auto", std::size_t bytes = 1u << 30,
                   std::uint32_t timeout_ms = 30'000)
      : api(std::make_shared<FakeDeviceApi>(FakeDeviceOptions{.devices = count, .device_bytes = bytes})) {
    WorkerConfig config{.node_reduction = choice_of<NodeReduction>(mode).value(), .collective_timeout_ms = timeout_ms};
    node =
        std::make_shared<NodeDevices>(config, count == 0 ? nullptr : api, count == 0 ? "no device here" : "", logger);
  }
  std::shared_ptr<FakeTrainerDevice> opener(std::uint32_t device) {
    return std::make_shared<FakeTrainerDevice>(api, device);
  }
  Logger logger = quiet_logger();
  std::shared_ptr<FakeDeviceApi> api;
  std::shared_ptr<NodeDevices> node;
};

}  // namespace tributary::testing
