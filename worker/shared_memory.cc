#include "worker/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <random>

namespace tributary {
namespace {

// Names exist only between shm_open and shm_unlink; a clash is all but impossible, and is tried again.
constexpr int kNameAttempts = 8;

std::string random_name() {
  std::random_device source;
  const std::uint64_t number = (std::uint64_t{source()} << 32) | source();
  return "/tributary-" + std::to_string(::getpid()) + "-" + std::to_string(number);
}

}  // namespace

void FileDescriptor::reset() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

Result<SharedMemory> SharedMemory::create(std::size_t bytes, const std::string& purpose) {
  FileDescriptor fd;
  for (int attempt = 0; attempt < kNameAttempts && !fd; ++attempt) {
    const std::string name = random_name();
    fd = FileDescriptor(::shm_open(name.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600));
    if (fd) {
      ::shm_unlink(name.c_str());
    } else if (errno != EEXIST) {
      break;
    }
  }
  if (!fd) {
    return fail(ErrorCode::kIo, "cannot create shared memory for " + purpose + ": " + std::strerror(errno) +
                                    "; check that /dev/shm is mounted and writable");
  }
  int problem = ::ftruncate(fd.get(), static_cast<off_t>(bytes)) == 0 ? 0 : errno;
  if (problem == 0) {
    do {
      problem = ::posix_fallocate(fd.get(), 0, static_cast<off_t>(bytes));
    } while (problem == EINTR);
  }
  if (problem != 0) {
    return fail(ErrorCode::kLimit,
                "cannot reserve " + std::to_string(bytes) + " bytes of shared memory for " + purpose + ": " +
                    std::strerror(problem) +
                    "; enlarge /dev/shm (containers: --shm-size), free memory, or use a smaller model");
  }
  return map_fd(std::move(fd), bytes, purpose);
}

Result<SharedMemory> SharedMemory::map(FileDescriptor fd, std::size_t bytes, const std::string& purpose) {
  struct stat info {};
  if (!fd || ::fstat(fd.get(), &info) != 0) {
    return fail(ErrorCode::kMalformed, "no shared memory came for " + purpose);
  }
  if (bytes == 0 || static_cast<std::uint64_t>(info.st_size) != bytes) {
    return fail(ErrorCode::kMalformed, "shared memory for " + purpose + " has " + std::to_string(info.st_size) +
                                           " bytes instead of the " + std::to_string(bytes) + " announced");
  }
  return map_fd(std::move(fd), bytes, purpose);
}

Result<SharedMemory> SharedMemory::map_fd(FileDescriptor fd, std::size_t bytes, const std::string& purpose) {
  void* address = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (address == MAP_FAILED) {
    return fail(ErrorCode::kIo, "cannot map " + std::to_string(bytes) + " bytes of shared memory for " + purpose +
                                    ": " + std::strerror(errno) + "; raise the limit on address space (ulimit -v)");
  }
  SharedMemory memory;
  memory.fd_ = std::move(fd);
  memory.data_ = static_cast<std::byte*>(address);
  memory.size_ = bytes;
  return memory;
}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : fd_(std::move(other.fd_)), data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

SharedMemory::~SharedMemory() {
  if (data_) ::munmap(data_, size_);
}

}  // namespace tributary
