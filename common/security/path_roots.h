// PathRoots: the folders below which orders may make a server read and write. An order needs only the token: the roots
// bound the damage of a stolen one.
#pragma once

#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/system/folder.h"

namespace tributary {

class PathRoots {
 public:
  // required: without roots no path is allowed; else all are.
  PathRoots(std::vector<std::string> roots, bool required) : roots_(std::move(roots)), required_(required) {}
  // kInvalidArgument: the path is not below a root, also not by a link or "..". kIo: nobody can follow the path.
  Status check(const std::string& path) const;
  // Checks and opens the folder at this path. A component that has become a link meanwhile is not followed.
  // make: missing folders are made.
  Result<Folder> open(const std::string& path, bool make = false) const;

 private:
  struct Place {
    std::string root, below;
  };
  Result<Place> find(const std::string& path) const;

  std::vector<std::string> roots_;
  bool required_;
};

}  // namespace tributary
