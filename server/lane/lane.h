// Lane: a thread and a ROUTER socket with a ZeroMQ context of its own around LaneJobs (server/lane/lane_jobs.h): the
// thread that receives a push also sums, steps and sends the answer.
//
// Costs of the data path:
//   locks    None of ours. Jobs, pools and cores belong to the lane's thread alone; counters are relaxed stores to
//            cache lines of this lane. Commands of the control thread wait in a queue whose mutex is touched only when
//            its eventfd fired.
//   copies   None of a payload. A received frame stays in ZeroMQ's memory until its round is complete (Payload); an
//            answer is a reference to the parameter buffer, sent from where it lies (borrow()). With a worker on this
//            machine messages only name the payload's place (lane_links.h).
//   memory   Our code allocates nothing per chunk once a job's pool is warm. libzmq allocates one block per received
//            frame, per header and per zero-copy handle; tune_malloc_for_frames() keeps those within the process.
//
// Bounds on a peer's memory here: kMaxMessage per message, kReceiveHighWater messages that the lane has not read,
// kSendHighWater messages that the peer has not taken.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>
#include <zmq.hpp>

#include "common/base/result.h"
#include "common/daemon/command_queue.h"
#include "common/daemon/log.h"
#include "common/security/admitted_nodes.h"
#include "common/security/keys.h"
#include "server/coordinator/cluster/admission.h"
#include "server/lane/lane_links.h"
#include "server/lane/queued_lane.h"

namespace tributary {

struct LaneOptions {
  LaneJobsOptions jobs;
  std::string bind;                              // ServerConfig::bind
  std::string advertise;                         // ServerConfig::advertise
  std::shared_ptr<const KeyPair> own = nullptr;  // null: there are no keys
  AdmittedNodes* admitted = nullptr;             // with keys: the nodes that may connect; it must outlive the lane
  PayloadSecurity payload = PayloadSecurity::kEncrypt;
};

class Lane final : public QueuedLane, private LaneOutput {
 public:
  // Messages taken per turn before commands and other duties are looked at.
  static constexpr int kBatch = 64;
  static constexpr std::size_t kMaxMessage = kMaxDataPayload + 4096;
  // Per peer, in messages. Received ones are frames of up to a chunk, so few:
  // beyond them TCP's flow control holds the peer.
  static constexpr int kReceiveHighWater = 64;
  // A peer can get an acknowledgement and an answer for each chunk of the lane, all at once when a view begins. Answers
  // are references, so the bound is on headers (some 300 bytes each), and lets 32768 chunks start in one burst.
  static constexpr int kSendHighWater = 65536;
  // Measurements that have been sent back and have not left yet, of all peers: 64 MiB. Others are dropped.
  static constexpr std::uint64_t kMaxEchoes = 256;
  // Bytes of half-sent messages: for any peers, and for each node of a view, whose lanes' windows are in flight.
  static constexpr std::uint64_t kMaxHeldBytes = 256u << 20, kMaxHeldBytesOfNode = 64u << 20;
  // Connections that have brought nothing yet: of any peers, and for each node of a view.
  static constexpr std::size_t kMaxNewcomers = 1024, kNewcomersOfNode = 8;
  // Connections of a key besides one of each of its worker's lanes in each view.
  static constexpr std::size_t kSpare = 16;
  // Restored bytes that wait for the lane's thread; the thread that loads them is held beyond.
  static constexpr std::size_t kMaxRestoreBytes = 32u << 20;

  // Binds and starts the thread. kConfig: bind is no address; kUnavailable: it is taken. listener must outlive stop().
  static Result<std::unique_ptr<Lane>> start(LaneOptions options, LaneListener& listener, Logger logger);
  // REQUIRES: only this lane and its sockets hold buffers of its pools (the snapshot writer is gone).
  ~Lane() override;
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  const std::string& endpoint() const { return endpoint_; }  // as advertised to workers
  // Under which workers on this machine find the lane (common/wire/local_link.h); empty if they cannot.
  const std::string& link_name() const { return links_.name(); }
  LaneIndex index() const { return options_.jobs.lane; }
  const LaneCounters& counters() const { return jobs_.counters(); }

  void restore(JobId job, ViewId view, ChunkIndex chunk, ChunkState state) override;
  // Ends the thread: no listener call and no message after it. Idempotent.
  void stop();

 private:
  Lane(LaneOptions options, LaneListener& listener, Logger logger, EventFd wake);
  Status bind();
  void run();
  bool receive_batch();
  void echo(zmq::message_t (&frames)[3], const Push& push);
  void receive(zmq::message_t (&frames)[3], int after_routing_id);
  Status permit(const zmq::message_t& frame, const DataMessage& message) const;
  void run_commands();
  void count_mapped();
  void post(std::function<void(LaneJobs&)> command) override { commands_.push(std::move(command)); }
  bool send(zmq::message_t routing_id, const DataMessage& message, std::optional<zmq::message_t> payload,
            const PayloadPlace& place);

  // LaneOutput
  std::uint64_t now_ms() const override;
  std::uint64_t now_ns() const override;
  void send(PeerId to, const DataMessage& message, const BufferRef& values, const PayloadPlace& place) override;
  std::unique_ptr<PoolPreparing> preparing() override;
  void refused(const std::string& line) override;
  void warn(const std::string& line) override;

  const LaneOptions options_;
  Logger logger_;
  RateLimitedLog noise_;
  std::string endpoint_;
  std::string ipc_path_;  // removed at the end; empty for tcp

  CommandQueue<std::function<void(LaneJobs&)>> commands_;
  std::mutex mutex_;  // guards restore_bytes_
  std::condition_variable restored_;
  std::size_t restore_bytes_ = 0;

  // The lane's thread only (the name of links_ never changes).
  LaneJobs jobs_;
  LaneLinks links_;  // of those jobs
  std::vector<zmq::pollitem_t> poll_items_;
  bool running_ = true;

  std::atomic<std::uint64_t> echoes_{0};  // ZeroMQ's threads take away
  zmq::context_t context_;
  std::unique_ptr<Admission> admission_;
  zmq::socket_t socket_;
  std::thread thread_;
};

}  // namespace tributary
