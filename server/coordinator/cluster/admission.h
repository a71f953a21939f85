// Admission: decides at each handshake which peers may connect to a listening socket of a ZeroMQ context (ZeroMQ's
// authentication protocol, RFC 27), and bounds all connections together (connection_book.h). It has a thread of its
// own, so that a lane's long step delays no peer. Start it before the socket listens; destroy it before the socket
// closes.
//
// It cuts a connection by shutting down the descriptor, known from ZeroMQ's monitor: for ZeroMQ the peer is then gone.
#pragma once

#include <sys/socket.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <zmq.hpp>

#include "common/base/result.h"
#include "common/daemon/log.h"
#include "common/system/event_fd.h"
#include "common/wire/socket_events.h"
#include "server/coordinator/cluster/connection_book.h"
#include "server/coordinator/cluster/message_counts.h"

namespace tributary {

class Admission {
 public:
  // A peer's credential: its public key, which it has proved to be its own, or (key empty) a one-time token.
  struct Shown {
    std::string key;
    std::string token, proof;
  };
  // Called on the admission's thread. Returns the key to mark the peer's messages with, or why the peer is refused.
  using Decide = std::function<Result<std::string>(const Shown& shown)>;

  static constexpr std::uint64_t kLookMs = 100;     // between two measurements of held bytes
  static constexpr std::size_t kMaxWaiting = 4096;  // handshakes; then the one that waits for longest is forgotten
  // Bounds on handshakes of one key: at once, and then per second. Others wait, because a refused peer retries at once.
  // (A socket's counter of connections meets the number that a peer chose for itself after 2^32 handshakes, divided by
  // the connections that it holds.)
  static constexpr double kHandshakesOfKey = 256.0, kHandshakesOfKeyPerSecond = 16.0;

  // socket: the context's only one, with its keys, before it listens. what: its name for the log: "the coordinator".
  static Result<std::unique_ptr<Admission>> start(zmq::context_t& context, zmq::socket_t& socket, std::string what,
                                                  Decide decide, ConnectionLimits limits, Logger logger);
  ~Admission();
  Admission(const Admission&) = delete;
  Admission& operator=(const Admission&) = delete;

  // Counts a whole message: its frames, without the routing id. Thread: the one that receives from the socket.
  void heard(std::span<zmq::message_t> frames);

  // Bytes of messages that have not ended, as of the last look.
  std::uint64_t held_bytes() const { return held_.load(std::memory_order_relaxed); }
  std::uint64_t late() const { return late_.load(std::memory_order_relaxed); }  // handshakes that waited for their turn
  std::uint64_t cut() const { return cut_.load(std::memory_order_relaxed); }    // connections
  std::uint64_t refused() const { return refused_.load(std::memory_order_relaxed); }

 private:
  Admission(zmq::context_t& context, zmq::socket_t& socket, std::string what, Decide decide, ConnectionLimits limits,
            Logger logger, EventFd stop);
  void run();
  // ZeroMQ's question about one handshake.
  struct Question {
    zmq::message_t from;
    std::string request;
    std::string key;  // admitted, when its turn comes
    std::uint64_t since_ms = 0;
  };
  void take_questions();
  Result<std::string> judge(std::span<const zmq::message_t> credentials, const std::string& mechanism) const;
  void answer(Question& question, const char* status);
  void let_wait(Question question);
  void let_in_those_that_waited();
  bool take_handshake(const std::string& key);
  void follow_connections();
  void look();
  void cut_those_beyond();

  const std::string what_;
  const Decide decide_;
  RateLimitedLog noise_;
  EventFd stop_;
  std::atomic<bool> stopping_{false};
  std::atomic<std::uint64_t> refused_{0}, late_{0}, cut_{0}, held_{0};
  MessageCounts counts_;
  const std::uint64_t overhead_;  // bytes of a frame on the wire, besides its header

  // The admission's thread only.
  struct Followed {
    sockaddr_storage peer = {};
    MessageCounts::Count before = {};  // count of the descriptor, when the connection began
    std::uint64_t messages = 0;        // at the last look
  };
  struct Handshakes {
    double left = kHandshakesOfKey;
    std::uint64_t as_of_ms = 0;
  };
  ConnectionBook book_;
  std::map<int, Followed> followed_;
  std::map<std::string, Handshakes> handshakes_;  // by key: those that are not all left
  std::deque<Question> waiting_;                  // for their keys' turns
  std::uint64_t looked_ms_ = 0;

  zmq::socket_t socket_;
  SocketEvents events_;  // events of the socket that listens
  std::thread thread_;
};

}  // namespace tributary
