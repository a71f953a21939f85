// SeatLinks: connections from a server that may have the coordinator to the others that may. Reports go out over them,
// and answers come back. (Others' reports come to the coordinator's own port.) Thread rule: the coordinator's thread.
#pragma once

#include <memory>
#include <string>
#include <vector>
#include <zmq.hpp>

#include "common/base/result.h"
#include "common/security/credentials.h"
#include "common/wire/messages.h"

namespace tributary {

class SeatLinks {
 public:
  static constexpr int kHighWater = 4;  // reports that wait; newer ones are dropped

  // addresses: of all servers that may have the coordinator, place's too. kConfig: one cannot be used.
  static Result<std::unique_ptr<SeatLinks>> open(zmq::context_t& context, const std::vector<std::string>& addresses,
                                                 ShardIndex place, const Credentials& credentials);
  ~SeatLinks();
  SeatLinks(const SeatLinks&) = delete;
  SeatLinks& operator=(const SeatLinks&) = delete;

  void send(const SeatReport& report);
  std::vector<SeatReport> receive();  // those that there are

 private:
  SeatLinks() = default;
  struct Link {
    ShardIndex place;
    zmq::socket_t socket;
  };
  std::vector<Link> links_;
};

}  // namespace tributary
