// A whole worker daemon but for its control connection: the real attach server and lane, on whatever devices it is
// given, between trainers and a small server of the test's (tests/unit/worker_lane_fixture.h).
#pragma once

#include <doctest/doctest.h>
#include <spdlog/sinks/null_sink.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/job_json.h"
#include "tests/unit/temp_dir.h"
#include "worker/attach_server.h"
#include "worker/lane.h"

namespace tributary::testing {

// A worker daemon with its lanes, and a coordinator that welcomes everybody at once.
class WelcomingNode final : public LanePort, public CoordinatorPort {
 public:
  static constexpr std::uint64_t kChunkElements = 1024;

  WelcomingNode(std::shared_ptr<NodeDevices> devices, std::string endpoint) : endpoint_(std::move(endpoint)) {
    AttachServerOptions options;
    options.socket = socket();
    options.jobs.incarnation = 7;
    options.jobs.max_memory = 64u << 20;
    options.jobs.devices = std::move(devices);
    auto made = AttachServer::create(options, *this, *this, logger_);
    REQUIRE(made);
    attach_ = std::move(*made);
    auto lane = WorkerLane::start({.index = 0, .lanes = 1}, *attach_, logger_);
    REQUIRE(lane);
    lane_ = std::move(*lane);
    attach_->run();
  }
  ~WelcomingNode() override {
    attach_->stop();
    lane_.reset();
  }
  std::string socket() const { return directory_ / "w.sock"; }

  void send(const ControlMessage& message) override {
    const auto* join = std::get_if<JoinJob>(&message);
    if (join == nullptr) return;
    const ShardSlots one{};
    const auto layout = Layout::make(join->tensors, kChunkElements, {&one, 1});
    REQUIRE(layout);
    JobWelcome welcome;
    const auto job = job_from_json(join->job_json);
    REQUIRE(job);
    welcome.name = job->name;
    welcome.job = JobId(99);
    welcome.view = ViewId(++views_);
    welcome.chunk_elements = kChunkElements;
    welcome.owners = layout->owners();
    welcome.endpoints = {{endpoint_}};
    attach_->on_control(welcome);
  }
  std::vector<int> doorbells(bool) const override { return {lane_->doorbell()}; }
  void open(const std::shared_ptr<NodeJob>& job) override { lane_->open(job); }
  // All its jobs are on servers.
  void open_allreduce(const std::shared_ptr<NodeJob>&, AllreduceSetup) override {
    FAIL("no all-reduce job was opened");
  }
  void peer_address(const PeerAddress&) override { FAIL("no all-reduce job was opened"); }
  Result<std::optional<Round>> newest_checkpoint(const JobConfig&, const Layout&) const override {
    return std::optional<Round>();
  }
  void initial_values(const std::shared_ptr<NodeJob>& job) override { lane_->initial_values(job); }
  void room_in_ring(const std::shared_ptr<NodeJob>&) override {}
  void close(const std::shared_ptr<NodeJob>& job, bool keep) override { lane_->close(job, keep); }

 private:
  const std::string endpoint_;
  TempDir directory_;
  Logger logger_ = std::make_shared<spdlog::logger>("test", std::make_shared<spdlog::sinks::null_sink_mt>());
  std::uint32_t views_ = 0;
  std::unique_ptr<AttachServer> attach_;
  std::unique_ptr<WorkerLane> lane_;
};

}  // namespace tributary::testing
