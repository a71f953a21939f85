// POSIX shared memory without a name: created, unlinked at once and handed on as a file descriptor, so that the kernel
// reclaims it when the last process that maps it goes, however that process goes.
#pragma once

#include <cstddef>
#include <string>
#include <utility>

#include "common/result.h"

namespace tributary {

// Owns a file descriptor.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~FileDescriptor() { reset(); }
  void reset();
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// A mapping of shared memory, read and write.
class SharedMemory {
 public:
  SharedMemory() = default;
  // Zeroed memory of `bytes` (> 0), all of it reserved now: a full /dev/shm gives kLimit here rather than a SIGBUS
  // later. `purpose` names it in error messages.
  static Result<SharedMemory> create(std::size_t bytes, const std::string& purpose);
  // Memory received from another process. kMalformed if it does not have exactly the size that its sender declared:
  // touching pages beyond the end would be a SIGBUS.
  static Result<SharedMemory> map(FileDescriptor fd, std::size_t bytes, const std::string& purpose);

  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&& other) noexcept;
  ~SharedMemory();

  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  int fd() const { return fd_.get(); }
  // The mapping stays. Once everybody has mapped it the descriptor is only a way to change its size by mistake.
  void close_fd() { fd_.reset(); }
  explicit operator bool() const { return data_ != nullptr; }

 private:
  static Result<SharedMemory> map_fd(FileDescriptor fd, std::size_t bytes, const std::string& purpose);

  FileDescriptor fd_;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace tributary
