#include "common/security/credentials.h"

#include <zmq.h>

#include <string>
#include <tuple>
#include <vector>

#include "common/security/exposure.h"
#include "common/system/host_port.h"
#include "common/system/private_folder.h"

namespace tributary {

Result<Credentials> load_credentials(const SecurityConfig& config, Role role, bool coordinator) {
  Credentials credentials;
  if (!config.admin_token.empty()) {
    auto token = read_token(config.admin_token);
    if (!token) return tl::unexpected(token.error());
    credentials.admin_token = std::move(*token);
  }
  const auto missing = [&](const char* key, const char* what) {
    return fail(ErrorCode::kConfig, std::string("[security] ") + key + " is not set, but keys is: it names " + what);
  };
  if (config.keys.empty()) {
    if (config.coordinator_keys.empty() && config.authorized.empty()) return credentials;
    return fail(ErrorCode::kConfig,
                "[security] has coordinator_key or authorized, but no keys: name this daemon's own "
                ".key file, which `tributary keys new` makes");
  }
  int major = 0, minor = 0, patch = 0;
  zmq_version(&major, &minor, &patch);
  if (std::tuple(major, minor, patch) < std::tuple(4, 3, 3)) {
    return fail(ErrorCode::kConfig, "ZeroMQ " + std::to_string(major) + "." + std::to_string(minor) + "." +
                                        std::to_string(patch) +
                                        " has known holes (CVE-2020-15166); keys need 4.3.3 or "
                                        "newer");
  }
  auto own = read_key_pair(config.keys);
  if (!own) return tl::unexpected(own.error());
  if (own->identity.role != role) {
    return fail(ErrorCode::kConfig, config.keys + " has the key of " + in_words(own->identity) + ", and this is a " +
                                        word(role) + ": make one with `tributary keys new NAME --role " + word(role) +
                                        "`");
  }
  credentials.own = std::make_shared<const KeyPair>(std::move(*own));
  if (coordinator) {
    if (credentials.admin_token.empty()) return missing("admin_token", "the file of the admin port's token");
    if (config.authorized.empty()) return missing("authorized", "the folder with the .pub files of who may come in");
    credentials.authorized = config.authorized;
    if (config.coordinator_keys.size() < 2) {  // it is the only one
      credentials.coordinators = {credentials.own->identity};
      return credentials;
    }
  }
  if (config.coordinator_keys.empty()) return missing("coordinator_key", "the coordinator's .pub file");
  for (const std::string& path : config.coordinator_keys) {
    auto identity = read_identity(path);
    if (!identity) return tl::unexpected(identity.error());
    credentials.coordinators.push_back(std::move(*identity));
  }
  return credentials;
}

namespace {

// admin: the key and address of the admin port. Without keys check_exposure() judges it.
Result<Credentials> if_safe(Result<Credentials> credentials, const std::vector<Listening>& listening,
                            const Listening& admin, bool insecure) {
  if (!credentials) return credentials;
  if (credentials->own && credentials->admin_token.empty() && !stays_on_machine(admin.address)) {
    return fail(ErrorCode::kConfig, admin.key + " = \"" + admin.address +
                                        "\" is not on this machine alone, and has no token: whoever gets there could "
                                        "read names, rounds and losses. Either listen on loopback (" +
                                        admin.key + " = \"" + admin.instead +
                                        "\", which ssh -L brings to other machines), or give it a token ([security] "
                                        "admin_token)");
  }
  for (const Listening& at : listening) {
    const auto path = ipc_path(at.address);
    if (!path) continue;
    if (Status made = prepare_socket_folder(std::string(*path)); !made) return tl::unexpected(made.error());
  }
  if (Status safe = check_exposure(listening, credentials->own != nullptr, insecure); !safe)
    return tl::unexpected(safe.error());
  return credentials;
}

std::vector<Listening> coordinators(const std::string& key, const std::vector<std::string>& addresses) {
  std::vector<Listening> listening;
  for (const std::string& address : addresses) listening.push_back({key, address, default_coordinator()});
  return listening;
}

}  // namespace

// Judges the coordinator's address on every server, not only on server 0: the process behind it gives orders.
Result<Credentials> credentials_of(const ServerConfig& config) {
  // The lanes' place may follow from the coordinator's.
  const Listening admin{"[server] admin", config.admin, "127.0.0.1:0", Audience::kMachine};
  std::vector<Listening> listening = coordinators("[server] coordinator", config.coordinators);
  listening.push_back({"[server] bind", lanes_bind(config), lanes_bind({.index = config.index})});
  listening.push_back(admin);
  Result<Credentials> credentials = load_credentials(config.security, Role::kServer, may_coordinate(config));
  if (credentials && credentials->coordinators.size() > 1 && may_coordinate(config) &&
      credentials->coordinators[config.index].key != credentials->own->identity.key) {
    return fail(ErrorCode::kConfig,
                "[security] coordinator_key has " + config.security.coordinator_keys[config.index] +
                    " in the place of server " + std::to_string(config.index) +
                    ", which is not the public key of this server's [security] keys: the keys are in "
                    "the order of the addresses in [server] coordinator");
  }
  return if_safe(std::move(credentials), listening, admin, config.security.insecure);
}

// An address for all-reduce jobs has no keys anyway, and is on the network where the coordinator is.
Result<Credentials> credentials_of(const WorkerConfig& config) {
  const Listening admin{"[worker] admin", config.admin, "127.0.0.1:0", Audience::kMachine};
  std::vector<Listening> listening = coordinators("[worker] coordinator", config.coordinators);
  listening.push_back(admin);
  listening.push_back({"[worker] address", config.address, "", Audience::kMachine});
  return if_safe(load_credentials(config.security, Role::kWorker, config.serve_coordinator), listening, admin,
                 config.security.insecure);
}

}  // namespace tributary
