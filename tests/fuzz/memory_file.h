// A file in memory, for parsers that are given a path.
#pragma once

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/system/file_descriptor.h"
#include "tests/fuzz/fuzz_target.h"

namespace tributary::fuzz {

class MemoryFile {
 public:
  MemoryFile() : file_(::memfd_create("fuzz", MFD_CLOEXEC)) {
    require(file_ && ::fchmod(file_.get(), 0600) == 0, "there is a file in memory");
  }
  std::string path() const { return "/proc/self/fd/" + std::to_string(file_.get()); }
  void write(std::span<const std::byte> bytes) {
    require(::ftruncate(file_.get(), 0) == 0 &&
                ::pwrite(file_.get(), bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()),
            "the file in memory is written");
  }

 private:
  FileDescriptor file_;
};

}  // namespace tributary::fuzz
