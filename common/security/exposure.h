// Protected mode: a daemon that others than its own user can reach has keys, or its operator has said that everybody is
// trusted.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "common/base/result.h"

namespace tributary {

// Of an address to listen on: "tcp://HOST:PORT", "ipc://PATH", "HOST:PORT". Nobody on another machine gets there. Names
// other than localhost are taken for addresses of the network. Pure.
bool stays_on_machine(std::string_view address);

// Users that may reach an address of a daemon without keys.
enum class Audience {
  kUser,     // its own user: a Unix socket in a folder that nobody else may write, so that nobody else listens there
  kMachine,  // every user of the machine: what it says there is no secret, and it takes no orders
};
struct Listening {
  std::string key;      // of the configuration: "[server] bind"
  std::string address;  // what it has
  std::string instead;  // the same for nobody else
  Audience widest = Audience::kUser;
};
inline constexpr std::string_view kInsecureWarning =
    "insecure = true: whoever reaches this daemon's ports can read and change its jobs";
// kConfig: an address that others reach, without keys. It names the three cures. Looks at the folders of Unix sockets.
Status check_exposure(std::span<const Listening> listening, bool keys, bool insecure);

}  // namespace tributary
