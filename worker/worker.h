// Worker: puts the parts of a tributary-worker together, in the order they depend on each other,
// and takes them apart again.
//
//   coordinator -> attach socket -> lanes -> control -> attach thread -> admin HTTP
//
// The coordinator is here only in a cluster without servers, on the worker that is told to serve it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/config/config.h"
#include "common/daemon/admin_http.h"
#include "common/daemon/log.h"
#include "common/daemon/metrics.h"
#include "common/security/credentials.h"
#include "server/coordinator/coordinator.h"
#include "worker/allreduce/allreduce_lane.h"
#include "worker/attach_server.h"
#include "worker/control.h"
#include "worker/node/lane.h"

namespace tributary {

class Worker final : private CoordinatorPort, private LanePort, private AllreducePort {
 public:
  static constexpr std::uint16_t kMaxLanes = 64;  // each trainer gets an eventfd per lane
  static_assert(kMaxLanes + 2 <= AttachSocket::kMaxFds);
  // After everything of this process is stopped, the coordinator's last words to the others get this long to leave.
  static constexpr std::uint64_t kDrainGraceMs = 300;

  // Errors as the parts word them: the socket or the admin port is taken, an address that is none, ...
  static Result<std::unique_ptr<Worker>> start(WorkerConfig config, Logger logger);
  ~Worker() override;
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // One line for whoever started the process: ready {"admin":...,"pid":...,"socket":...,"name":...}; with "coordinator"
  // if it serves one.
  std::string ready_line() const;
  // Serving begins when the coordinator knows this worker. kConfig: there can be none at its address.
  std::string waits_for() const;
  Result<bool> serving() const;

  std::string broken() const;  // as Daemon has it

  // Stops this node's jobs cleanly; drained() is true when that is done.
  void drain();
  bool drained();
  std::uint64_t progress() const;  // of a stop, as Daemon has it
  // Gives up what could not be stopped cleanly: the coordinator is told before the destructor returns.
  void abandon(const std::string& reason) { attach_->abandon(reason); }

 private:
  Worker(WorkerConfig config, Logger logger);
  Status start_parts();
  Status start_coordinator();
  Status start_lanes();
  Status start_control(std::uint64_t incarnation);
  Status start_admin();

  void send(const ControlMessage& message) override { control_->send(message); }
  void publish(const PeerAddress& address) override { attach_->publish(address); }
  void checkpointed(const SnapshotDone& done) override { attach_->checkpointed(done); }
  std::vector<int> doorbells(bool allreduce) const override;
  void open(const std::shared_ptr<NodeJob>& job) override;
  void peer_address(const PeerAddress& address) override;
  Result<std::optional<Round>> newest_checkpoint(const JobConfig& config, const Layout& layout) const override;
  void initial_values(const std::shared_ptr<NodeJob>& job) override;
  void close(const std::shared_ptr<NodeJob>& job, bool keep) override;
  void trace(const std::shared_ptr<NodeJob>& job, const std::vector<std::shared_ptr<TraceBuffer>>& buffers) override;

  WorkerConfig config_;
  const WorkerConfig configured_;  // as the file has it
  Credentials credentials_;
  Logger logger_;
  std::unique_ptr<Coordinator> coordinator_;
  std::uint64_t drained_ms_ = 0;  // 0: not yet
  std::shared_ptr<NodeDevices> devices_;
  std::unique_ptr<AttachServer> attach_;  // first: lanes and control report to it until they are gone
  std::vector<std::unique_ptr<WorkerLane>> lanes_;
  std::unique_ptr<AllreduceLane> allreduce_;
  std::unique_ptr<WorkerControl> control_;
  Metrics metrics_;
  std::unique_ptr<AdminHttp> admin_;
};

}  // namespace tributary
