#include "worker/node/node_devices.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "common/base/clock.h"
#include "common/devices/cuda_devices.h"
#include "worker/device/cuda_device_api.h"

namespace tributary {
namespace {

constexpr std::chrono::milliseconds kMemoryInterval{20};

}  // namespace

NodeDevices::NodeDevices(const WorkerConfig& config, std::shared_ptr<DeviceApi> api, std::string why_none,
                         Logger logger)
    : config_(config), api_(std::move(api)), why_none_(std::move(why_none)), logger_(std::move(logger)) {
  if (!api_) return;
  settings_ = api_->collectives_settings();
  mps_ = mps_folder();
  if (api_->devices().size() == 1 && config_.nccl != NcclUse::kAlways) return;
  const auto version = api_->collectives_version();
  collectives_ = version ? *version : version.error().message;
}

Result<std::shared_ptr<NodeDevices>> NodeDevices::of_this_machine(const WorkerConfig& config, const Logger& logger,
                                                                  const Look& look, std::chrono::milliseconds patience,
                                                                  std::chrono::milliseconds interval) {
  if (config.node_reduction == NodeReduction::kHost) {
    return std::make_shared<NodeDevices>(config, nullptr, "[worker] node_reduction is \"host\"", logger);
  }
  const std::uint64_t deadline = steady_ms() + static_cast<std::uint64_t>(patience.count());
  auto api = look();
  const auto not_yet = [&api] { return !api && api.error().code == ErrorCode::kUnavailable; };
  if (not_yet()) logger->warn("looking for devices again for {} s: {}", patience.count() / 1000, api.error().message);
  while (not_yet()) {
    if (steady_ms() >= deadline) {
      return fail(ErrorCode::kUnavailable, "this machine's devices cannot be used yet: " + api.error().message +
                                               "; start the worker again when they can, or let it reduce on the host: "
                                               "[worker] node_reduction = \"host\"");
    }
    std::this_thread::sleep_for(interval);
    api = look();
  }
  const std::string why = api ? std::string() : api.error().message;
  auto devices = std::make_shared<NodeDevices>(config, api ? std::move(*api) : nullptr, why, logger);
  if (!devices->api()) {
    if (config.node_reduction == NodeReduction::kDevice) {
      logger->warn("[worker] node_reduction is \"device\", so every trainer will be refused: {}", why);
    } else if (nvidia_driver_module().empty()) {
      logger->info("ranks are reduced on the host: {}", why);
    } else {
      logger->warn("ranks are reduced on the host, although this machine has NVIDIA's driver: {}", why);
    }
    return devices;
  }
  for (const DeviceInfo& info : devices->api()->devices()) {
    logger->info("{}, {}, {} MB, NUMA node {}", info.name, info.uuid, info.memory / 1'000'000,
                 info.numa_node < 0 ? std::string("unknown") : std::to_string(info.numa_node));
  }
  if (devices->mps().empty()) {
    logger->info(
        "MPS does not run: this worker and its trainers take turns on each device; tributary doctor says more");
  }
  logger->info("{}", devices->collectives().empty() ? "one device: only all-reduce jobs over several nodes need NCCL"
                                                    : devices->collectives());
  for (const std::string& setting : devices->settings()) logger->info("{}", setting);
  return devices;
}

Status NodeDevices::admit(std::string_view uuid) const {
  if (!required()) return {};
  const std::string says = " (this worker has [worker] node_reduction = \"device\"; \"auto\" would reduce on the host)";
  if (!api_) return fail(ErrorCode::kUnavailable, "this worker cannot reduce on devices: " + why_none_ + says);
  if (uuid.empty()) {
    return fail(ErrorCode::kInvalidArgument,
                "this trainer's gradients are in host memory, but ranks are reduced on devices here" + says);
  }
  const auto known = [&](const DeviceInfo& info) { return info.uuid == uuid; };
  if (std::ranges::any_of(api_->devices(), known)) return {};
  return fail(ErrorCode::kNotFound, "this trainer computes on device " + std::string(uuid) +
                                        ", which this worker does not see; give both the same devices "
                                        "(CUDA_VISIBLE_DEVICES)" +
                                        says);
}

// Devices in the order of the first rank on each.
Result<DevicePlan> NodeDevices::plan(std::span<const std::string> uuids) const {
  DevicePlan plan;
  plan.always_collectives = config_.nccl == NcclUse::kAlways;
  for (std::size_t rank = 0; rank < uuids.size(); ++rank) {
    const std::string who = "local rank " + std::to_string(rank);
    if (uuids[rank].empty()) return fail(ErrorCode::kInvalidArgument, who + "'s gradients are in host memory");
    const auto& infos = api_->devices();
    const auto info = std::ranges::find(infos, uuids[rank], &DeviceInfo::uuid);
    if (info == infos.end()) {
      return fail(ErrorCode::kNotFound,
                  who + " computes on device " + uuids[rank] + ", which this worker does not see");
    }
    const DeviceIndex device(static_cast<std::uint32_t>(info - infos.begin()));
    auto at = std::ranges::find(plan.devices, device);
    if (at == plan.devices.end()) at = plan.devices.insert(at, device);
    plan.position_of_rank.push_back(static_cast<std::uint32_t>(at - plan.devices.begin()));
  }
  return plan;
}

// The memory of this node's last view may be given back at this very moment.
template <class Make>
auto NodeDevices::patiently(Make make) {
  const std::uint64_t deadline = steady_ms() + kMemoryPatienceMs;
  while (true) {
    std::erase_if(opened_, [](const auto& one) { return one.expired(); });
    auto made = make();
    if (made) opened_.push_back(*made);
    const bool may_help = !made && made.error().code == ErrorCode::kLimit && !opened_.empty();
    if (!may_help || steady_ms() >= deadline) return made;
    std::this_thread::sleep_for(kMemoryInterval);
  }
}

Result<std::shared_ptr<DeviceReduction>> NodeDevices::create(const DevicePlan& plan) {
  return patiently([&] {
    DeviceReductionOptions options;
    options.engine.timeout_ns = std::uint64_t{config_.collective_timeout_ms} * 1'000'000;
    return DeviceReduction::create(api_, plan, std::move(options), logger_);
  });
}

Result<std::shared_ptr<DeviceReduction>> NodeDevices::open(const ViewPlan& view, std::span<const std::string> uuids) {
  const bool wanted = std::ranges::any_of(uuids, [](const std::string& uuid) { return !uuid.empty(); });
  if (!required() && (!wanted || !api_)) return nullptr;
  for (const std::string& uuid : uuids) {
    if (Status admitted = admit(uuid); !admitted) return tl::unexpected(admitted.error());
  }
  Result<DevicePlan> made = plan(uuids);
  if (have_holders(view.layout->tensors())) {
    made = fail(ErrorCode::kTopology, "its ranks hold different parts of the model");
  }
  if (made) {
    made->layout = view.layout;
    made->push = view.plan->push;
    made->pull = view.plan->pull;
    Result<std::shared_ptr<DeviceReduction>> reduction = create(*made);
    if (reduction) return reduction;
    made = tl::unexpected(reduction.error());
  }
  if (required()) {
    return fail(made.error().code, "job '" + view.name() + "' cannot be reduced on devices: " + made.error().message);
  }
  logger_->warn("job '{}' is reduced on the host: {}", view.name(), made.error().message);
  return nullptr;
}

// NCCL refuses two ranks on one device.
Result<AllreducePlan> NodeDevices::allreduce_plan(const ViewPlan& view, NodeRank node,
                                                  std::span<const std::string> uuids) const {
  if (!api_) return fail(ErrorCode::kUnavailable, why_none_);
  Result<DevicePlan> devices = plan(uuids);
  if (!devices) return tl::unexpected(devices.error());
  for (std::uint32_t position = 0; position < devices->width(); ++position) {
    if (devices->ranks_on(position).size() > 1) {
      return fail(ErrorCode::kInvalidArgument,
                  devices->describe(*api_, position) + " is several ranks' at once, and NCCL takes one rank a device");
    }
  }
  AllreducePlan made;
  made.node = std::move(*devices);
  made.node.layout = view.layout;
  made.flat = view.plan->config.allreduce.algorithm == AllreduceAlgorithm::kFlat;
  made.nodes = view.nodes;
  made.rank = node;
  if (!made.collectives()) return made;
  const Result<std::string> version = api_->collectives_version();
  if (!version) return tl::unexpected(version.error());
  return made;
}

Result<std::shared_ptr<AllreduceDevices>> NodeDevices::open_allreduce(const ViewPlan& view, NodeRank node,
                                                                      std::span<const std::string> uuids,
                                                                      std::string& why) {
  const bool wanted = std::ranges::any_of(uuids, [](const std::string& uuid) { return !uuid.empty(); });
  if (!wanted && !required()) return nullptr;
  auto made = allreduce_plan(view, node, uuids).and_then([&](const AllreducePlan& plan) {
    return patiently([&] {
      return AllreduceDevices::create(api_, plan, static_cast<std::uint32_t>(view.plan->optimizer->slots()),
                                      std::uint64_t{config_.collective_timeout_ms} * 1'000'000);
    });
  });
  if (made) return made;
  why = made.error().message;
  if (!required()) return nullptr;
  return fail(made.error().code, "job '" + view.name() + "' cannot be added up on devices: " + why +
                                     " (this worker has [worker] node_reduction = \"device\")");
}

std::string NodeDevices::collectives_number() const {
  const Result<std::string> version = api_ ? api_->collectives_version() : Result<std::string>(std::string());
  return version ? version->substr(0, version->find(" (")) : std::string();
}

}  // namespace tributary
