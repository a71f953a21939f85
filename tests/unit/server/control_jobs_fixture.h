// ControlJobs without lanes, threads or disks: what it has done is recorded, and the test carries it out.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/config/job_json.h"
#include "common/daemon/log.h"
#include "server/control_jobs.h"
#include "tests/sim/disk/disk_sim.h"

namespace tributary::control_jobs_test {

struct FakeLane final : LaneCommands {
  void open(ShardJob, std::shared_ptr<LaneJobGauges> of) override {
    said.emplace_back("open");
    gauges = std::move(of);
  }
  void reopen(ShardJob, std::shared_ptr<LaneJobGauges>) override { said.emplace_back("reopen"); }
  void park(JobId, ViewId) override { said.emplace_back("park"); }
  void drop_parked(JobId) override { said.emplace_back("drop parked"); }
  void restore(JobId, ViewId, ChunkIndex, ChunkState) override { said.emplace_back("restore"); }
  void opened(JobId, ViewId, bool) override { said.emplace_back("opened"); }
  void prepare_snapshot(JobId, ViewId) override { said.emplace_back("prepare"); }
  void snapshot_at(JobId, ViewId, Round) override { said.emplace_back("snapshot"); }
  void snapshot_written(JobId) override { said.emplace_back("written"); }
  void decide(const RoundDecision&) override { said.emplace_back("decide"); }
  void stop_job(JobId, ViewId, bool, Round, bool park) override { said.emplace_back(park ? "stop and park" : "stop"); }
  void await_longer(JobId, ViewId) override { said.emplace_back("await longer"); }
  void trace(JobId, ViewId, std::shared_ptr<TraceBuffer> into) override {
    said.emplace_back(into ? "trace" : "end of trace");
    if (into) buffer = std::move(into);
  }
  std::vector<std::string> said;
  std::shared_ptr<LaneJobGauges> gauges;  // of the job opened last
  std::shared_ptr<TraceBuffer> buffer;    // of the last trace
};

struct FakeSnapshots final : SnapshotOrders {
  void expect(SnapshotPlan plan) override { expected.push_back(std::move(plan)); }
  void hurry(JobId, Round round) override { hurried.push_back(round); }
  void abandon(JobId, Round round, const std::string&) override { abandoned.push_back(round); }
  std::vector<SnapshotPlan> expected;
  std::vector<Round> hurried, abandoned;
};

// The store's thread: it does nothing before the test's command.
struct FakeOrders final : StoreOrders {
  void load(SnapshotInfo info, EachChunk each, Done done) override {
    loads.push_back({std::move(info), std::move(each), std::move(done)});
  }
  void run(std::function<Status()> what, Done done) override {
    work.push_back([what = std::move(what), done = std::move(done)] { done(what()); });
  }
  void carry_out() {
    for (; !work.empty(); work.pop_front()) work.front()();
  }
  struct Load {
    SnapshotInfo info;
    EachChunk each;
    Done done;
    // The only chunk of the job's.
    Status chunk() const {
      static BufferPool pool(4096, 4);
      ChunkState state;
      state.params = pool.acquire(400);
      state.version = Version(info.round.value);
      return each(ChunkIndex(0), std::move(state));
    }
  };
  std::vector<Load> loads;
  std::deque<std::function<void()>> work;
};

// The reader of other servers' snapshots: it does nothing before the test's command.
struct FakeFetches final : FetchOrders {
  void fetch(std::shared_ptr<Fetch> what, Done done) override { all.emplace_back(std::move(what), std::move(done)); }
  void hurry(const std::shared_ptr<Fetch>&) override { ++hurried; }
  void withdraw(const std::shared_ptr<Fetch>&) override { ++withdrawn; }
  std::uint64_t dealt() const override { return 0; }
  std::vector<std::pair<std::shared_ptr<Fetch>, Done>> all;
  int hurried = 0, withdrawn = 0;
};

struct Server : ControlJobsOutput {
  explicit Server(const ServerConfig& with = {})
      : jobs(with, &store, quiet_logger(), static_cast<ControlJobsOutput&>(*this)) {
    jobs.start({&lane}, {&snapshots, &orders, &records, &fetches});
  }
  void send(ControlMessage message) override { sent.push_back(std::move(message)); }
  void send_or_drop(const ControlMessage& message) override { sent.push_back(message); }
  void hello() override {}
  void changed() override {}
  std::uint64_t now_ms() const override { return 1000; }

  OpenJob open_message(std::uint32_t view, bool kept = false) const {
    JobConfig config;
    config.name = "job";
    OpenJob open;
    open.job = JobId(7);
    open.view = ViewId(view);
    open.job_json = to_canonical_json(config);
    open.tensors = {{"w", {100}}};
    open.chunk_elements = 1024;
    open.owners = {ChunkOwner{}};
    open.kept = kept;
    return open;
  }
  void open(std::uint32_t view, bool kept = false) {
    jobs.on(open_message(view, kept));
    orders.carry_out();
    jobs.lane_opened(JobId(7), ViewId(view), {});
  }
  // With the snapshot of this round.
  OpenJob resume_message(std::uint32_t view, std::uint64_t round = 5) const {
    OpenJob open = open_message(view);
    open.resume = true;
    open.resume_round = Round(round);
    return open;
  }
  void restart(std::uint32_t view) { jobs.on(StopJob{JobId(7), ViewId(view), StopKind::kRestart, Round(), "lost"}); }
  template <class M>
  std::vector<M> take() {
    std::vector<M> found;
    for (const ControlMessage& message : sent) {
      if (const M* m = std::get_if<M>(&message)) found.push_back(*m);
    }
    sent.clear();
    return found;
  }

  FakeLane lane;
  FakeSnapshots snapshots;
  sim::Disk disk;
  sim::StoreSim store{disk, ShardIndex(0), true};
  FakeOrders orders, records;
  FakeFetches fetches;
  std::vector<ControlMessage> sent;
  ControlJobs jobs;
};

struct OpenServer : Server {
  explicit OpenServer(std::uint32_t view, bool kept = false) { open(view, kept); }
};

}  // namespace tributary::control_jobs_test
