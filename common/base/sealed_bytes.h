// SealedBytes: bytes in shared memory that nobody can change any more, whoever has a descriptor of them: they can be
// trusted as often as they are looked at. A memfd that is sealed against writing; the kernel takes it back when the last
// process that has it goes.
//
// Written once, with SealedWriter, which counts what there is to write; after seal() it is of no use.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "common/base/file_descriptor.h"
#include "common/base/result.h"

namespace tributary {

class SealedBytes {
 public:
  // The parts one after the other. kLimit: there is not so much memory. `purpose` names it in error messages.
  static Result<std::shared_ptr<const SealedBytes>> of(std::span<const std::span<const std::byte>> parts,
                                                       const std::string& purpose);
  // Received from another process. kMalformed: it can be changed, or has another size than its sender said.
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
  // At the end of what was written before.
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
