// Permissions of the coordinator's peers to send messages, in a cluster with keys (docs/security.md). Pure.
//
// Keys have a name and a role. The name limits the hello (server N's key is named server-N, server 0's may be the
// coordinator's), and the role limits the kinds of messages. A message for a process, or over a connection, must come
// with the key of its hello.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/security/keys.h"
#include "common/wire/messages.h"

namespace tributary {

// Returns the process that a message names by its number; none: it names none.
std::optional<std::uint64_t> process_in(const ControlMessage& message);

// The keys of the hellos so far; none: there was no hello.
struct KeysOfHello {
  std::optional<std::string> peer;     // over this connection
  std::optional<std::string> process;  // by the process that the message names
};

// Returns whether this peer may send the message. kInvalidArgument: it may not; the text is for the peer.
Status check_permitted(const Identity& who, const ControlMessage& message, const KeysOfHello& known);

}  // namespace tributary
