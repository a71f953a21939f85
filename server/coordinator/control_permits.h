// Which of the coordinator's peers may say what, in a cluster with keys (docs/security.md). Pure.
//
// Keys have a name and a role. A peer says hello as who it is (server N's key is named server-N, server 0's may be the
// coordinator's), a role says what is its to say, and whoever speaks for a
// process, or over a connection, that said hello has the key that it said hello with.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/security/keys.h"
#include "common/wire/messages.h"

namespace tributary {

// The process that a message speaks for by its number; none: it does not name one.
std::optional<std::uint64_t> process_in(const ControlMessage& message);

// With which keys hello was said; none: nobody did.
struct KeysOfHello {
  std::optional<std::string> peer;     // over this connection
  std::optional<std::string> process;  // by the process that the message names
};

// kInvalidArgument: not by this peer. In words for it.
Status check_permitted(const Identity& who, const ControlMessage& message, const KeysOfHello& known);

}  // namespace tributary
