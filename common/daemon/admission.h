// Admission: who may connect to the sockets of a ZeroMQ context (ZeroMQ's authentication protocol, RFC 27): asked at
// each handshake, on a thread of its own, so that a lane's long step keeps nobody waiting. To be started before the
// context's first socket listens, and destroyed before the context ends.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <zmq.hpp>

#include "common/base/event_fd.h"
#include "common/base/result.h"
#include "common/daemon/log.h"

namespace tributary {

class Admission {
 public:
  // What a peer shows: its public key, which it has proved to be its own, or (key empty) a one-time token.
  struct Shown {
    std::string key;
    std::string token, proof;
  };
  // On the admission's thread: whose key its messages come with, or why it may not come in.
  using Decide = std::function<Result<std::string>(const Shown& shown)>;

  // what: they connect to, for the log: "the coordinator".
  static Result<std::unique_ptr<Admission>> start(zmq::context_t& context, std::string what, Decide decide,
                                                  Logger logger);
  ~Admission();
  Admission(const Admission&) = delete;
  Admission& operator=(const Admission&) = delete;

  std::uint64_t refused() const { return refused_.load(std::memory_order_relaxed); }

 private:
  Admission(zmq::context_t& context, std::string what, Decide decide, Logger logger, EventFd stop);
  void run();
  void answer();

  const std::string what_;
  const Decide decide_;
  RateLimitedLog noise_;
  EventFd stop_;
  std::atomic<bool> stopping_{false};
  std::atomic<std::uint64_t> refused_{0};
  zmq::socket_t socket_;
  std::thread thread_;
};

}  // namespace tributary
