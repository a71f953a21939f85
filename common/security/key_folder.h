// A folder of keys, as `tributary keys` keeps it and `tributary up --secure` makes one for itself:
//
//   coordinator.key, coordinator.pub    server 0's pair, and its public key for everybody else
//   admin.token                         of the admin ports
//   NAME.key                            of the daemon of that name; goes to its machine, and need not stay
//   authorized/NAME.pub                 lets it in; is on server 0's machine
#pragma once

#include <string>

#include "common/security/keys.h"

namespace tributary {

inline constexpr const char* kCoordinatorName = "coordinator";

struct KeyFolder {
  std::string path;

  std::string pair(const std::string& name) const { return path + "/" + name + ".key"; }
  std::string coordinator() const { return path + "/" + kCoordinatorName + ".pub"; }
  std::string token() const { return path + "/admin.token"; }
  std::string authorized() const { return path + "/authorized"; }
};

// Makes a key folder with the coordinator's pair. coordinator: the role of its daemon. kInvalidArgument: one exists.
Status make_key_folder(const KeyFolder& folder, Role coordinator);
// Makes a pair for a daemon, and its .pub in authorized/. rotate: in addition to its old pair, which stays valid until
// its .pub goes. Returns the path of the pair. kInvalidArgument: the name is taken, or cannot be one.
Result<std::string> add_key(const KeyFolder& folder, const std::string& name, Role role, bool rotate = false);

}  // namespace tributary
