// RefusalWatch: the reason why a connecting socket is refused. ZeroMQ silently gives up a peer that refuses its
// handshake; only its monitor reports that. Thread rule: the socket's.
#pragma once

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
  // Connects a socket that ZeroMQ has given up again, to the endpoint that it was connected to.
  void connect_again(const std::string& endpoint);
  // Returns whether a handshake has succeeded since the last failure.
  bool succeeded() const { return succeeded_; }

 private:
  zmq::socket_t& watched_;
  SocketEvents events_;
  bool succeeded_ = false;
};

}  // namespace tributary
