// NodeDevices: whether a job's ranks are reduced on this node's devices, and the start of that reduction. One per
// worker daemon. [worker] node_reduction: "auto" takes the devices if it can, "host" never, "device" refuses the job if
// it cannot.
//
// Thread rule: open() on the attach thread, everything else on any.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/config/job_plan.h"
#include "common/daemon/log.h"
#include "worker/device/allreduce_devices.h"
#include "worker/device/cuda_device_api.h"
#include "worker/device/device_reducer.h"

namespace tributary {

class NodeDevices {
 public:
  // How long open() waits for the memory of a job that is just ending.
  static constexpr std::uint64_t kMemoryPatienceMs = 2'000;

  // api: null if there are no devices, for the reason `why_none`.
  NodeDevices(const WorkerConfig& config, std::shared_ptr<DeviceApi> api, std::string why_none, Logger logger);

  // Finds devices, or returns in words why there are none.
  using Look = std::function<Result<std::shared_ptr<DeviceApi>>()>;
  static constexpr std::chrono::milliseconds kLookPatience{20'000}, kLookInterval{1'000};

  // Finds the machine's devices. Logs them, NCCL and its settings. Looks again while the driver is about to begin
  // (kUnavailable of `look`). kUnavailable after `patience`: a daemon that is started again may find devices, and must
  // not leave them unused for its life.
  static Result<std::shared_ptr<NodeDevices>> of_this_machine(const WorkerConfig& config, const Logger& logger,
                                                              const Look& look = make_cuda_device_api,
                                                              std::chrono::milliseconds patience = kLookPatience,
                                                              std::chrono::milliseconds interval = kLookInterval);

  // May a rank with its gradients on device `uuid` (empty: on the host) be part of a job here?
  Status admit(std::string_view uuid) const;
  // uuids: of all local ranks. Null: reduce on the host. Errors only if that is not permitted.
  Result<std::shared_ptr<DeviceReduction>> open(const ViewPlan& view, std::span<const std::string> uuids);

  // The same for an all-reduce job: null, with the reason in `why`, if NCCL cannot add up its ranks here. NodeJobs asks
  // the other nodes.
  Result<std::shared_ptr<AllreduceDevices>> open_allreduce(const ViewPlan& view, NodeRank node,
                                                           std::span<const std::string> uuids, std::string& why);
  // Returns "NCCL 2.28.9": all nodes of an all-reduce job must have the same.
  std::string collectives_number() const;
  bool required() const {
    return config_.node_reduction == NodeReduction::kDevice;
  }  // refused is what goes over the host
  std::uint32_t patience_ms() const { return config_.collective_timeout_ms; }

  // For status.
  NodeReduction mode() const { return config_.node_reduction; }
  const DeviceApi* api() const { return api_.get(); }
  std::string lost() const { return api_ ? api_->lost() : std::string(); }  // DeviceApi::lost()
  const std::string& why_none() const { return why_none_; }
  const std::string& collectives() const { return collectives_; }  // version, or why there is none; empty: not needed
  const std::vector<std::string>& settings() const { return settings_; }
  const std::string& mps() const { return mps_; }  // mps_folder() at the start, if there are devices

 private:
  Result<AllreducePlan> allreduce_plan(const ViewPlan& view, NodeRank node, std::span<const std::string> uuids) const;
  // Makes a job's memory, and waits a moment if there is none while that of an older view is being given back.
  template <class Make>
  auto patiently(Make make);
  Result<DevicePlan> plan(std::span<const std::string> uuids) const;
  Result<std::shared_ptr<DeviceReduction>> create(const DevicePlan& plan);

  const WorkerConfig config_;
  const std::shared_ptr<DeviceApi> api_;
  const std::string why_none_;
  Logger logger_;
  std::string collectives_;
  std::vector<std::string> settings_;
  std::string mps_;
  std::vector<std::weak_ptr<DeviceLender>> opened_;
};

}  // namespace tributary
