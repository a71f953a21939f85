// Recognises a lane's error where a control message was expected: the daemon's configuration has a lane's address as
// the coordinator's.
#pragma once

#include <span>
#include <string>
#include <variant>

#include "common/wire/codec.h"

namespace tributary {

inline bool is_lane_reply(std::span<const std::byte> bytes) {
  const Result<DataMessage> decoded = decode_data(bytes);
  return decoded && std::holds_alternative<ErrorReply>(*decoded);
}

// section: of the daemon's configuration file, "[server]".
inline std::string lane_as_coordinator(const std::string& section, const std::string& address) {
  return section + " coordinator = \"" + address +
         "\" is the address of a server's lane (its [server] bind), not of the coordinator; give that of server 0's "
         "[server] coordinator";
}

}  // namespace tributary
