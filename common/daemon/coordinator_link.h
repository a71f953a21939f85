// CoordinatorLink: a daemon's connection to the coordinator, a DEALER. Says hello until that is answered, then sends
// heartbeats; keeps what must arrive, in order and bounded (ControlOutbox), until somebody listens; tells its owner
// when the coordinator is another process than before or does not know this daemon, and the log when it is silent.
//
// Messages wait until the hello is answered, so that the coordinator knows who is speaking; and a heartbeat goes before
// them: after a lost connection the coordinator knows a daemon by its incarnation, not by its address. While the
// coordinator is away nothing is queued in ZeroMQ: heartbeats of an hour ago help nobody.
//
// Thread rule: one thread, its owner's, which turns it; send() and the questions about it on any.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <zmq.hpp>

#include "common/base/event_fd.h"
#include "common/base/result.h"
#include "common/base/waking_clock.h"
#include "common/daemon/control_outbox.h"
#include "common/daemon/log.h"
#include "common/daemon/refusal_watch.h"
#include "common/security/keys.h"
#include "common/wire/messages.h"

namespace tributary {

// The daemon's side of it; all on the link's thread, and none may block.
class CoordinatorLinkOwner {
 public:
  virtual ~CoordinatorLinkOwner() = default;
  virtual ControlMessage hello_message() = 0;
  virtual Heartbeat heartbeat_message() = 0;  // but for the incarnation
  // It knows this daemon. another: and is another process than the one that did before.
  virtual void on_met(bool another) = 0;
  // It does not know this daemon any more: what it knew of our jobs is gone. Hello is said again.
  virtual void on_forgotten() = 0;
  virtual void on_control(ControlMessage message) = 0;
};

struct CoordinatorLinkOptions {
  std::string section;  // of the daemon's configuration, in words: "[server]"
  std::string coordinator;
  std::string silence;  // what its silence means, for the log: " and goes on behind "has not been heard for N ms"
  std::uint64_t incarnation = 0;
  std::uint32_t heartbeat_ms = 1000;
  std::uint32_t peer_timeout_ms = 10'000;
  std::shared_ptr<const KeyPair> own;  // null: there are no keys
  std::string coordinator_key;         // with keys: whom to talk to, and nobody else
};

class CoordinatorLink {
 public:
  static constexpr int kBatch = 64;                     // messages a turn
  static constexpr int kHighWater = 1000;               // that wait in ZeroMQ
  static constexpr int kLingerMs = 500;                 // for last words when the daemon goes
  static constexpr std::uint64_t kHelloMs = 1000;       // between hellos while unanswered
  static constexpr std::uint64_t kLongestStepMs = 250;  // of the clock that tells the coordinator's silence

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
  std::uint64_t silent_ms() const;  // since its last word
  // Why it never will know this daemon, and what to change; only before the first time.
  std::optional<std::string> refused() const;

  // ---- The owner's thread ----
  // Until there may be something to do, here or behind `also_fd`.
  void wait(int also_fd = -1);
  // What came, hello or heartbeat if one is due, what waits.
  void turn();
  void flush();
  // Nobody listened to it for a while: the silence was ours.
  void excuse_silence();
  void say_hello();
  bool send_or_drop(const ControlMessage& message);  // false: it is dropped
  void drop_waiting();
  // What this process is cannot change any more; a coordinator that knew it may have changed. Before the first time.
  bool ever_joined() const { return ever_joined_; }
  void refuse(std::string why);

 private:
  CoordinatorLink(CoordinatorLinkOptions options, CoordinatorLinkOwner& owner, Logger logger, EventFd wake);

  void receive();
  void on(ControlMessage message);
  void forgotten();
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

  mutable std::mutex mutex_;  // guards outbox_, lost_ and refused_
  ControlOutbox outbox_;
  std::string lost_;  // what had no room in it, and nobody has heard of yet
  std::optional<std::string> refused_;

  // The thread's.
  zmq::context_t context_;
  zmq::socket_t socket_;
  std::optional<RefusalWatch> refusals_;  // ends before the context
  std::string refusal_;                   // said last
  std::uint64_t again_ms_ = 0;            // connect again then; 0: there is no need
  std::uint64_t hello_ms_ = 0, beat_ms_ = 0;
  WakingClock waking_{kLongestStepMs};  // by which the coordinator is silent or not
  std::uint64_t heard_waking_ms_ = 0;
  bool ever_joined_ = false;
};

}  // namespace tributary
