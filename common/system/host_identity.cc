#include "common/system/host_identity.h"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "common/system/incarnation.h"

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

std::string file_identity(const std::string& path) {
  std::error_code error;
  const std::filesystem::path file = std::filesystem::absolute(path, error).lexically_normal();
  struct stat folder {};
  if (error || ::stat(file.parent_path().c_str(), &folder) != 0) return {};
  return host_identity() + "/" + std::to_string(folder.st_dev) + "/" + std::to_string(folder.st_ino) + "/" +
         file.filename().string();
}

}  // namespace tributary
