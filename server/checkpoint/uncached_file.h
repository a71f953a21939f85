// UncachedFileWriter: a file written past the page cache, where the file system can. The cache's copies and write-back,
// in bursts and on threads of normal priority, would slow the rounds of a training nearby. Knows its checksum.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "common/base/checksum.h"
#include "common/base/result.h"
#include "common/files/durable_file.h"

namespace tributary {

class UncachedFileWriter {
 public:
  // A file of that name is replaced.
  static Result<std::unique_ptr<UncachedFileWriter>> create(std::string path);
  Status put(const void* data, std::size_t bytes);
  Status finish();  // durable when it returns

  std::uint64_t bytes() const { return bytes_; }
  std::string checksum() const { return checksum_.hex(); }

 private:
  UncachedFileWriter(std::string path, FileDescriptor file);
  Status write_buffer(std::size_t bytes);

  struct Free {
    void operator()(std::byte* memory) const;
  };
  const std::string path_;
  FileDescriptor file_;
  Checksum128 checksum_;
  std::unique_ptr<std::byte[], Free> buffer_;  // aligned
  std::size_t buffered_ = 0;
  std::uint64_t bytes_ = 0, written_ = 0;
};

}  // namespace tributary
