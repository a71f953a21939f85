// Folder: a folder that is held open. Whatever is reached through it lies in that folder, and not in one that somebody
// has put under its name since, or behind a link.
#pragma once

#include <string>

#include "common/base/result.h"
#include "common/system/file_descriptor.h"

namespace tributary {

class Folder {
 public:
  // The path may have links, but for its last component. kNotFound, kInvalidArgument: it is no folder, or a link; kIo.
  static Result<Folder> open(const std::string& path);
  // A folder below `top`, by a path without "..": each component is looked up in the folder before it, and is no link.
  // make: what is missing is made.
  static Result<Folder> below(const std::string& top, const std::string& path, bool make);
  // The folder of this name in this one, which is no link.
  Result<Folder> enter(const std::string& name, bool make) const;

  // How system calls reach it, and what is in it: with the name of nothing else but this process's descriptor. A file's
  // own name may still be a link's (open_to_read() and open_to_write() follow none).
  std::string through() const { return "/proc/self/fd/" + std::to_string(folder_.get()); }
  std::string in(const std::string& name) const { return through() + "/" + name; }
  // Returns the error of a file in this folder, with the path that people know.
  Error named(Error error) const;

 private:
  Folder(FileDescriptor folder, std::string path) : folder_(std::move(folder)), path_(std::move(path)) {}

  FileDescriptor folder_;
  std::string path_;
};

}  // namespace tributary
