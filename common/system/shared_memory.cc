#include "common/system/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <limits>

namespace tributary {
namespace {

constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW;
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010  // linux/fcntl.h; glibc has it since 2.31
#endif
constexpr ::mode_t kOwnerReads = 0400;
constexpr decltype(::statfs::f_type) kTmpfs = 0x01021994;  // linux/magic.h
constexpr std::uint64_t kUnknown = std::numeric_limits<std::uint64_t>::max();

Result<FileDescriptor> create_sealed(std::size_t bytes, const std::string& purpose, SharedMemory::Peers peers) {
  FileDescriptor fd(::memfd_create("tributary", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  // One more seal is to come where others may only read.
  const int seals = kSizeSeals | (peers == SharedMemory::Peers::kWrite ? F_SEAL_SEAL : 0);
  if (!fd || ::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0 || ::fchmod(fd.get(), kOwnerReads) != 0 ||
      ::fcntl(fd.get(), F_ADD_SEALS, seals) != 0) {
    return fail(ErrorCode::kIo, "cannot create shared memory of " + std::to_string(bytes) + " bytes for " + purpose +
                                    ": " + std::strerror(errno) +
                                    "; memfd_create must be allowed, and the limit on open files (ulimit -n) not "
                                    "reached");
  }
  return fd;
}

}  // namespace

// A memfd has no limit of its own: a request for more than the machine has would succeed, and later a process be
// killed.
std::uint64_t available_memory() {
  std::ifstream in("/proc/meminfo");
  std::string key, unit;
  std::uint64_t kib = 0;
  while (in >> key >> kib) {
    if (key == "MemAvailable:") return kib * 1024;
    std::getline(in, unit);
  }
  return kUnknown;
}

bool kernel_seals_writing() {
  const FileDescriptor fd(::memfd_create("tributary", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  return fd && ::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE) == 0;
}

Result<SharedMemory> SharedMemory::create(std::size_t bytes, const std::string& purpose, Peers peers) {
  const std::uint64_t available = available_memory();
  int problem = bytes > available ? ENOMEM : 0;
  Result<FileDescriptor> fd = problem == 0 ? create_sealed(bytes, purpose, peers) : Result<FileDescriptor>();
  if (!fd) return tl::unexpected(fd.error());
  if (problem == 0) {
    do {
      problem = ::posix_fallocate(fd->get(), 0, static_cast<off_t>(bytes));
    } while (problem == EINTR);
  }
  if (problem != 0) {
    const std::string left = available == kUnknown ? "" : " (" + std::to_string(available) + " are available)";
    return fail(ErrorCode::kLimit, "cannot reserve " + std::to_string(bytes) + " bytes of shared memory for " +
                                       purpose + ": " + std::strerror(problem) + left +
                                       "; free memory, or use a smaller model");
  }
  return map_own(std::move(*fd), bytes, purpose, peers);
}

Result<SharedMemory> SharedMemory::create_sparse(std::size_t bytes, const std::string& purpose, Peers peers) {
  auto fd = create_sealed(bytes, purpose, peers);
  if (!fd) return tl::unexpected(fd.error());
  return map_own(std::move(*fd), bytes, purpose, peers);
}

Result<SharedMemory> SharedMemory::map_own(FileDescriptor fd, std::size_t bytes, const std::string& purpose,
                                           Peers peers) {
  auto memory = map_fd(std::move(fd), bytes, PROT_READ | PROT_WRITE, purpose);
  if (memory) memory->peers_ = peers;
  return memory;
}

Result<SharedMemory> SharedMemory::map(FileDescriptor fd, std::size_t bytes, const std::string& purpose) {
  struct stat info {};
  if (fd && ::fstat(fd.get(), &info) == 0 && (bytes == 0 || static_cast<std::uint64_t>(info.st_size) != bytes)) {
    return fail(ErrorCode::kMalformed, "shared memory for " + purpose + " has " + std::to_string(info.st_size) +
                                           " bytes instead of the " + std::to_string(bytes) + " announced");
  }
  return map_if_sealed(std::move(fd), PROT_READ | PROT_WRITE, purpose);
}

Result<SharedMemory> SharedMemory::map_sealed(FileDescriptor fd, const std::string& purpose) {
  return map_if_sealed(std::move(fd), PROT_READ, purpose);
}

Result<SharedMemory> SharedMemory::map_kept(FileDescriptor fd, const std::string& purpose) {
  return map_if_sealed(std::move(fd), PROT_READ | PROT_WRITE, purpose);
}

Result<SharedMemory> SharedMemory::map_if_sealed(FileDescriptor fd, int protection, const std::string& purpose) {
  struct stat info {};
  if (!fd || ::fstat(fd.get(), &info) != 0) {
    return fail(ErrorCode::kMalformed, "no shared memory came for " + purpose);
  }
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  // Huge pages of their own kind may run out: to touch one would be a SIGBUS, too.
  struct statfs kind {};
  const bool ordinary = ::fstatfs(fd.get(), &kind) == 0 && kind.f_type == kTmpfs;
  if (info.st_size <= 0 || seals < 0 || (seals & kSizeSeals) != kSizeSeals || !ordinary) {
    return fail(ErrorCode::kMalformed, "what came as shared memory for " + purpose + " (" +
                                           std::to_string(info.st_size) +
                                           " bytes) is no memory whose size is sealed; both sides must be of the same "
                                           "release");
  }
  return map_fd(std::move(fd), static_cast<std::size_t>(info.st_size), protection, purpose);
}

Result<SharedMemory> SharedMemory::map_fd(FileDescriptor fd, std::size_t bytes, int protection,
                                          const std::string& purpose) {
  auto memory = map_at(fd.get(), bytes, protection, MAP_SHARED, purpose);
  if (memory) memory->fd_ = std::move(fd);
  return memory;
}

// Maps without swap reserved for copies: there are none until a page is written.
Result<SharedMemory> SharedMemory::private_view(const std::string& purpose) const {
  return map_at(fd_.get(), size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, purpose);
}

Result<SharedMemory> SharedMemory::map_at(int fd, std::size_t bytes, int protection, int flags,
                                          const std::string& purpose) {
  void* address = ::mmap(nullptr, bytes, protection, flags, fd, 0);
  if (address == MAP_FAILED) {
    return fail(ErrorCode::kIo, "cannot map " + std::to_string(bytes) + " bytes of shared memory for " + purpose +
                                    ": " + std::strerror(errno) + "; raise the limit on address space (ulimit -v)");
  }
  SharedMemory memory;
  memory.data_ = static_cast<std::byte*>(address);
  memory.size_ = bytes;
  return memory;
}

// Seals the memory against writing, then against further seals.
bool SharedMemory::seal_for_readers() const {
  const int seals = ::fcntl(fd_.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SEAL) != 0) return seals >= 0;
  const bool known = ::fcntl(fd_.get(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE) == 0 || errno == EINVAL;  // an older kernel
  return known && ::fcntl(fd_.get(), F_ADD_SEALS, F_SEAL_SEAL) == 0;
}

// Opens the memory through /proc, because a duplicate would keep the right to write.
Result<FileDescriptor> SharedMemory::read_only() const {
  if (peers_ == Peers::kRead && !seal_for_readers()) {
    return fail(ErrorCode::kIo, std::string("cannot seal shared memory against writing: ") + std::strerror(errno));
  }
  FileDescriptor fd(::open(("/proc/self/fd/" + std::to_string(fd_.get())).c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) {
    return fail(ErrorCode::kIo, std::string("cannot open shared memory for reading: ") + std::strerror(errno) +
                                    "; /proc must be mounted");
  }
  return fd;
}

bool SharedMemory::reserve(std::size_t offset, std::size_t bytes) const {
  int problem;
  do {
    problem = ::posix_fallocate(fd_.get(), static_cast<off_t>(offset), static_cast<off_t>(bytes));
  } while (problem == EINTR);
  return problem == 0;
}

void SharedMemory::populate(std::size_t offset, std::size_t bytes) const {
#ifdef MADV_POPULATE_WRITE
  ::madvise(data_ + offset, bytes, MADV_POPULATE_WRITE);
#else
  (void)offset, (void)bytes;
#endif
}

void SharedMemory::discard(std::size_t offset, std::size_t bytes) const {
  ::madvise(data_ + offset, bytes, MADV_REMOVE);
}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : fd_(std::move(other.fd_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      peers_(other.peers_) {}

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(peers_, other.peers_);
  return *this;
}

SharedMemory::~SharedMemory() {
  if (data_) ::munmap(data_, size_);
}

}  // namespace tributary
