// SealedBytes: bytes in shared memory that no process can change any more, even with a descriptor: repeated reads give
// the same bytes. They are a memfd, sealed against writing, which the kernel frees when its last process ends.
//
// SealedWriter writes them once; after seal() it is unusable.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "common/base/result.h"
#include "common/system/file_descriptor.h"

namespace tributary {

class SealedBytes {
 public:
  // The parts one after the other. kLimit: there is not so much memory. `purpose` names it in error messages.
  static Result<std::shared_ptr<const SealedBytes>> of(std::span<const std::span<const std::byte>> parts,
                                                       const std::string& purpose);
  // Takes bytes from another process. kMalformed: they can be changed, or have another size than the sender declared.
  static Result<std::shared_ptr<const SealedBytes>> received(FileDescriptor fd, std::size_t bytes,
                                                             const std::string& purpose);
  ~SealedBytes();
  SealedBytes(const SealedBytes&) = delete;
  SealedBytes& operator=(const SealedBytes&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  int fd() const { return fd_.get(); }

 private:
  friend class SealedWriter;
  SealedBytes(FileDescriptor fd, const std::byte* data, std::size_t size)
      : fd_(std::move(fd)), data_(data), size_(size) {}

  FileDescriptor fd_;
  const std::byte* data_;
  std::size_t size_;
};

class SealedWriter {
 public:
  static Result<SealedWriter> begin(std::size_t bytes, const std::string& purpose);
  // Appends the bytes.
  Status write(std::span<const std::byte> bytes);
  Result<std::shared_ptr<const SealedBytes>> seal();

 private:
  SealedWriter(FileDescriptor fd, std::size_t bytes, std::string purpose)
      : fd_(std::move(fd)), bytes_(bytes), purpose_(std::move(purpose)) {}

  FileDescriptor fd_;
  std::size_t bytes_;
  std::string purpose_;
};

}  // namespace tributary
