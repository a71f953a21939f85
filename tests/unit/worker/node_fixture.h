// A worker daemon without lanes and without a coordinator: the real attach server and shared memory,
// with fakes behind its ports.
#pragma once

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "common/daemon/log.h"
#include "session/session.h"
#include "tests/gradient_place.h"
#include "tests/unit/expect.h"
#include "tests/unit/required.h"
#include "tests/unit/temp_dir.h"
#include "worker/attach_server.h"

namespace tributary::testing {

// The coordinator as the attach server sees it: records its messages.
class FakeCoordinator final : public CoordinatorPort {
 public:
  void send(const ControlMessage& message) override {
    const std::lock_guard lock(mutex_);
    messages_.push_back(message);
  }
  template <class Message>
  std::vector<Message> all() const {
    const std::lock_guard lock(mutex_);
    std::vector<Message> found;
    for (const auto& message : messages_) {
      if (const auto* m = std::get_if<Message>(&message)) found.push_back(*m);
    }
    return found;
  }
  // Waits until `count` messages of the kind have come, and returns the last one.
  template <class Message>
  Message await(std::size_t count = 1) const {
    REQUIRE(eventually([&] { return all<Message>().size() >= count; }));
    return all<Message>().back();
  }
  // Holds back all senders until the lock is released.
  std::unique_lock<std::mutex> hold() const { return std::unique_lock(mutex_); }

 private:
  mutable std::mutex mutex_;
  std::vector<ControlMessage> messages_;
};

// Lanes that the test drives: they publish versions, and "train" by adding the ranks' gradients.
class FakeLanes final : public LanePort {
 public:
  explicit FakeLanes(std::size_t lanes) {
    for (std::size_t i = 0; i < lanes; ++i) doorbells_.push_back(std::move(*EventFd::create()));
  }
  std::vector<int> doorbells(bool allreduce) const override {
    if (allreduce) return {doorbells_[0].fd()};
    std::vector<int> fds;
    for (const EventFd& doorbell : doorbells_) fds.push_back(doorbell.fd());
    return fds;
  }
  void open(const std::shared_ptr<NodeJob>& job) override {
    if (!job->spec().init() && answers) publish(*job, Version(job->view().start.value));
    const std::lock_guard lock(mutex_);
    job_ = job;
    ++opened_;
  }
  void peer_address(const PeerAddress& address) override {
    const std::lock_guard lock(mutex_);
    addresses_.push_back(address);
  }
  Result<std::optional<Round>> newest_checkpoint(const JobConfig&, const Layout&) const override {
    const std::lock_guard lock(mutex_);
    ++looked_;
    return checkpoint_;
  }
  void initial_values(const std::shared_ptr<NodeJob>& job) override { publish(*job, Version(0)); }
  void close(const std::shared_ptr<NodeJob>& job, bool /*keep*/) override {
    const std::lock_guard lock(mutex_);
    if (job_ == job) job_.reset();
    ++closed_;
  }

  std::shared_ptr<NodeJob> job() const {
    const std::lock_guard lock(mutex_);
    return job_;
  }
  int opened() const {
    const std::lock_guard lock(mutex_);
    return opened_;
  }
  int closed() const {
    const std::lock_guard lock(mutex_);
    return closed_;
  }
  std::vector<PeerAddress> addresses() const {
    const std::lock_guard lock(mutex_);
    return addresses_;
  }
  void set_checkpoint(Result<std::optional<Round>> checkpoint) {
    const std::lock_guard lock(mutex_);
    checkpoint_ = std::move(checkpoint);
  }
  int looked() const {  // for a checkpoint
    const std::lock_guard lock(mutex_);
    return looked_;
  }
  bool rung(std::size_t lane) const {
    std::uint64_t count = 0;
    return ::read(doorbells_[lane].fd(), &count, sizeof count) == sizeof count;
  }
  std::atomic<bool> answers = true;  // the servers do, as a view opens
  // Waits until every rank is ready with every tensor for `round`, then answers it.
  void complete(Round round) const {
    const std::shared_ptr<NodeJob> job = this->job();
    REQUIRE(job);
    const std::size_t tensors = job->layout().tensors().size();
    REQUIRE(eventually([&] {
      for (std::uint32_t rank = 0; rank < job->spec().ranks; ++rank) {
        for (std::size_t t = 0; t < tensors; ++t) {
          if (job->tensor_words(rank)[t].round.load(std::memory_order_acquire) < round.value) return false;
        }
      }
      return true;
    }));
    for (std::uint32_t rank = 0; rank < job->spec().ranks; ++rank) {
      for (std::uint64_t i = 0; i < job->layout().flat_elements(); ++i) {
        job->parameters()[i] += gradient_place(*job, rank, round)[i];
      }
    }
    publish(*job, Version(round.value));
  }
  static void publish(const NodeJob& job, Version version) {
    for (std::size_t c = 0; c < job.layout().chunks(); ++c) publish_chunk(job, c, version);
  }
  static void publish_chunk(const NodeJob& job, std::size_t chunk, Version version) {
    job.publish(ChunkIndex(chunk), version);
    job.header().announce();
  }

 private:
  mutable std::mutex mutex_;
  std::vector<EventFd> doorbells_;
  std::shared_ptr<NodeJob> job_;  // the newest that is open
  int opened_ = 0, closed_ = 0;
  mutable int looked_ = 0;
  std::vector<PeerAddress> addresses_;
  Result<std::optional<Round>> checkpoint_ = std::optional<Round>(Round());
};

inline std::vector<TensorSpec> small_model() {
  return {{"weight", {30, 50}}, {"bias", {50}}, {"head", {3000}}};
}

struct FakeNode {
  explicit FakeNode(std::size_t lane_count = 1, std::uint64_t max_memory = 64u << 20,
                    std::shared_ptr<NodeDevices> devices = nullptr)
      : lanes(lane_count) {
    AttachServerOptions options;
    options.socket = socket();
    options.jobs.incarnation = 7;
    options.jobs.max_memory = max_memory;
    options.jobs.devices = std::move(devices);
    server = required(AttachServer::create(options, coordinator, lanes, logger));
  }
  void run() { server->run(); }
  std::string socket() const { return directory / "w.sock"; }

  SessionOptions session_options(std::uint32_t local_rank = 0, std::uint32_t local_world_size = 1,
                                 std::uint32_t world_size = 0) const {
    SessionOptions options;
    options.socket = socket();
    options.job.name = "a-job";
    options.topology.rank = options.topology.local_rank = local_rank;
    options.topology.local_world_size = local_world_size;
    options.topology.world_size = world_size == 0 ? local_world_size : world_size;
    options.attach_timeout = std::chrono::seconds(20);
    return options;
  }
  using Attached = std::future<Result<std::unique_ptr<Session>>>;
  Attached attach(SessionOptions options, std::vector<TensorSpec> tensors = small_model()) const {
    return std::async(std::launch::async, [options = std::move(options), tensors = std::move(tensors)] {
      return Session::attach(options, tensors);
    });
  }
  // Answers the newest JoinJob as the coordinator does.
  void welcome(std::uint32_t view = 1, Round resume = Round(0), std::uint64_t chunk_elements = 1024,
               std::vector<std::vector<std::byte>> rank_states = {}) {
    server->on_control(welcome_message(view, resume, chunk_elements, std::move(rank_states)));
  }
  JobWelcome welcome_message(std::uint32_t view = 1, Round resume = Round(0), std::uint64_t chunk_elements = 1024,
                             std::vector<std::vector<std::byte>> rank_states = {}) {
    const JoinJob join = coordinator.all<JoinJob>().back();
    const ShardSlots slots[] = {{static_cast<std::uint16_t>(lanes.doorbells(false).size()), 1.0}};
    const auto layout = required(Layout::make(join.tensors, chunk_elements, slots));
    JobWelcome message{.job = JobId(99),
                       .view = ViewId(view),
                       .chunk_elements = chunk_elements,
                       .owners = layout.owners(),
                       .endpoints = {{"inproc://nobody"}},
                       .resume = resume.value != 0,
                       .resume_round = resume,
                       .name = "a-job",
                       .node = join.node,
                       .nodes = join.nodes,
                       .rank_states = std::move(rank_states)};
    return message;
  }
  // Waits until the node has joined as often as there were views, and welcomes it to this one.
  void admit(std::uint32_t view = 1, Round resume = Round(0)) {
    coordinator.await<JoinJob>(view);
    welcome(view, resume);
  }
  static std::unique_ptr<Session> session_of(Attached attached) { return required(attached.get()); }
  // Attaches the only rank of the node.
  std::unique_ptr<Session> session(const SessionOptions& options, std::uint32_t view = 1, Round resume = Round(0)) {
    Attached attached = attach(options);
    admit(view, resume);
    return session_of(std::move(attached));
  }
  // Attaches all local ranks and starts them.
  std::vector<std::unique_ptr<Session>> sessions(std::uint32_t ranks, std::uint32_t view = 1, Round resume = Round(0)) {
    const std::size_t joins = coordinator.all<JoinJob>().size();
    std::vector<Attached> attached;
    for (std::uint32_t rank = 0; rank < ranks; ++rank) attached.push_back(attach(session_options(rank, ranks)));
    coordinator.await<JoinJob>(joins + 1);
    welcome(view, resume);
    std::vector<std::unique_ptr<Session>> result;
    for (auto& one : attached) result.push_back(session_of(std::move(one)));
    for (auto& session : result) REQUIRE(session->start());
    return result;
  }

  TempDir directory;
  Logger logger = quiet_logger();
  FakeCoordinator coordinator;
  FakeLanes lanes;
  std::unique_ptr<AttachServer> server;  // last: it uses the others
};

struct RunningNode : FakeNode {
  explicit RunningNode(std::size_t lane_count = 1, std::uint64_t max_memory = 64u << 20,
                       std::shared_ptr<NodeDevices> devices = nullptr)
      : FakeNode(lane_count, max_memory, std::move(devices)) {
    run();
  }
};

inline void ready_all(Session& session, std::uint64_t weight = 1) {
  for (std::size_t t = session.layout().tensors().size(); t-- > 0;) session.ready(t, weight);
}

inline Error error_of(FakeNode::Attached attached) {
  const auto session = failure_of(attached.get());
  return session;
}

}  // namespace tributary::testing
