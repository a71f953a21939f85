// RefusalWatch: the reason why a connecting socket is refused. ZeroMQ silently gives up a peer that refuses its
// handshake; only its monitor reports that. Thread rule: the socket's.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <zmq.hpp>

#include "common/wire/socket_events.h"

namespace tributary {

class RefusalWatch {
 public:
  // Before the socket connects. It must outlive the watch.
  RefusalWatch(zmq::context_t& context, zmq::socket_t& socket);
  RefusalWatch(const RefusalWatch&) = delete;
  RefusalWatch& operator=(const RefusalWatch&) = delete;

  // Returns why the last handshake since the previous call failed, in words with the cure. Does not block.
  // with_keys: this side shows keys.
  std::optional<std::string> failed(bool with_keys);
  // The same, and kAgainMs after a refusal connects again, to the endpoint that the socket was connected to: ZeroMQ has
  // given it up, and a peer may be authorized later. Call it now and then.
  static constexpr std::uint64_t kAgainMs = 1000;
  std::optional<std::string> keep_up(const std::string& endpoint, bool with_keys, std::uint64_t now_ms);
  // At once.
  void connect_again(const std::string& endpoint);
  // Returns whether a handshake has succeeded since the last failure.
  bool succeeded() const { return succeeded_; }

 private:
  zmq::socket_t& watched_;
  SocketEvents events_;
  bool succeeded_ = false;
  std::uint64_t again_ms_ = 0;  // 0: there is no need
};

}  // namespace tributary
