#include "common/devices/device_choice.h"

#include <charconv>

#include "common/base/printed.h"

namespace tributary {

Result<DeviceRequest> DeviceRequest::parse(std::string_view text) {
  if (text == "auto") return DeviceRequest{};
  if (text == "cpu") return DeviceRequest{.kind = Kind::kCpu, .index = {}};
  if (text == "cuda") return DeviceRequest{.kind = Kind::kCuda, .index = {}};
  constexpr std::string_view kPrefix = "cuda:";
  if (text.starts_with(kPrefix)) {
    const std::string_view number = text.substr(kPrefix.size());
    int index = -1;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), index);
    if (error == std::errc() && end == number.data() + number.size() && index >= 0) {
      return DeviceRequest{.kind = Kind::kCuda, .index = index};
    }
  }
  return fail(ErrorCode::kInvalidArgument,
              "--device " + std::string(text) + " is no device; use auto, cpu, cuda, or cuda:N with N = 0, 1, ...");
}

Result<DeviceChoice> choose_device(const DeviceRequest& request, const CudaSystem& cuda, std::uint32_t local_rank) {
  using Kind = DeviceRequest::Kind;
  if (request.kind == Kind::kCpu) return DeviceChoice{};
  std::string problem;
  int index = 0;
  if (cuda.devices.empty()) {
    problem = cuda.no_devices;
  } else {
    const auto count = static_cast<std::uint32_t>(cuda.devices.size());
    index = request.index.value_or(static_cast<int>(local_rank % count));
    if (static_cast<std::uint32_t>(index) >= count) {
      problem = "this machine has " + counted(count, "CUDA device") + ", cuda:0" +
                (count == 1 ? "" : " to cuda:" + std::to_string(count - 1));
    } else if (const CudaDevice& device = cuda.devices[static_cast<std::size_t>(index)]; !device.unusable.empty()) {
      problem = device.describe() + " cannot be used: " + device.unusable;
    }
  }
  if (problem.empty()) {
    return DeviceChoice{
        .kind = DeviceKind::kCuda, .index = index, .may_fall_back = request.kind == Kind::kAuto, .why = {}};
  }
  if (request.kind == Kind::kAuto) {
    return DeviceChoice{.kind = DeviceKind::kCpu, .index = 0, .may_fall_back = false, .why = std::move(problem)};
  }
  const std::string asked = request.index ? "cuda:" + std::to_string(*request.index) : "cuda";
  return fail(ErrorCode::kInvalidArgument, "--device " + asked + ": " + problem);
}

Result<DeviceChoice> choose_device(const DeviceRequest& request, std::uint32_t local_rank) {
  if (request.kind == DeviceRequest::Kind::kCpu) return DeviceChoice{};
  return choose_device(request, inspect_cuda(), local_rank);
}

}  // namespace tributary
