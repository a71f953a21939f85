// CoordinatorLink: a daemon's connection to the coordinator, a DEALER. It sends hellos until one is answered, then
// heartbeats. It keeps messages, in order and bounded (ControlOutbox), until the coordinator listens. It notifies its
// owner when the coordinator is another process than before or does not know this daemon, and logs its silence. Where
// several servers may have the coordinator, it finds the one that has (CoordinatorChoice).
//
// Messages wait until the hello is answered, so that the coordinator knows their sender. A heartbeat goes before them:
// after a lost connection the coordinator knows a daemon by its incarnation, not by its address. While the coordinator
// is away nothing is queued in ZeroMQ, because old heartbeats are useless.
//
// Thread rule: one thread, its owner's, which calls turn(); send() and the queries on any.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>
#include <zmq.hpp>

#include "common/base/result.h"
#include "common/base/waking_clock.h"
#include "common/daemon/control_outbox.h"
#include "common/daemon/coordinator_choice.h"
#include "common/daemon/log.h"
#include "common/daemon/refusal_watch.h"
#include "common/security/keys.h"
#include "common/system/event_fd.h"
#include "common/wire/messages.h"

namespace tributary {

// The daemon's side of it; all on the link's thread, and none may block.
class CoordinatorLinkOwner {
 public:
  virtual ~CoordinatorLinkOwner() = default;
  virtual ControlMessage hello_message() = 0;
  virtual Heartbeat heartbeat_message() = 0;  // but for the incarnation
  // The coordinator knows this daemon. another: it is another process than the one that did before.
  virtual void on_met(bool another) = 0;
  // A server obeys no coordinator of a lower term from now on; on_met() follows.
  virtual void on_term(Term) {}
  // The coordinator does not know this daemon and its jobs any more. The link sends hello again.
  virtual void on_forgotten() = 0;
  virtual void on_control(ControlMessage message) = 0;
};

struct CoordinatorLinkOptions {
  std::string section;  // of the daemon's configuration, in words: "[server]"
  // Addresses of the servers that may have it, and, with keys, their public keys in the same order.
  std::vector<std::string> coordinators, coordinator_keys;
  std::optional<Term> promised = {};  // the highest that this server has obeyed; none: a worker
  std::string silence;  // the meaning of its silence, for the log; follows "has not been heard for N ms; "
  std::uint64_t incarnation = 0;
  std::uint32_t heartbeat_ms = 1000;
  std::uint32_t peer_timeout_ms = 10'000;
  std::shared_ptr<const KeyPair> own;  // null: there are no keys
};

class CoordinatorLink {
 public:
  static constexpr int kBatch = 64;                     // messages a turn
  static constexpr int kHighWater = 1000;               // that wait in ZeroMQ
  static constexpr int kLingerMs = 500;                 // for last words when the daemon goes
  static constexpr std::uint64_t kHelloMs = 1000;       // between hellos while unanswered
  static constexpr std::uint64_t kLongestStepMs = 250;  // of the clock that measures the coordinator's silence

  // kConfig: the address cannot be used.
  static Result<std::unique_ptr<CoordinatorLink>> open(CoordinatorLinkOptions options, CoordinatorLinkOwner& owner,
                                                       Logger logger);
  ~CoordinatorLink();
  CoordinatorLink(const CoordinatorLink&) = delete;
  CoordinatorLink& operator=(const CoordinatorLink&) = delete;

  // ---- Any thread ----
  void send(const ControlMessage& message);
  void rouse() { wake_.notify(); }
  bool joined() const { return coordinator_.load(std::memory_order_acquire) != 0; }
  std::uint64_t coordinator() const { return coordinator_.load(std::memory_order_acquire); }  // its incarnation, or 0
  bool connected() const { return joined() && !silent_.load(std::memory_order_relaxed); }
  std::uint64_t silent_ms() const;  // since its last message
  // With which of several that may have it the daemon speaks.
  const std::string& address() const { return options_.coordinators[place_.load(std::memory_order_relaxed)]; }
  // The reason why the coordinator will never accept this daemon, and the cure; only before it ever did.
  std::optional<std::string> refused() const;

  // ---- The owner's thread ----
  std::size_t place() const { return choice_.at(); }  // in the list of coordinators: with which it speaks
  Term promised() const { return choice_.promised(); }
  // Waits until there may be work, here or at `also_fd`.
  void wait(int also_fd = -1);
  // Receives messages, sends a hello or heartbeat if one is due, then the waiting messages.
  void turn();
  void flush();
  // Restarts the silence, because this process did not listen for a while.
  void excuse_silence();
  void say_hello();
  bool send_or_drop(const ControlMessage& message);  // false: it is dropped
  void drop_waiting();
  // ever_joined(): a coordinator has accepted this process, which cannot change any more, while a later coordinator
  // may. refuse(): only before that.
  bool ever_joined() const { return ever_joined_; }
  void refuse(std::string why);

 private:
  CoordinatorLink(CoordinatorLinkOptions options, CoordinatorLinkOwner& owner, Logger logger, EventFd wake);

  void receive();
  void on(ControlMessage message);
  void forgotten(const std::string& why);
  void connect();
  void move();
  void keep_up();  // hello or heartbeat, if one is due
  void beat();
  void check_silence();
  void check_refusals();
  bool waits() const;
  void heard(std::uint64_t now_ms);

  const CoordinatorLinkOptions options_;
  CoordinatorLinkOwner& owner_;
  Logger logger_;
  RateLimitedLog noise_;
  EventFd wake_;
  std::atomic<std::uint64_t> coordinator_{0}, heard_ms_{0};
  std::atomic<bool> silent_{false};
  std::atomic<std::size_t> place_{0};

  mutable std::mutex mutex_;  // guards outbox_, lost_ and refused_
  ControlOutbox outbox_;
  std::string lost_;  // dropped messages that are not yet logged
  std::optional<std::string> refused_;

  // The thread's.
  zmq::context_t context_;
  zmq::socket_t socket_;
  std::optional<RefusalWatch> refusals_;  // ends before the context
  CoordinatorChoice choice_;
  std::string refusal_;  // logged last
  std::uint64_t hello_ms_ = 0, beat_ms_ = 0;
  WakingClock waking_{kLongestStepMs};  // by which the coordinator is silent or not
  std::uint64_t heard_waking_ms_ = 0;
  bool ever_joined_ = false;
};

}  // namespace tributary
