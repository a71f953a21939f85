// Worker: puts the parts of a tributary-worker together, in the order they depend on each other,
// and takes them apart again.
//
//   attach socket -> lanes -> control -> attach thread -> admin HTTP
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/admin_http.h"
#include "common/config.h"
#include "common/log.h"
#include "common/metrics.h"
#include "common/result.h"
#include "worker/attach_server.h"
#include "worker/control.h"
#include "worker/lane.h"

namespace tributary {

class Worker final : private CoordinatorPort, private LanePort {
 public:
  static constexpr std::uint16_t kMaxLanes = 64;  // each trainer gets an eventfd per lane
  static_assert(kMaxLanes + 2 <= AttachSocket::kMaxFds);

  // Errors as the parts word them: the socket or the admin port is taken, an address that is none, ...
  static Result<std::unique_ptr<Worker>> start(WorkerConfig config, Logger logger);
  ~Worker() override;
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // One line for whoever started the process: ready {"admin":...,"pid":...,"socket":...,"name":...}
  std::string ready_line() const;

  // Stops this node's jobs in good order; drained() is true when that is done.
  void drain() { attach_->drain(); }
  bool drained() const;
  // Gives up what could not be stopped in good order: the coordinator is told before the destructor returns.
  void abandon(const std::string& reason) { attach_->abandon(reason); }

 private:
  Worker(WorkerConfig config, Logger logger);
  Status start_parts();

  void send(const ControlMessage& message) override { control_->send(message); }
  std::vector<int> doorbells() const override;
  void open(const std::shared_ptr<NodeJob>& job) override;
  void initial_values(const std::shared_ptr<NodeJob>& job) override;
  void close(const std::shared_ptr<NodeJob>& job, bool keep) override;

  WorkerConfig config_;
  Logger logger_;
  std::shared_ptr<NodeDevices> devices_;
  std::unique_ptr<AttachServer> attach_;  // first: lanes and control report to it until they are gone
  std::vector<std::unique_ptr<WorkerLane>> lanes_;
  std::unique_ptr<WorkerControl> control_;
  Metrics metrics_;
  std::unique_ptr<AdminHttp> admin_;
};

}  // namespace tributary
