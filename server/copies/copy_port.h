// CopyPort: the port at which other servers read this server's snapshots (docs/copies.md), a chunk at a time.
// A thread of its own with low priority answers them.
//
// In a cluster with keys, servers that the coordinator names are admitted, and no others. Thread rule: admit() and
// endpoint() from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <zmq.hpp>

#include "common/daemon/command_queue.h"
#include "common/daemon/log.h"
#include "common/security/keys.h"
#include "common/wire/messages.h"
#include "server/coordinator/cluster/admission.h"
#include "server/store/store.h"

namespace tributary {

class CopyPort {
 public:
  static constexpr std::size_t kMaxFrame = kMaxDataPayload + 4096;  // bytes; an array of a chunk is no longer
  static constexpr std::size_t kMaxPinned = 8;                      // snapshots that are held for readers
  static constexpr std::uint64_t kPinnedMs = 90'000;                // after the last question

  struct Options {
    std::string address;                 // to bind
    std::string advertise;               // as ServerConfig::advertise
    std::shared_ptr<const KeyPair> own;  // null: there are no keys
  };

  // REQUIRES: store outlives this object. kUnavailable: the address is taken.
  static Result<std::unique_ptr<CopyPort>> start(Store& store, Options options, Logger logger);
  ~CopyPort();
  CopyPort(const CopyPort&) = delete;
  CopyPort& operator=(const CopyPort&) = delete;

  const std::string& endpoint() const { return endpoint_; }
  // The servers that may read from now on.
  void admit(const ServerBook& book);

 private:
  CopyPort(Store& store, Options options, Logger logger, EventFd wake);
  Status bind();
  bool admits(const std::string& key) const;
  void run();
  void answer(zmq::message_t from, const zmq::message_t& question);
  Result<const PinnedSnapshot*> pinned(const WantChunk& want, std::uint64_t now_ms);
  void forget(std::uint64_t now_ms);

  struct Pinned {
    WantChunk what;  // place: 0
    PinnedSnapshot snapshot;
    std::uint64_t used_ms = 0;
  };

  Store& store_;
  const Options options_;
  Logger logger_;
  RateLimitedLog noise_;
  EventFd wake_;
  std::atomic<bool> stopping_{false};
  mutable std::mutex mutex_;
  std::set<std::string> keys_;  // of servers that may read
  std::list<Pinned> pinned_;    // the thread's; the last used first
  zmq::context_t context_;
  zmq::socket_t socket_;
  std::unique_ptr<Admission> admission_;
  std::string endpoint_, ipc_path_;
  std::thread thread_;
};

}  // namespace tributary
