// SeatLinks: connections from a server that may have the coordinator to the others that may. Reports go out over them,
// and answers come back. (Others' reports come to the coordinator's own port.) Thread rule: the coordinator's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>
#include <zmq.hpp>

#include "common/base/result.h"
#include "common/daemon/log.h"
#include "common/daemon/refusal_watch.h"
#include "common/security/credentials.h"
#include "common/wire/messages.h"

namespace tributary {

class SeatLinks {
 public:
  static constexpr int kHighWater = 4;  // reports that wait; newer ones are dropped
  static constexpr int kBatch = 64;     // of a server, a turn

  // addresses: of all servers that may have the coordinator, place's too. kConfig: one cannot be used.
  static Result<std::unique_ptr<SeatLinks>> open(zmq::context_t& context, const std::vector<std::string>& addresses,
                                                 ShardIndex place, const Credentials& credentials, Logger logger);
  ~SeatLinks();
  SeatLinks(const SeatLinks&) = delete;
  SeatLinks& operator=(const SeatLinks&) = delete;

  void send(const SeatReport& report);
  std::vector<SeatReport> receive();  // those that there are
  // Now and then: connects again where a peer has refused this server's key.
  void tick(std::uint64_t now_ms);

 private:
  SeatLinks(bool keys, Logger logger) : keys_(keys), logger_(std::move(logger)) {}
  struct Link {
    ShardIndex place;
    std::string address;
    zmq::socket_t socket;
    std::optional<RefusalWatch> refusals;  // ends before the socket
    std::string refusal;                   // logged last
    bool misplaced = false;                // it calls itself another server, and that was logged
  };
  const bool keys_;
  Logger logger_;
  std::vector<std::unique_ptr<Link>> links_;
};

}  // namespace tributary
