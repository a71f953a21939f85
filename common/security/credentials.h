// Credentials: the contents of the files that a daemon's [security] names. Read once, at its start.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/config/config.h"
#include "common/security/keys.h"

namespace tributary {

struct Credentials {
  std::shared_ptr<const KeyPair> own;  // null: this daemon has no keys, and neither have its peers
  std::vector<Identity> coordinators;  // the servers that may have the coordinator; none without keys
  std::vector<std::string> coordinator_keys() const {
    std::vector<std::string> keys;
    for (const Identity& one : coordinators) keys.push_back(one.key);
    return keys;
  }
  std::string authorized;   // of these servers: the folder of admitted peers' keys
  std::string admin_token;  // "": none
};

// coordinator: this daemon may have the coordinator. Then, where it is the only one, it names no coordinator_key.
// kConfig: a file that cannot be used, or one that is missing while another is given.
Result<Credentials> load_credentials(const SecurityConfig& config, Role role, bool coordinator);

// Returns the credentials of a daemon that is about to start, if its addresses are safe with them (protected mode).
// Makes this user's run folder where a socket is to be there.
Result<Credentials> credentials_of(const ServerConfig& config);
Result<Credentials> credentials_of(const WorkerConfig& config);

// Makes the checks by which a start refuses a configuration before it changes anything.
template <class Config>
Status check_start(const Result<Config>& config) {
  return config.and_then([](const Config& c) { return credentials_of(c); }).map([](const Credentials&) {});
}

}  // namespace tributary
