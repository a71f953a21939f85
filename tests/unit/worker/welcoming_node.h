// A whole worker daemon but for its control connection: the real attach server and lanes, on given devices, between
// trainers and a small server of the test's (tests/unit/worker/node/worker_lane_fixture.h). All-reduce jobs have only
// this node.
#pragma once

#include <doctest/doctest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/config/job_json.h"
#include "common/daemon/log.h"
#include "tests/unit/required.h"
#include "tests/unit/temp_dir.h"
#include "worker/allreduce/allreduce_lane.h"
#include "worker/attach_server.h"
#include "worker/node/lane.h"

namespace tributary::testing {

// A worker daemon with its lanes, and a coordinator that welcomes every join at once and reports all state as saved.
class WelcomingNode final : public LanePort, public CoordinatorPort, private AllreducePort {
 public:
  static constexpr std::uint64_t kChunkElements = 1024;

  WelcomingNode(std::shared_ptr<NodeDevices> devices, std::string endpoint) : endpoint_(std::move(endpoint)) {
    AttachServerOptions options;
    options.socket = socket();
    options.jobs.incarnation = 7;
    options.jobs.max_memory = 64u << 20;
    options.jobs.devices = std::move(devices);
    attach_ = required(AttachServer::create(options, *this, *this, logger_));
    lane_ = required(WorkerLane::start({.index = 0, .lanes = 1}, *attach_, logger_));
    allreduce_ = required(AllreduceLane::start({}, *attach_, *this, logger_));
    attach_->run();
  }
  ~WelcomingNode() override {
    attach_->stop();
    lane_.reset();
    allreduce_.reset();
  }
  std::string socket() const { return directory_ / "w.sock"; }

  void send(const ControlMessage& message) override {
    if (const auto* leave = std::get_if<LeaveJob>(&message); leave && leave->kind == LeaveKind::kFinished) {
      attach_->on_control(StopJob{leave->job, leave->view, StopKind::kFinished, leave->round, "training is complete"});
      attach_->on_control(SnapshotDone{leave->job, leave->view, leave->round, true, 0, {}});
    }
    const auto* join = std::get_if<JoinJob>(&message);
    if (join == nullptr) return;
    const ShardSlots one{};
    const auto layout = required(Layout::make(join->tensors, kChunkElements, {&one, 1}));
    JobWelcome welcome;
    const auto job = required(job_from_json(join->job_json));
    welcome.name = job.name;
    welcome.job = JobId(99);
    welcome.view = ViewId(++views_);
    welcome.chunk_elements = kChunkElements;
    welcome.owners = layout.owners();
    welcome.endpoints = {{endpoint_}};
    attach_->on_control(welcome);
  }
  std::vector<int> doorbells(bool allreduce) const override {
    return {allreduce ? allreduce_->doorbell() : lane_->doorbell()};
  }
  void open(const std::shared_ptr<NodeJob>& job) override {
    if (!job->plan().on_servers()) return allreduce_->open(job);
    lane_->open(job);
  }
  void peer_address(const PeerAddress&) override { FAIL("there is no other node"); }
  Result<std::optional<Round>> newest_checkpoint(const JobConfig&, const Layout&) const override {
    return std::optional<Round>(Round());
  }
  void initial_values(const std::shared_ptr<NodeJob>& job) override {
    if (!job->plan().on_servers()) return allreduce_->initial_values(job);
    lane_->initial_values(job);
  }
  void close(const std::shared_ptr<NodeJob>& job, bool keep) override {
    if (!job->plan().on_servers()) return allreduce_->close(job, keep);
    lane_->close(job, keep);
  }

 private:
  void publish(const PeerAddress&) override { FAIL("there is no other node"); }
  void checkpointed(const SnapshotDone&) override {}

  const std::string endpoint_;
  TempDir directory_;
  Logger logger_ = quiet_logger();
  std::uint32_t views_ = 0;
  std::unique_ptr<AttachServer> attach_;
  std::unique_ptr<WorkerLane> lane_;
  std::unique_ptr<AllreduceLane> allreduce_;
};

}  // namespace tributary::testing
