// ClientCore: the worker's side of the round logic for one job on one worker lane. Pure: events in, actions out through
// ClientOutput; time comes in as an argument. The lane (worker/lane.h) and the simulator drive the same class.
//
// Per chunk:
//   waiting for initial values (node 0 of a fresh job) -> queued -> sent -> idle   the first parameters (Init, Pull)
//   idle -> queued (gradient ready) -> sent -> held (receipt came) -> idle         a round (Push)
//
// The window of a connection counts sent-but-unacknowledged bytes; a receipt (or the answer itself) gives the credit
// back. It does not count held pushes: their answer waits for other nodes, and two workers that push in different
// orders would wait for each other for ever. Of the queued chunks the one that lies first in the flat space goes first:
// the next forward pass needs it first.
//
// Loss: when an acknowledgement or an answer is overdue, a Query asks the server what it knows; it replies with the
// answer, a receipt, or Resend. So a payload travels twice only if the server says that it does not have it, and
// repeats change nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/encoding.h"
#include "common/layout.h"
#include "common/messages.h"
#include "worker/window.h"

namespace tributary {

// One (server, lane) pair that this worker lane talks to.
using ConnectionIndex = StrongId<struct ConnectionTag, std::uint16_t>;

struct ClientJob {
  JobId job;
  ViewId view;
  NodeRank node;
  std::shared_ptr<const Layout> layout;
  std::vector<ChunkIndex> chunks;            // this lane's chunks, ascending
  std::vector<ConnectionIndex> connections;  // of each of them, in the same order
  Version start;                             // version every chunk is pulled at first (resume round, or 0)
  EncodingId push = EncodingId::kFp32;
  EncodingId pull = EncodingId::kFp32;
  bool init = false;  // this node sends the initial values
};

class ClientOutput {
 public:
  virtual ~ClientOutput() = default;
  // The shell finds the payload by chunk: for Push the
  // node's encoded gradient of that round, which stays unchanged until answered(); for Init the initial values.
  virtual void send_push(ConnectionIndex connection, const Push& push) = 0;
  virtual void send_init(ConnectionIndex connection, const Init& init) = 0;
  virtual void send_pull(ConnectionIndex connection, const Pull& pull) = 0;
  virtual void send_query(ConnectionIndex connection, const Query& query) = 0;
  // Parameters of `chunk` at `answer.version` are in `payload`: decode and publish them.
  // Called once per chunk and version.
  virtual void answered(const Answer& answer, std::span<const std::byte> payload) = 0;
  // A server refused something of ours: the job cannot go on.
  virtual void refused(const ErrorReply& error) = 0;
};

struct ClientOptions {
  std::uint64_t window_cap_bytes = 16u << 20;
  // Overdue: no acknowledgement within this plus 8 times the smoothed acknowledgement time; no answer within
  // query_interval_ns of a receipt (nothing is wrong then but somebody's slow step, so it is asked rarely).
  std::uint64_t acknowledge_timeout_ns = 2'000'000'000;
  std::uint64_t query_interval_ns = 10'000'000'000;
  std::uint64_t scan_interval_ns = 100'000'000;  // how often tick() looks
};

struct ClientStats {
  std::uint64_t pushes = 0, push_bytes = 0, answers = 0, answer_bytes = 0, resends = 0, queries = 0, stale = 0;
};

class ClientCore {
 public:
  ClientCore(ClientJob job, std::uint16_t connections, ClientOptions options, ClientOutput& output);

  // Asks for the parameters of every chunk (Pull); a job with init waits for initial_values_ready() first.
  void start(std::uint64_t now_ns);
  // The initial values are there. REQUIRES: job.init.
  void initial_values_ready(std::uint64_t now_ns);
  // The node's gradient of `chunk` for `round` is complete.
  // REQUIRES: started() for that chunk, round == version + 1, idle.
  void gradient_ready(ChunkIndex chunk, Round round, std::uint64_t weight, std::uint64_t now_ns);

  // From connection `from`. Anything that does not fit what is open is counted as stale and dropped.
  void on_receipt(ConnectionIndex from, const Receipt& receipt, std::uint64_t now_ns);
  void on_answer(ConnectionIndex from, const Answer& answer, std::span<const std::byte> payload, std::uint64_t now_ns);
  void on_resend(ConnectionIndex from, const Resend& resend, std::uint64_t now_ns);
  void on_error(ConnectionIndex from, const ErrorReply& error);
  // Time-outs; call about every scan_interval_ns or more often.
  void tick(std::uint64_t now_ns);

  Version version(ChunkIndex chunk) const;  // newest delivered
  bool idle(ChunkIndex chunk) const;
  bool started() const { return delivered_chunks_ == job_.chunks.size(); }  // every chunk delivered at least once
  const ClientStats& stats() const { return stats_; }
  std::uint64_t window_bytes(ConnectionIndex connection) const {
    return connections_[connection.value].window.window_bytes();
  }
  std::uint64_t in_flight_bytes(ConnectionIndex connection) const { return connections_[connection.value].in_flight; }

 private:
  enum class Phase : std::uint8_t { kWaitingForValues, kQueued, kSent, kHeld, kIdle };
  struct Chunk {
    ChunkIndex index;
    ConnectionIndex connection;
    Phase phase = Phase::kIdle;
    bool delivered = false;  // has parameters; until then what is queued or sent is Init and Pull
    Version version;
    Round round;
    std::uint64_t weight = 0;
    std::uint64_t elements = 0;
    std::uint64_t in_flight = 0;         // bytes counted in its connection's window
    std::uint64_t sent_ns = 0;           // last send or query
    std::uint64_t delivered_before = 0;  // of the connection, when sent
    bool retransmitted = false;          // no rate sample from it (Karn's rule)
    std::uint32_t queue_slot = 0;        // position among its connection's chunks
  };
  struct Connection {
    WindowController window;
    std::uint64_t in_flight = 0;
    std::uint64_t acknowledged = 0;  // bytes, in total
    double smoothed_ns = 0.0;
    std::vector<std::uint32_t> chunks;  // positions in chunks_, ascending flat order
    std::vector<std::uint64_t> queued;  // bitmap over `chunks`
    std::size_t queued_count = 0;
  };

  Chunk* find(const ChunkKey& key);
  void enqueue(Chunk& chunk);
  void dequeue(Chunk& chunk);
  void pump(ConnectionIndex index, std::uint64_t now_ns);
  void send(Chunk& chunk, std::uint64_t now_ns);
  void acknowledge(Chunk& chunk, std::uint64_t now_ns);
  Connection& connection_of(const Chunk& chunk) { return connections_[chunk.connection.value]; }
  ChunkKey key(const Chunk& chunk) const;

  const ClientJob job_;
  const Encoding& push_;
  const Encoding& pull_;
  const ClientOptions options_;
  ClientOutput& output_;
  std::vector<Chunk> chunks_;
  std::vector<std::uint32_t> local_;  // chunk index -> position in chunks_
  std::vector<Connection> connections_;
  std::size_t delivered_chunks_ = 0;
  std::uint64_t next_scan_ns_ = 0;
  ClientStats stats_;
};

}  // namespace tributary
