// AttachServer: the worker's Unix socket and the thread that serves it: accepts trainers, frames their messages, and
// drives NodeJobs. Everything that concerns NodeJobs runs on this thread; others post to it.
//
// A trainer's end is that of its process, also while children of it have the connection.
//
// It trusts no trainer: a bounded number of connections, bounded messages, a deadline for those that never attach, and
// a bounded wait for one that does not read. A process of another user is turned away, unless it is root's.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "common/base/result.h"
#include "common/daemon/accept_pause.h"
#include "common/daemon/command_queue.h"
#include "common/daemon/log.h"
#include "session/shared/attach_socket.h"
#include "worker/control.h"
#include "worker/node_jobs.h"
#include "worker/peer_process.h"

namespace tributary {

// Payload bytes that a node pushed and that servers answered.
struct NodeTraffic {
  std::uint64_t pushed = 0, pulled = 0;
  void add(const NodeJob& job);
};

struct AttachServerOptions {
  std::string socket;
  NodeJobsOptions jobs;
};

class AttachServer final : public WorkerLaneListener, public WorkerControlListener, private TrainerPort {
 public:
  static constexpr std::size_t kMaxConnections = 1024;
  static constexpr int kTickMs = 50;
  static constexpr std::uint64_t kIdleTimeoutMs = 10'000;  // of a connection that belongs to no job
  static constexpr int kBatch = 16;                        // messages per connection and turn

  // Binds. A socket file that nobody listens on is replaced; if somebody does, or the path is taken by something else:
  // kUnavailable. The ports must outlive the server.
  static Result<std::unique_ptr<AttachServer>> create(AttachServerOptions options, CoordinatorPort& coordinator,
                                                      LanePort& lanes, Logger logger);
  ~AttachServer() override;
  AttachServer(const AttachServer&) = delete;
  AttachServer& operator=(const AttachServer&) = delete;

  void run();   // starts the thread; once
  void stop();  // ends every job and connection, joins the thread, removes the socket file

  // Any thread.
  void lane_failed(std::shared_ptr<NodeJob> job, LaneFailure failure) override;
  void checkpointed(const SnapshotDone& done);
  void publish(const PeerAddress& address);
  void on_control(ControlMessage message) override;
  void on_coordinator_restarted() override;
  Heartbeat heartbeat() const override;
  void drain();
  // In this order: a command that was taken has made it false before.
  bool drained() const { return commands_.empty() && drained_.load(std::memory_order_acquire); }
  void abandon(std::string reason);
  std::vector<NodeJobSummary> summaries() const;
  std::uint64_t memory_used() const { return memory_used_.load(std::memory_order_relaxed); }
  // Payload bytes of all jobs since the start.
  NodeTraffic traffic() const;
  std::uint64_t refused() const { return refused_.load(std::memory_order_relaxed); }

 private:
  struct Connection {
    Connection(FileDescriptor fd, std::uint64_t now_ms)
        : process(fd.get()),
          socket(AttachSocket::adopt(std::move(fd))),
          trusted(is_trusted(socket.peer())),
          idle_since_ms(now_ms) {}
    PeerProcess process;
    AttachSocket socket;
    bool trusted = false;  // this user's, or root's
    std::uint64_t idle_since_ms = 0;
    bool broken = false;  // to be closed at the next opportunity
  };
  using Command = std::function<void(NodeJobs&, std::uint64_t now_ms)>;

  AttachServer(AttachServerOptions options, FileDescriptor listener, EventFd wake, CoordinatorPort& coordinator,
               LanePort& lanes, Logger logger);
  void post(Command command) { commands_.push(std::move(command)); }
  void loop();
  void take_commands(std::uint64_t now_ms);
  void accept_all(std::uint64_t now_ms);
  void receive(TrainerId trainer, Connection& connection, std::uint64_t now_ms);
  void receive_last(TrainerId trainer, Connection& connection, std::uint64_t now_ms);
  void handle(TrainerId trainer, Connection& connection, AttachReceived received, std::uint64_t now_ms);
  void turn_away(Connection& connection, std::uint64_t now_ms);
  void take_held(TrainerId trainer, Connection& connection, const HeldState& given, std::vector<FileDescriptor> fds,
                 std::uint64_t now_ms);
  void close_broken(std::uint64_t now_ms);
  void send(TrainerId trainer, const AttachMessage& message, std::span<const int> fds) override;
  void refresh();

  const AttachServerOptions options_;
  FileDescriptor listener_;
  AcceptPause pause_;  // the thread's
  CommandQueue<Command> commands_;
  Logger logger_;
  RateLimitedLog noise_;
  std::unique_ptr<NodeJobs> jobs_;  // the thread's
  std::map<TrainerId, Connection>
      connections_;  // in the order of arrival: a dead trainer's end is seen before its successor's attach
  TrainerId last_trainer_;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> drained_{false};  // when commands were taken last, or since
  std::atomic<std::uint64_t> memory_used_{0}, refused_{0};

  mutable std::mutex mutex_;  // guards the two below
  std::vector<NodeJobSummary> summaries_;
  NodeTraffic ended_;  // of views that have ended
  std::thread thread_;
};

}  // namespace tributary
