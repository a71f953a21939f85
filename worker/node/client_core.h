// ClientCore: the worker's side of the round logic for one job on one worker lane. Pure: events in, actions out through
// ClientOutput; time comes in as an argument. The lane (worker/node/lane.h) and the simulator drive the same class.
//
// Per chunk:
//
//   waiting for values ──┐ initial_values_ready(): the first holder's, in a fresh job
//                        ▼
//    idle ────────────► queued ───────────► sent ────────────► held
//     ▲  start(),         ▲  window has room │  acknowledged     │
//     │  gradient_ready() │                  │                   │
//     │                   └──────────────────┼───────────────────┤  Resend; a push with redo was applied: the next one
//     └──────────────────────────────────────┴───────────────────┘  answer (a late one reaches a queued chunk, too)
//
//   Sent in this order: a Push with redo for each round that the server lost; a Pull of the first parameters, behind
//   an Init if this node gives their values; a Push for each round.
//   keep_residuals(): any of idle, queued, sent and held ──► queued ──► sent ──► kept (acknowledged).
//
// The window counts sent-but-unacknowledged bytes; an acknowledgement (or the answer itself) gives the credit back. The
// window does not count held pushes: their answer waits for other nodes, and two workers that push in different orders
// would wait for each other forever. The queued chunk that was ready first goes first: backward passes give the same
// order on all nodes, so that the nodes' pushes of a chunk meet soon, whichever node is ahead.
//
// One window for all connections, because they share this node's link. It also keeps the nodes in step: a node cannot
// run ahead at one server and fall behind at another by more than the window, and only chunks that all nodes have
// pushed can be answered. (With a window for each connection TCP's unfairness between them made nodes drift apart, and
// a fifth of a round passed after the last push; docs/data-path.md.)
//
// Encodings with error feedback: an answer may name the round of a snapshot, whose push then brings the node's residual
// behind its frame; a resumed node gets its residual before its first answer; and a node that leaves sends the
// residuals of all its chunks alone (keep_residuals), until each is acknowledged.
//
// Where nodes have clocks (modes ssp and async) a round is this node's own, and Answer::version the clock that is
// answered: nothing here is different.
//
// Loss: when an acknowledgement or an answer is overdue, a Query asks the server what it knows; the server replies
// with the answer, an Ack, or Resend. So a payload travels twice only if the server reports that it lacks the
// payload, and repeats change nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/config/job_plan.h"
#include "common/wire/messages.h"
#include "worker/node/lane_counts.h"
#include "worker/node/link_meter.h"
#include "worker/node/window.h"
#include "worker/reduce/lane_chunk.h"
#include "worker/reduce/redo_ring.h"

namespace tributary {

struct ClientJob {
  std::shared_ptr<const ViewPlan> view;
  NodeRank node;
  // By LaneChunk::place: the version its server has, if less than the view's start; empty: all servers have that.
  std::vector<Version> redo_after;
  bool may_have_earlier = false;  // ClientOutput::have_earlier() is asked

  Version start() const { return Version(view->start.value); }  // every chunk is pulled at it first
};

class ClientOutput {
 public:
  virtual ~ClientOutput() = default;
  // payload: of a push, the chunk's frame, which stays unchanged until answered(), or what the next three return; else
  // empty.
  virtual void send(const LaneChunk& chunk, const DataMessage& message, std::span<const std::byte> payload) = 0;
  // All that was kept of this push, of a round after ClientJob::redo_after. None: it is gone, and so is the job.
  virtual std::optional<RedoRing::Frame> kept(const LaneChunk& chunk, Round round) = 0;
  // This node's residual after the last round that was answered.
  virtual std::span<const std::byte> residual(const LaneChunk& chunk) = 0;
  virtual std::span<const std::byte> initial_values(const LaneChunk& chunk) = 0;
  // Puts what an earlier view left of the chunk where its parameters are; the digest of what is there then stays that
  // of what is there until answered(). 0: there is nothing.
  virtual Checksum128::Value have_earlier(const LaneChunk& /*chunk*/) { return {}; }
  // Parameters of `chunk` at `answer.version` are in `payload` (`whole`: as fp32, whatever the job's pull encoding):
  // decode and publish them. answer.same: they are where have_earlier() put them. Called once per chunk and version.
  virtual void answered(LaneChunk& chunk, const Answer& answer, bool whole, std::span<const std::byte> payload) = 0;
  // This node's residual of a resumed chunk, before its first answered().
  virtual void residual_restored(LaneChunk& chunk, std::span<const std::byte> values) = 0;
  // A server refused something of ours: the job cannot go on.
  virtual void refused(const ErrorReply& error) = 0;
};

struct ClientOptions {
  std::uint64_t window_cap_bytes = 16u << 20;
  bool over_link = true;  // false: all servers are on this machine, and the window stays at its cap
  // Overdue: no acknowledgement of a push within this plus 8 times the smoothed acknowledgement time; no answer within
  // query_interval_ns of an ack (nothing is wrong then but somebody's slow step, so it is asked rarely), and none to
  // what is as large as a chunk's parameters: a pull, a residual. Both count from the last word of any server: while
  // something arrives, what is missing may be behind it, and more copies only make a slow link slower. Many servers may
  // share a slow link, over which no large answer is whole for long: what is sent again whole waits twice as long each
  // time, up to kMaxRepeatFactor.
  std::uint64_t acknowledge_timeout_ns = 2'000'000'000;
  std::uint64_t query_interval_ns = 10'000'000'000;
  static constexpr std::uint64_t kMaxRepeatFactor = 32;
  std::uint64_t scan_interval_ns = 100'000'000;  // how often tick() looks
};

struct ClientStats : ClientCounts<std::uint64_t> {
  std::uint64_t push_bytes = 0;
  std::uint64_t heard = 0;  // words of servers about what was sent: acks, answers, residuals; stale ones, too
};

class ClientCore {
 public:
  // chunks: this lane's, which outlive this.
  ClientCore(ClientJob job, LaneChunks& chunks, ClientOptions options, ClientOutput& output);

  // Payloads of this connection cross no link, while others' do: its acknowledgements say nothing about the link.
  void crosses_no_link(ConnectionIndex connection) { no_link_[connection.value] = true; }
  // Asks for the parameters of every chunk (Pull); chunks whose values this node gives wait for initial_values_ready().
  void start(std::uint64_t now_ns);
  // The initial values are there, of all chunks that this node gives them of.
  void initial_values_ready(std::uint64_t now_ns);
  // LaneChunk::gradient has the frame of the chunk's next round, with the residual if Flight::wants_residual says so.
  // REQUIRES: idle, or keep_residuals() was called: then it comes too late. last: Push::last.
  void gradient_ready(LaneChunk& chunk, std::uint64_t now_ns, bool last = false);

  // Anything that does not fit what is open is counted as stale and dropped.
  void on_ack(const Ack& ack, std::uint64_t now_ns);
  void on_answer(const Answer& answer, std::span<const std::byte> payload, std::uint64_t now_ns);
  void on_residual(const Residual& residual, std::span<const std::byte> values, std::uint64_t now_ns);
  void on_resend(const Resend& resend, std::uint64_t now_ns);
  void on_error(const ErrorReply& error, std::uint64_t now_ns);
  // Time-outs; call about every scan_interval_ns or more often.
  void tick(std::uint64_t now_ns);

  // The node leaves after the rounds that are answered: sends every chunk's residual. Open pushes are dropped, they
  // will not be answered. REQUIRES: the push encoding keeps residuals, started().
  void keep_residuals(std::uint64_t now_ns);
  std::size_t kept_chunks() const { return kept_chunks_; }
  bool residuals_kept() const { return kept_chunks_ == chunks_.size(); }

  bool started() const { return delivered_chunks_ == chunks_.size(); }  // every chunk delivered at least once
  const ClientStats& stats() const { return stats_; }
  const WindowController& window() const { return window_; }
  std::uint64_t in_flight_bytes() const { return in_flight_; }
  // Payload bytes per second of acknowledged pushes and of answers over the node's link (over no link if all servers
  // are on this machine).
  double push_rate() const { return pushed_.rate(); }
  double answer_rate() const { return answered_.rate(); }

 private:
  using Phase = LaneChunk::Flight::Phase;
  using Queue =
      boost::intrusive::list<LaneChunk, boost::intrusive::member_hook<LaneChunk, LaneChunk::Hook, &LaneChunk::queued>,
                             boost::intrusive::constant_time_size<false>>;

  LaneChunk* find(const ChunkKey& key);
  LaneChunk* hear(const ChunkKey& key, std::uint64_t now_ns);
  void enqueue(LaneChunk& chunk);
  void dequeue(LaneChunk& chunk) { queued_.erase(queued_.iterator_to(chunk)); }
  void pump(std::uint64_t now_ns);
  void send(LaneChunk& chunk, std::uint64_t now_ns);
  void send_push(const LaneChunk& chunk);
  std::uint64_t payload_bytes(const LaneChunk& chunk) const;
  std::uint64_t pull_bytes(const LaneChunk& chunk) const;
  void acknowledge(LaneChunk& chunk, std::uint64_t now_ns);
  void set_held(LaneChunk& chunk, std::uint64_t bytes);
  void redo_applied(LaneChunk& chunk, std::uint64_t now_ns);
  void residual_kept(LaneChunk& chunk, std::uint64_t now_ns);
  ChunkKey key(const LaneChunk& chunk) const;
  bool metered(const LaneChunk& chunk) const { return !options_.over_link || !no_link_[chunk.connection.value]; }

  const ClientJob job_;
  const std::shared_ptr<const Encoding> push_, pull_;
  const ClientOptions options_;
  ClientOutput& output_;
  LaneChunks& chunks_;
  WindowController window_;
  std::uint64_t in_flight_ = 0, held_ = 0;  // of all chunks
  std::vector<double> smoothed_ns_;         // acknowledgement time by connection
  std::vector<bool> no_link_;               // by connection
  Queue queued_;                            // first ready first
  std::size_t delivered_chunks_ = 0;
  std::size_t kept_chunks_ = 0;
  std::uint64_t heard_ns_ = 0;  // the last of stats_.heard
  bool earlier_fits_ = true;    // so far: what an earlier view left is what servers have
  bool leaving_ = false;        // keep_residuals() was called
  std::uint64_t next_scan_ns_ = 0;
  ClientStats stats_;
  LinkMeter pushed_, answered_;
};

}  // namespace tributary
