#include "common/host_identity.h"

#include <sys/stat.h>

#include <fstream>

#include "common/incarnation.h"

namespace tributary {

std::string host_identity() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  struct stat network {};
  if (!std::getline(file, boot) || boot.empty() || ::stat("/proc/self/ns/net", &network) != 0) {
    return "unknown-" + std::to_string(random_incarnation());
  }
  return boot + "/" + std::to_string(network.st_ino);
}

}  // namespace tributary
