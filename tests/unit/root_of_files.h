// Folder that stands for the root of a file system: a test says what is in its /proc and /sys.
#pragma once

#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <string>
#include <utility>

#include "tests/unit/temp_dir.h"

namespace tributary::testing {

class RootOfFiles {
 public:
  RootOfFiles(std::initializer_list<std::pair<std::string, std::string>> files) {
    for (const auto& [path, text] : files) {
      const std::filesystem::path file = directory_ / path;
      std::filesystem::create_directories(file.parent_path());
      std::ofstream(file) << text;
    }
  }
  std::string path() const { return directory_ / ""; }

 private:
  TempDir directory_;
};

}  // namespace tributary::testing
