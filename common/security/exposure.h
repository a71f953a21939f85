// Protected mode: a daemon that others than its own user can reach has keys, or its operator has declared all of them
// trusted.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "common/base/result.h"

namespace tributary {

// Returns whether no other machine can reach an address to listen on: "tcp://HOST:PORT", "ipc://PATH", "HOST:PORT".
// Names other than localhost are taken for addresses of the network. Pure.
bool stays_on_machine(std::string_view address);

// Users that may reach an address of a daemon without keys.
enum class Audience {
  kUser,     // its own user: a Unix socket in a folder that no other user may write, so that no other listens there
  kMachine,  // every user of the machine: its answers there are no secret, and it takes no orders
};
struct Listening {
  std::string key;      // of the configuration: "[server] bind"
  std::string address;  // its value
  std::string instead;  // an address that only its user reaches
  Audience widest = Audience::kUser;
};
inline constexpr std::string_view kInsecureWarning =
    "insecure = true: whoever reaches this daemon's ports can read and change its jobs";
// kConfig: an address that others reach, without keys. It names the three cures. Reads the folders of Unix sockets.
Status check_exposure(std::span<const Listening> listening, bool keys, bool insecure);

}  // namespace tributary
