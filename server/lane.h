// Lane: a thread, a ROUTER socket with a ZeroMQ context of its own, and the chunks of every job that this lane owns.
// The thin shell around ShardCore: the thread that receives a push also sums, steps and sends the answer.
//
// What the data path costs in locks and copies:
//   locks    None of ours. Jobs, pools and cores belong to the lane's thread alone; counters are relaxed stores to
//            cache lines of this lane. Commands of the control thread wait in a queue whose mutex is touched only when
//            its eventfd fired.
//   copies   None of a payload. A received frame stays in ZeroMQ's memory until its round is complete (Payload); an
//            answer is a reference to the parameter buffer, sent from where it lies (borrow()). With a worker on this
//            machine messages only say where the payload lies (lane_links.h).
//   memory   Our code allocates nothing per chunk once a job's pool is warm. libzmq allocates one block per received
//            frame, per header and per zero-copy handle; tune_malloc_for_frames() keeps those within the process.
//
// What bounds the memory a peer can take: kMaxMessage per message, kReceiveHighWater messages that we have not looked
// at, kSendHighWater messages that it has not taken.
//
// A message that cannot be accepted is answered with an ErrorReply, counted and logged (at a limited rate). Nothing
// that arrives stops the lane.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>
#include <zmq.hpp>

#include "common/event_fd.h"
#include "common/log.h"
#include "common/metrics.h"
#include "common/patience.h"
#include "common/result.h"
#include "server/lane_links.h"
#include "server/pool_preparer.h"
#include "server/shard_core.h"

namespace tributary {

struct LaneOptions {
  ShardIndex shard;
  LaneIndex lane;
  std::string bind;                    // ServerConfig::bind
  std::string advertise;               // ServerConfig::advertise
  std::uint64_t held_news_ms = 2'000;  // rounds that wait for a snapshot longer than that are worth a line in the log
  // For so long after a snapshot is committed the next one would find its memory; then it goes back to the system.
  std::uint64_t idle_memory_ms = 30'000;
  // A stop waits for the residuals of nodes that leave. It is given up, and the last committed snapshot stands, when
  // nothing has come from them for so long, and nobody has said that they get on (await_longer()): a node that still
  // takes the answers of another server says nothing here.
  std::uint64_t stop_timeout_ms = 30'000;
};

// What a lane tells the control thread. Called on the lane's thread: must not block.
class LaneListener {
 public:
  virtual ~LaneListener() = default;
  virtual void lane_opened(LaneIndex lane, JobId job, ViewId view, const Status& status) = 0;
  virtual void lane_snapshot(LaneIndex lane, JobId job, ViewId view, Round round, bool started) = 0;
  // any: the lane keeps the state of the view that is over; its chunks are at versions from min to max.
  virtual void lane_parked(LaneIndex lane, JobId job, ViewId view, bool any, Version min, Version max) = 0;
  // kept: every chunk was captured at `round` (false as well if it was not asked for).
  virtual void lane_stopped(LaneIndex lane, JobId job, ViewId view, Round round, bool kept) = 0;
  virtual void lane_captured(ChunkSnapshot snapshot) = 0;
  // Of a job with a gate: ShardOutput::facts(), and when it opens ShardCore::decided().
  virtual void lane_facts(LaneIndex /*lane*/, RoundFacts /*facts*/) {}
};

// Written by the lane's thread (relaxed, at most kPublishMs late), read by anybody.
struct alignas(64) LaneCounters {
  LaneCounter messages, malformed, unknown_job, internal_errors;
  LaneCounter dropped_full;         // answers given up because the peer takes nothing
  LaneCounter dropped_unreachable;  // because the peer is gone
  // Payload bytes of messages, by the way they went: over the socket, or in memory shared with the worker.
  LaneCounter socket_payload_bytes, shared_payload_bytes;
  LaneCounter pushes, duplicates, rejected, answers, steps, out_of_place_steps, starved, push_bytes, answer_bytes;
  LaneGauge jobs, held_frames, held_bytes, max_held_bytes, withheld, pool_bytes, max_pool_bytes, links, mapped_bytes;
  std::uint64_t dropped() const { return dropped_full.value() + dropped_unreachable.value(); }
};

// The same for one job on one lane; shared between the lane and the control thread.
struct alignas(64) LaneJobGauges {
  // clock_nodes: how many nodes have clocks of their own (modes ssp and async); 0: none.
  explicit LaneJobGauges(std::uint32_t clock_nodes = 0) : clocks(clock_nodes) {}

  std::atomic<std::uint64_t> min_version{0}, max_version{0};
  std::atomic<bool> initialised{false};
  std::atomic<bool> prepared{false};  // what the last prepare_snapshot() was for
  std::atomic<std::uint64_t> max_held_bytes{0}, pool_bytes{0};
  std::atomic<std::uint64_t> links{0};  // nodes whose memory the lane has mapped
  std::atomic<std::uint64_t> withheld{0};
  struct Clock {
    std::atomic<std::uint64_t> last{0}, furthest{0};  // on the chunks where it is so
  };
  std::vector<Clock> clocks;  // by node
};

// A chunk out of the store on its way to the lane.
struct RestoredChunk {
  ChunkIndex chunk;
  Version version;
  std::uint64_t step = 0;
  std::vector<float> params;
  std::vector<std::vector<float>> slots;
  std::vector<float> estimate;
  std::uint32_t nodes = 0;
  std::vector<std::pair<std::uint32_t, std::vector<float>>> residuals;  // by node
  std::vector<std::uint64_t> clocks;
  GateDecision gate;
  std::size_t bytes() const {
    return params.size() * sizeof(float) * (1 + slots.size() + (estimate.empty() ? 0 : 1) + residuals.size());
  }
};

// What a lane is told to do: by any thread, carried out in order on the lane's.
class LaneCommands {
 public:
  virtual ~LaneCommands() = default;
  // An older view of the job is dropped.
  virtual void open(ShardJob job, std::shared_ptr<LaneJobGauges> gauges) = 0;
  // Instead of open() and its restores: goes on with what park() kept.
  virtual void reopen(ShardJob job, std::shared_ptr<LaneJobGauges> gauges) = 0;
  // The view is over; its state is kept until the job is opened again or dropped. Replied with lane_parked().
  virtual void park(JobId job, ViewId view) = 0;
  virtual void drop_parked(JobId job) = 0;
  // One chunk of the job opened last. Blocks while Lane::kMaxRestoreBytes wait. REQUIRES: owned by this lane, each
  // once.
  virtual void restore(JobId job, RestoredChunk chunk) = 0;
  // Ends open() and its restores; replied with lane_opened(). With `restored`, every chunk must have been.
  virtual void opened(JobId job, ViewId view, bool restored) = 0;
  // Gets memory for the copy-on-write of the next snapshot, and says so in the gauges.
  virtual void prepare_snapshot(JobId job, ViewId view) = 0;
  virtual void snapshot_at(JobId job, ViewId view, Round round) = 0;
  // What copy-on-write needed for it can go, after a while.
  virtual void snapshot_written(JobId job) = 0;
  virtual void decide(const RoundDecision& decision) = 0;
  // keep: captures every chunk at this round. Replied with lane_stopped(), also if the lane does not have the job. With
  // encodings that keep residuals the reply waits for them, until no node has said a word for stop_timeout_ms.
  // park: the state stays besides, as with park(), replied with lane_parked() after that.
  virtual void stop_job(JobId job, ViewId view, bool keep, Round round, bool park) = 0;
  // Nodes of this job get on, if not here: a stop that waits for residuals waits anew.
  virtual void await_longer(JobId job, ViewId view) = 0;
};

class Lane final : public LaneCommands, private ShardOutput {
 public:
  // Messages taken per turn before commands and other duties are looked at.
  static constexpr int kBatch = 64;
  static constexpr std::size_t kMaxMessage = kMaxDataPayload + 4096;
  // Per peer, in messages. Received ones are frames of up to a chunk, so few:
  // beyond them TCP's flow control holds the peer.
  static constexpr int kReceiveHighWater = 64;
  // To a peer there can be a receipt and an answer for each chunk of the lane, all at once when a view begins. Answers
  // are references, so the bound is on headers (some 300 bytes each), and lets 32768 chunks start in one burst.
  static constexpr int kSendHighWater = 65536;
  // Restored bytes that wait for the lane's thread; the thread that loads them is held beyond.
  static constexpr std::size_t kMaxRestoreBytes = 32u << 20;
  static constexpr std::uint64_t kPublishMs = 100;
  // Given back to the system in one turn: some hundred microseconds a MiB.
  static constexpr std::size_t kTrimBytes = 4u << 20;

  // Binds and starts the thread. kConfig: bind is no address; kUnavailable: it is taken. listener must outlive stop().
  static Result<std::unique_ptr<Lane>> start(LaneOptions options, LaneListener& listener, Logger logger);
  // REQUIRES: nobody but this lane and its sockets holds buffers of its pools (the snapshot writer is gone).
  ~Lane() override;
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  const std::string& endpoint() const { return endpoint_; }  // as advertised to workers
  // Under which workers on this machine find the lane (common/local_link.h); empty if they cannot.
  const std::string& link_name() const { return links_.name(); }
  LaneIndex index() const { return options_.lane; }
  const LaneCounters& counters() const { return counters_; }

  // LaneCommands
  void open(ShardJob job, std::shared_ptr<LaneJobGauges> gauges) override;
  void reopen(ShardJob job, std::shared_ptr<LaneJobGauges> gauges) override;
  void park(JobId job, ViewId view) override;
  void drop_parked(JobId job) override;
  void restore(JobId job, RestoredChunk chunk) override;
  void opened(JobId job, ViewId view, bool restored) override;
  void prepare_snapshot(JobId job, ViewId view) override;
  void snapshot_at(JobId job, ViewId view, Round round) override;
  void snapshot_written(JobId job) override;
  void decide(const RoundDecision& decision) override;
  void stop_job(JobId job, ViewId view, bool keep, Round round, bool park) override;
  void await_longer(JobId job, ViewId view) override;
  // Ends the thread: no listener call and no message after it. Idempotent.
  void stop();

 private:
  struct Job {
    std::unique_ptr<BufferPool> pool;  // declared first: the core's buffers go back to it
    PoolPreparer preparer;             // of pool
    std::unique_ptr<ShardCore> core;
    std::shared_ptr<LaneJobGauges> gauges;
    Status restored;
    std::size_t steady_blocks = 0;  // of the pool, without snapshots
    std::uint64_t trim_at_ms = 0;   // when what copy-on-write needed goes back, some of it every turn; 0: it stays
    struct Stop {
      Round round;
      bool park = false;
    };
    std::optional<Stop> stop;  // waits for residuals, while `said` grows
    Patience patience{0, 0};   // of the stop
    std::uint64_t said = 0;    // messages since the view began
  };
  // One message without its routing id; `frames` counts also those that were dropped because none of ours has so many.
  struct Received {
    zmq::message_t* header = nullptr;
    zmq::message_t* payload = nullptr;
    int frames = 0;
    PayloadPlace place;  // instead of the payload frame
  };

  Lane(LaneOptions options, LaneListener& listener, Logger logger, EventFd wake);
  Status bind();
  void run();
  bool receive_batch();
  void handle(PeerId from, Received& message);
  template <class M>
  void dispatch(PeerId from, const M& message, Received& received);
  void refuse(PeerId from, const ChunkKey& key, Round round, ErrorCode code, std::string message);
  Result<Payload> take_payload(Received& received, bool copy);
  Result<LaneLinks::Shared> find_pool(const LinkRequest& request);
  void set_aside(JobId job, ViewId view);
  void run_commands();
  void post(std::function<void()> command);
  bool finish_stops(std::uint64_t now_ms);  // true if some wait
  bool trim_some(std::uint64_t now);        // true if there is more to do at once
  void retire(Job job);
  void retire(std::unordered_map<JobId, Job>& jobs, JobId job);
  void free_retired();
  void publish(std::uint64_t now_ms);
  bool send(zmq::message_t routing_id, const DataMessage& message, std::optional<zmq::message_t> payload = {},
            const PayloadPlace& place = {});
  void send_values(PeerId to, const DataMessage& message, const ChunkKey& key, const BufferRef& values);

  void answer(PeerId to, const Answer& header, const BufferRef& payload) override;
  void residual(PeerId to, const Residual& header, const BufferRef& values) override;
  void receipt(PeerId to, const Receipt& header) override;
  void resend(PeerId to, const Resend& header) override;
  void error(PeerId to, const ErrorReply& header) override;
  void captured(ChunkSnapshot snapshot) override;
  void facts(const RoundFacts& facts) override;

  const LaneOptions options_;
  LaneListener& listener_;
  Logger logger_;
  RateLimitedLog noise_;
  std::string endpoint_;
  std::string ipc_path_;  // removed at the end; empty for tcp

  std::mutex mutex_;  // guards commands_ and restore_bytes_
  std::condition_variable restored_;
  std::deque<std::function<void()>> commands_;
  std::size_t restore_bytes_ = 0;
  EventFd wake_;

  // The lane's thread only (the name of links_ never changes).
  std::unordered_map<JobId, Job> jobs_;
  std::unordered_map<JobId, Job> parked_;  // state of views that are over
  LaneLinks links_;                        // of those jobs
  std::vector<zmq::pollitem_t> poll_items_;
  // Pools of jobs that are over: ZeroMQ, the snapshot writer or workers on this machine may still refer to their
  // blocks.
  std::vector<std::unique_ptr<BufferPool>> retired_;
  ShardStats closed_;  // totals of jobs that are over
  bool dirty_ = false;
  std::uint64_t next_publish_ms_ = 0;
  bool running_ = true;

  LaneCounters counters_;
  zmq::context_t context_;
  zmq::socket_t socket_;
  std::thread thread_;
};

}  // namespace tributary
