// A folder for a measurement's files, removed with this object.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <string>
#include <system_error>

namespace tributary::bench {

struct ScratchFolder {
  ScratchFolder() {
    char name[] = "/tmp/tributary-bench-XXXXXX";
    if (::mkdtemp(name)) path = name;
  }
  ~ScratchFolder() {
    std::error_code ignored;
    if (!path.empty()) std::filesystem::remove_all(path, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  std::string path;  // empty: it could not be made
};

}  // namespace tributary::bench
