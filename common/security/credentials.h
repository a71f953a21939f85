// Credentials: what the files say that a daemon's [security] names. Read once, at its start.
#pragma once

#include <memory>
#include <string>

#include "common/config/config.h"
#include "common/security/keys.h"

namespace tributary {

struct Credentials {
  std::shared_ptr<const KeyPair> own;  // null: this daemon has no keys, and neither have its peers
  std::string coordinator_key;         // public, of the coordinator; "" without keys
  std::string authorized;              // of the coordinator: the folder of who may come in
  std::string admin_token;             // "": none
};

// coordinator: this daemon is the coordinator itself.
// kConfig: a file that cannot be used, or one that is missing beside another.
Result<Credentials> load_credentials(const SecurityConfig& config, Role role, bool coordinator);

// Of a daemon that is about to start: its credentials, if what it listens on goes with them (protected mode).
// Makes this user's run folder where a socket is to be there.
Result<Credentials> credentials_of(const ServerConfig& config);
Result<Credentials> credentials_of(const WorkerConfig& config);

// What a start refuses before it touches anything.
template <class Config>
Status check_start(const Result<Config>& config) {
  return config.and_then([](const Config& c) { return credentials_of(c); }).map([](const Credentials&) {});
}

}  // namespace tributary
