// Memory that processes share: a memfd without a name, handed on as a file descriptor, so that the kernel reclaims it
// when the last process that maps it goes, however that process goes.
//
// Its size is sealed when it is made: a holder of the descriptor can neither shrink it (touching a page beyond the end
// would be a SIGBUS in all other processes) nor grow it. A process that receives a descriptor checks those seals.
// Memory for readers is sealed against writing before they get it, except in its owner's mapping: opening it again
// never allows writing. Only its owner may open it again at all (mode 0400; this needs no name: /proc/self/fd has one).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "common/base/result.h"
#include "common/system/file_descriptor.h"

namespace tributary {

// Returns the kernel's estimate of the memory available without swapping; the largest number if there is no estimate.
std::uint64_t available_memory();

// Returns whether this kernel (Linux 5.1 or newer) can keep others from writing to memory that its owner writes. If
// not, a reader of the same user may write there as well.
bool kernel_seals_writing();

// A mapping of shared memory, for reading and writing unless a function states otherwise.
class SharedMemory {
 public:
  // Rights of those who get a descriptor of it.
  enum class Peers : std::uint8_t { kWrite, kRead };

  SharedMemory() = default;
  // Zeroed memory of `bytes` (> 0), all of it reserved now: too much gives kLimit here rather than a SIGBUS later.
  // `purpose` names it in error messages.
  static Result<SharedMemory> create(std::size_t bytes, const std::string& purpose, Peers peers);
  // The same size of address space, without memory: reserve() adds it to the parts in use.
  static Result<SharedMemory> create_sparse(std::size_t bytes, const std::string& purpose, Peers peers);
  // Memory received from another process. kMalformed if it does not have exactly the size that its sender declared, or
  // if that is not sealed: touching pages beyond the end would be a SIGBUS.
  static Result<SharedMemory> map(FileDescriptor fd, std::size_t bytes, const std::string& purpose);
  // Memory received from another process, of any size, for reading only. kMalformed unless the size is sealed.
  static Result<SharedMemory> map_sealed(FileDescriptor fd, const std::string& purpose);
  // The same, for writing as well: memory that an earlier process of the same program made.
  static Result<SharedMemory> map_kept(FileDescriptor fd, const std::string& purpose);

  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&& other) noexcept;
  ~SharedMemory();

  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }
  int fd() const { return fd_.get(); }
  // The mapping stays.
  void close_fd() { fd_.reset(); }
  FileDescriptor take_fd() { return std::move(fd_); }
  explicit operator bool() const { return data_ != nullptr; }

  // Maps the same memory again, privately: it shows other processes' writes, but a page written through this mapping
  // becomes a private copy. REQUIRES: before close_fd().
  Result<SharedMemory> private_view(const std::string& purpose) const;
  // Returns a descriptor of the same memory that can be mapped for reading only. Peers::kRead: from now on it cannot be
  // mapped for writing any more, and discard() does nothing.
  Result<FileDescriptor> read_only() const;
  // Whole pages. reserve() allocates their memory, zeroed where it is new; false if there is none. discard() returns it
  // to the system; readers then find zeros.
  bool reserve(std::size_t offset, std::size_t bytes) const;
  // Maps reserved pages in advance, so that no access faults. Best effort.
  void populate(std::size_t offset, std::size_t bytes) const;
  void discard(std::size_t offset, std::size_t bytes) const;

 private:
  static Result<SharedMemory> map_own(FileDescriptor fd, std::size_t bytes, const std::string& purpose, Peers peers);
  bool seal_for_readers() const;
  static Result<SharedMemory> map_if_sealed(FileDescriptor fd, int protection, const std::string& purpose);
  static Result<SharedMemory> map_fd(FileDescriptor fd, std::size_t bytes, int protection, const std::string& purpose);
  static Result<SharedMemory> map_at(int fd, std::size_t bytes, int protection, int flags, const std::string& purpose);

  FileDescriptor fd_;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  Peers peers_ = Peers::kWrite;
};

}  // namespace tributary
