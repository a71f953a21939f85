// ChunkReader: reads chunks of snapshots from other servers' ports for copies (server/copies/copy_port.h), in the order
// in which they are asked for, over one connection to each server. Every chunk is checked before it is handed on.
//
// Thread rule: one thread. REQUIRES: the ZeroMQ context and the keys outlive this object.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>
#include <zmq.hpp>

#include "common/base/result.h"
#include "common/security/keys.h"
#include "common/wire/messages.h"
#include "server/chunk/stored_chunk.h"

namespace tributary {

class ChunkReader {
 public:
  static constexpr std::uint64_t kPatienceMs = 60'000;  // without an answer
  static constexpr std::uint64_t kAgainMs = 5'000;      // without one it connects again, and asks again
  static constexpr int kMostAsked = 4;                  // of a server at a time

  // A chunk as it came, and the memory of its bytes.
  struct Arrived {
    CopiedChunk head;
    std::vector<zmq::message_t> values;
    StoredChunk chunk;
  };

  // own: null if there are no keys.
  ChunkReader(zmq::context_t& context, const KeyPair* own) : context_(context), own_(own) {}

  // Asks for a chunk of a part that this server has. REQUIRES: open() < kMostAsked.
  Status ask(const ServerEntry& from, const WantChunk& want);
  std::size_t open() const { return asked_.size(); }
  // The oldest chunk that is open, if it comes within kPollMs. kUnavailable: it does not come; else what is wrong with it.
  Result<std::optional<Arrived>> next();

 private:
  static constexpr long kPollMs = 100;
  struct Question {
    ServerEntry from;
    WantChunk want;
    bool sent = false;
  };
  Result<zmq::socket_t*> socket_to(const ServerEntry& server);
  Status send_open();
  Status wait_longer(const Question& oldest);

  zmq::context_t& context_;
  const KeyPair* const own_;
  std::map<std::string, zmq::socket_t> sockets_;  // by endpoint
  std::deque<Question> asked_;
  std::uint64_t heard_ms_ = 0;  // or began to wait
  std::uint64_t tried_ms_ = 0;  // connected
};

}  // namespace tributary
