// Memory that processes share: a memfd without a name, handed on as a file descriptor, so that the kernel reclaims it
// when the last process that maps it goes, however that process goes.
//
// Its size is sealed when it is made: whoever holds the descriptor can neither shrink it (touching a page beyond the
// end would be a SIGBUS in everybody else) nor grow it. Who gets a descriptor from another process checks those seals.
// Memory that others are to read is sealed against writing before they get it, but for the mapping that its owner has:
// no way of opening it anew leads to one. Only its owner may open it anew at all (mode 0400; to open it needs no name:
// /proc/self/fd has one).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "common/base/file_descriptor.h"
#include "common/base/result.h"

namespace tributary {

// What could be taken without swapping, in the kernel's estimate; all there can be if it says nothing.
std::uint64_t available_memory();

// Does this kernel (Linux 5.1 or newer) know how to keep others from writing to memory that its owner writes? Without
// it, who is to read memory may write there as well, if it is of the same user.
bool kernel_seals_writing();

// A mapping of shared memory, read and write unless said.
class SharedMemory {
 public:
  // Rights of those who get a descriptor of it.
  enum class Peers : std::uint8_t { kWrite, kRead };

  SharedMemory() = default;
  // Zeroed memory of `bytes` (> 0), all of it reserved now: too much gives kLimit here rather than a SIGBUS later.
  // `purpose` names it in error messages.
  static Result<SharedMemory> create(std::size_t bytes, const std::string& purpose, Peers peers);
  // The same size of address space, without memory: reserve() says which parts are used.
  static Result<SharedMemory> create_sparse(std::size_t bytes, const std::string& purpose, Peers peers);
  // Memory received from another process. kMalformed if it does not have exactly the size that its sender declared, or
  // if that is not sealed: touching pages beyond the end would be a SIGBUS.
  static Result<SharedMemory> map(FileDescriptor fd, std::size_t bytes, const std::string& purpose);
  // Memory received from another process, to be read only, of whatever size it has. kMalformed unless that is sealed.
  static Result<SharedMemory> map_sealed(FileDescriptor fd, const std::string& purpose);
  // The same, to be written as well: memory of an earlier process of one's own.
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

  // The same memory once more, to be read: what others write is seen there, and a page that is written there becomes
  // the writer's own. Before close_fd().
  Result<SharedMemory> private_view(const std::string& purpose) const;
  // A descriptor of the same memory that can be mapped for reading only. Peers::kRead: from now on nobody can map it
  // for writing any more, and discard() does nothing.
  Result<FileDescriptor> read_only() const;
  // Whole pages. reserve(): memory is there from now on, zeroed where it was not; false if there is none. discard():
  // it is given back to the system; who reads it finds zeros.
  bool reserve(std::size_t offset, std::size_t bytes) const;
  // What is reserved is mapped as well, so that nobody faults on it. No more than a wish.
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
