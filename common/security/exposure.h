// Protected mode: a daemon that other machines can reach has keys, or its operator has said that the network is
// trusted. Pure.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "common/base/result.h"

namespace tributary {

// Of an address to listen on: "tcp://HOST:PORT", "ipc://PATH", "HOST:PORT". Nobody on another machine gets there. Names
// other than localhost are taken for addresses of the network.
bool stays_on_machine(std::string_view address);

struct Listening {
  std::string key;      // of the configuration: "[server] bind"
  std::string address;  // what it has
  std::string instead;  // the same on this machine only
};
inline constexpr std::string_view kInsecureWarning =
    "insecure = true: whoever reaches this daemon's ports can read and change its jobs";
// kConfig: an address that others reach, without keys. It names the three cures.
Status check_exposure(std::span<const Listening> listening, bool keys, bool insecure);

}  // namespace tributary
