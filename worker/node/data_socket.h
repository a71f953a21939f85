// DataSocket: a node's connection to a lane of a server. With keys it shows the node's: by CURVE, or, where the lane
// does not encrypt, by one-time tokens (common/security/data_tokens.h). ZeroMQ left to itself would connect again with
// the token that was used; there it does not, and tick() does, with the next one. Thread rule: the lane's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <zmq.hpp>

#include "common/security/data_tokens.h"
#include "common/security/keys.h"
#include "common/wire/socket_events.h"

namespace tributary {

struct DataPeer {
  std::string endpoint;
  std::shared_ptr<const KeyPair> own = nullptr;  // null: there are no keys
  std::string key = {};                          // with keys: the server's
  std::optional<DataToken> token = {};           // the lane does not encrypt: the first token
};

class DataSocket {
 public:
  static constexpr std::uint64_t kAgainMs = 250;  // between two attempts to connect again

  // Connects. zmq::error_t: not to that endpoint.
  DataSocket(zmq::context_t& context, DataPeer peer, std::size_t max_message, int high_water);
  DataSocket(DataSocket&&) = default;

  zmq::socket_t& socket() { return socket_; }
  // Connects again where ZeroMQ does not. Returns a log line if the lane refused the last attempt. Does not block.
  std::optional<std::string> tick(std::uint64_t now_ms);
  // Closes the socket, drops queued messages and returns their memory.
  void close();

 private:
  void connect();
  std::optional<std::string> look();

  DataPeer peer_;
  zmq::socket_t socket_;
  std::optional<SocketEvents> events_;  // of the socket, with tokens
  bool lost_ = false;
  std::uint64_t again_ms_ = 0;
};

}  // namespace tributary
