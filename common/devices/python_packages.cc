#include "common/devices/python_packages.h"

#include <algorithm>
#include <filesystem>
#include <sstream>

namespace tributary {
namespace {

namespace fs = std::filesystem;

// The folders in `in`, by name, whose name begins with `prefix`. None where there is nothing to read.
std::vector<fs::path> folders(const fs::path& in, const std::string& prefix = {}) {
  std::vector<fs::path> found;
  std::error_code failed;
  for (fs::directory_iterator at(in, failed), end; !failed && at != end; at.increment(failed)) {
    std::error_code not_a_folder;
    if (at->path().filename().string().starts_with(prefix) && at->is_directory(not_a_folder)) {
      found.push_back(at->path());
    }
  }
  std::ranges::sort(found);
  return found;
}

void add(std::vector<std::string>& all, const fs::path& prefix) {
  for (const fs::path& python : folders(prefix / "lib", "python3")) {
    for (const char* packages : {"site-packages", "dist-packages"}) {
      for (const fs::path& package : folders(python / packages / "nvidia")) {
        std::error_code failed;
        const std::string libraries = package / "lib";
        if (fs::is_directory(libraries, failed) && std::ranges::find(all, libraries) == all.end()) {
          all.push_back(libraries);
        }
      }
    }
  }
}

}  // namespace

std::vector<std::string> python_library_folders(const std::string& path, const std::string& home) {
  std::vector<std::string> all;
  std::istringstream entries(path);
  for (std::string entry; std::getline(entries, entry, ':');) {
    std::error_code failed;
    if (entry.empty() || !fs::exists(fs::path(entry) / "python3", failed)) continue;
    const fs::path prefix = (fs::path(entry) / "python3").lexically_normal().parent_path().parent_path();
    add(all, prefix);
    add(all, prefix / "local");  // where Debian's Python puts what pip installs
  }
  if (!home.empty()) add(all, fs::path(home) / ".local");
  return all;
}

}  // namespace tributary
