// RefusalWatch: why a socket that connects does not get in. ZeroMQ gives a peer up that refuses its handshake, without
// a word; its monitor knows. Thread rule: the socket's.
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

  // What has become known since: why the last handshake failed, in words that say what to do. Does not block.
  // with_keys: this side shows keys.
  std::optional<std::string> failed(bool with_keys);
  // After it was given up: once more, to the endpoint that it was connected to.
  void connect_again(const std::string& endpoint);
  // A handshake has succeeded since the last failure.
  bool succeeded() const { return succeeded_; }

 private:
  zmq::socket_t& watched_;
  SocketEvents events_;
  bool succeeded_ = false;
};

}  // namespace tributary
