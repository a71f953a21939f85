#include <doctest/doctest.h>

#include <string>

#include "common/devices/device_choice.h"

namespace tributary::device_choice_test {
namespace {

using Kind = DeviceRequest::Kind;

CudaSystem machine_with(int devices) {
  CudaSystem system;
  system.built = true;
  system.runtime = system.driver = "13.0";
  for (int i = 0; i < devices; ++i) {
    CudaDevice device;
    device.index = i;
    device.name = "NVIDIA Test";
    system.devices.push_back(device);
  }
  if (devices == 0) system.no_devices = "no NVIDIA driver is installed; install one";
  return system;
}

DeviceRequest parse(const std::string& text) {
  const auto request = DeviceRequest::parse(text);
  REQUIRE_MESSAGE(request, request.error().message);
  return *request;
}

DeviceChoice choose(const std::string& text, const CudaSystem& system, std::uint32_t local_rank = 0) {
  const auto choice = choose_device(parse(text), system, local_rank);
  REQUIRE_MESSAGE(choice, choice.error().message);
  return *choice;
}

std::string refusal(const std::string& text, const CudaSystem& system) {
  const auto choice = choose_device(parse(text), system, 0);
  REQUIRE_FALSE(choice);
  CHECK(choice.error().code == ErrorCode::kInvalidArgument);
  return choice.error().message;
}

TEST_CASE("The four ways to ask for a device") {
  CHECK(parse("auto").kind == Kind::kAuto);
  CHECK(parse("cpu").kind == Kind::kCpu);
  CHECK(parse("cuda").kind == Kind::kCuda);
  CHECK_FALSE(parse("cuda").index);
  CHECK(parse("cuda:12").kind == Kind::kCuda);
  CHECK(parse("cuda:12").index == 12);
}

TEST_CASE("Other texts are refused and named") {
  for (const std::string text : {"", "gpu", "cuda:", "cuda:-1", "cuda:1x", "cuda: 1", "cuda:99999999999", "CPU"}) {
    CAPTURE(text);
    const auto request = DeviceRequest::parse(text);
    REQUIRE_FALSE(request);
    CHECK(request.error().code == ErrorCode::kInvalidArgument);
    CHECK(request.error().message.find("--device " + text + " ") != std::string::npos);
    CHECK(request.error().message.find("auto, cpu, cuda") != std::string::npos);
  }
}

TEST_CASE("auto takes a GPU if there is one, and may fall back from it") {
  const DeviceChoice choice = choose("auto", machine_with(2));
  CHECK(choice.kind == DeviceKind::kCuda);
  CHECK(choice.may_fall_back);
  const DeviceChoice none = choose("auto", machine_with(0));
  CHECK(none.kind == DeviceKind::kCpu);
  CHECK(none.why == "no NVIDIA driver is installed; install one");
}

TEST_CASE("Who asks for the CPU gets it without a word about GPUs") {
  const DeviceChoice choice = choose("cpu", machine_with(2));
  CHECK(choice.kind == DeviceKind::kCpu);
  CHECK(choice.why.empty());
}

TEST_CASE("Ranks of a node take turns with its GPUs") {
  for (const std::string text : {"auto", "cuda"}) {
    for (std::uint32_t local_rank = 0; local_rank < 7; ++local_rank) {
      CHECK(choose(text, machine_with(3), local_rank).index == static_cast<int>(local_rank % 3));
    }
  }
  CHECK(choose("cuda:1", machine_with(3), 2).index == 1);
  CHECK_FALSE(choose("cuda", machine_with(1)).may_fall_back);
}

TEST_CASE("Who insists on a GPU that is not there is told why") {
  CHECK(refusal("cuda", machine_with(0)) == "--device cuda: no NVIDIA driver is installed; install one");
  CHECK(refusal("cuda:1", machine_with(1)) == "--device cuda:1: this machine has 1 CUDA device, cuda:0");
  CHECK(refusal("cuda:3", machine_with(3)) == "--device cuda:3: this machine has 3 CUDA devices, cuda:0 to cuda:2");
}

TEST_CASE("A device that this build cannot use is refused, and auto leaves it") {
  CudaSystem system = machine_with(1);
  system.devices[0].unusable = "its compute capability is 7.0";
  CHECK(refusal("cuda", system) == "--device cuda: cuda:0 NVIDIA Test cannot be used: its compute capability is 7.0");
  const DeviceChoice choice = choose("auto", system);
  CHECK(choice.kind == DeviceKind::kCpu);
  CHECK(choice.why == "cuda:0 NVIDIA Test cannot be used: its compute capability is 7.0");
}

TEST_CASE("Choosing for this machine agrees with what it has") {
  const CudaSystem system = inspect_cuda();
  const auto choice = choose_device(parse("auto"), 0);
  REQUIRE(choice);
  if (system.devices.empty()) {
    CHECK(choice->kind == DeviceKind::kCpu);
    CHECK(choice->why == system.no_devices);
    CHECK_FALSE(choose_device(parse("cuda"), 0));
  }
  const auto absent = choose_device(parse("cuda:4096"), 0);
  REQUIRE_FALSE(absent);
  CHECK(absent.error().code == ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace tributary::device_choice_test
