#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <new>
#include <string>

#include "common/system/shared_memory.h"
#include "session/shared/attach_region.h"
#include "tests/unit/expect.h"
#include "tests/unit/required.h"

namespace tributary::shared_memory_test {

TEST_CASE("shared memory is zeroed, shared with whoever gets the descriptor, and has no name") {
  auto memory = required(SharedMemory::create(10'000, "a test", SharedMemory::Peers::kWrite));
  CHECK(memory.size() == 10'000);
  CHECK(std::all_of(memory.data(), memory.data() + 10'000, [](std::byte b) { return b == std::byte{0}; }));

  auto other = required(SharedMemory::map(FileDescriptor(dup(memory.fd())), 10'000, "a test"));
  CHECK(other.data() != memory.data());
  memory.data()[9'999] = std::byte{7};
  CHECK(other.data()[9'999] == std::byte{7});
  // The mapping outlives the creator's.
  memory = SharedMemory();
  other.close_fd();
  CHECK(other.data()[9'999] == std::byte{7});
}

TEST_CASE("a private view shows what others write, and what is written there is its own") {
  auto memory = required(SharedMemory::create(3 * 4096, "a test", SharedMemory::Peers::kWrite));
  memory.data()[0] = std::byte{1};
  auto view = required(memory.private_view("a test"));
  CHECK(view.size() == memory.size());
  CHECK(view.data()[0] == std::byte{1});
  memory.data()[0] = memory.data()[4096] = std::byte{2};
  CHECK(view.data()[0] == std::byte{2});
  view.data()[1] = std::byte{9};
  CHECK(memory.data()[1] == std::byte{0});
  memory.data()[0] = memory.data()[4096] = std::byte{3};
  CHECK(view.data()[0] == std::byte{2});     // of the page that was written, what it had then
  CHECK(view.data()[4096] == std::byte{3});  // the others go on
  memory = SharedMemory();
  CHECK(view.data()[4096] == std::byte{3});
}

TEST_CASE("memory of another size than announced is refused") {
  auto memory = required(SharedMemory::create(8'192, "a test", SharedMemory::Peers::kWrite));
  for (const std::size_t announced : {0u, 4'096u, 8'191u, 8'193u, 1u << 20}) {
    const auto mapped = failure_of(SharedMemory::map(FileDescriptor(dup(memory.fd())), announced, "a test"));
    CHECK(mapped.code == ErrorCode::kMalformed);
    CHECK(testing::contains(mapped.message, "8192"));
  }
  CHECK_FALSE(SharedMemory::map(FileDescriptor(), 8'192, "a test"));
}

TEST_CASE("nobody who has the descriptor can change the size under the others") {
  auto memory = required(SharedMemory::create(8'192, "a test", SharedMemory::Peers::kWrite));
  CHECK(ftruncate(memory.fd(), 4'096) != 0);
  CHECK(ftruncate(memory.fd(), 12'288) != 0);
  CHECK(fcntl(memory.fd(), F_ADD_SEALS, F_SEAL_WRITE) != 0);
  memory.data()[8'191] = std::byte{1};
}

TEST_CASE("memory for reading is taken only if its size is sealed, and cannot be written") {
  auto memory = required(SharedMemory::create(8'192, "a test", SharedMemory::Peers::kWrite));
  auto readable = required(memory.read_only());
  CHECK(mmap(nullptr, 4'096, PROT_READ | PROT_WRITE, MAP_SHARED, readable.get(), 0) == MAP_FAILED);
  const auto mapped = required(SharedMemory::map_sealed(std::move(readable), "a test"));
  CHECK(mapped.size() == 8'192);
  memory.data()[8'191] = std::byte{7};
  CHECK(mapped.data()[8'191] == std::byte{7});

  FileDescriptor unsealed(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  REQUIRE(ftruncate(unsealed.get(), 4'096) == 0);
  int pipe_ends[2];
  REQUIRE(pipe(pipe_ends) == 0);
  const FileDescriptor other_end(pipe_ends[1]);
  FileDescriptor fds[] = {std::move(unsealed), FileDescriptor(pipe_ends[0]),
                          FileDescriptor(open("/dev/zero", O_RDONLY)), FileDescriptor()};
  for (FileDescriptor& fd : fds) {
    const auto refused = failure_of(SharedMemory::map_sealed(std::move(fd), "a test"));
    CHECK(refused.code == ErrorCode::kMalformed);
  }
}

// Every way there is from a descriptor to memory that can be written.
bool can_write_with(int fd) {
  void* const at = mmap(nullptr, 4'096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at != MAP_FAILED) munmap(at, 4'096);
  void* const readable = mmap(nullptr, 4'096, PROT_READ, MAP_SHARED, fd, 0);
  const bool changed = readable != MAP_FAILED && mprotect(readable, 4'096, PROT_READ | PROT_WRITE) == 0;
  if (readable != MAP_FAILED) munmap(readable, 4'096);
  const char byte = 1;
  return at != MAP_FAILED || changed || pwrite(fd, &byte, 1, 0) == 1;
}

TEST_CASE("who gets memory to read cannot write there, also by opening it anew, and its owner goes on writing") {
  REQUIRE(kernel_seals_writing());
  auto memory = required(SharedMemory::create(8'192, "a test", SharedMemory::Peers::kRead));
  const auto readable = required(memory.read_only());
  CHECK_FALSE(can_write_with(readable.get()));
  // As root, or after a chmod, both of which the owner's processes may do.
  REQUIRE(fchmod(readable.get(), 0600) == 0);
  const FileDescriptor anew(open(("/proc/self/fd/" + std::to_string(readable.get())).c_str(), O_RDWR));
  REQUIRE(anew);
  CHECK_FALSE(can_write_with(anew.get()));
  CHECK(fcntl(anew.get(), F_ADD_SEALS, F_SEAL_WRITE) != 0);
  CHECK(fallocate(anew.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4'096) != 0);

  memory.data()[4'097] = std::byte{7};
  auto again = required(memory.read_only());
  const auto mapped = required(SharedMemory::map_sealed(std::move(again), "a test"));
  CHECK(mapped.data()[4'097] == std::byte{7});
}

TEST_CASE("memory to be written is open to those who get its descriptor, and to no other user") {
  auto memory = required(SharedMemory::create(8'192, "a test", SharedMemory::Peers::kWrite));
  CHECK(can_write_with(memory.fd()));
  struct stat info {};
  REQUIRE(fstat(memory.fd(), &info) == 0);
  CHECK((info.st_mode & 07777) == 0400);
  const auto readable = required(memory.read_only());
  CHECK_FALSE(can_write_with(readable.get()));
  if (geteuid() != 0) return;
  const FileDescriptor anybodys(memfd_create("test", MFD_CLOEXEC));
  const std::string folder = "/proc/self/fd/";
  const std::string ours = folder + std::to_string(readable.get()), theirs = folder + std::to_string(anybodys.get());
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    constexpr uid_t kNobody = 65534;
    const bool other = setresuid(kNobody, kNobody, kNobody) == 0 && prctl(PR_SET_DUMPABLE, 1) == 0;
    if (!other || open(theirs.c_str(), O_RDWR) < 0) _exit(1);
    _exit(open(ours.c_str(), O_RDWR) < 0 && fchmod(readable.get(), 0666) != 0 ? 0 : 2);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}

TEST_CASE("memory whose size its sender could change is refused, and so are huge pages, which may run out") {
  FileDescriptor unsealed(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  REQUIRE(ftruncate(unsealed.get(), 8'192) == 0);
  const auto refused = failure_of(SharedMemory::map(std::move(unsealed), 8'192, "a test"));
  CHECK(refused.code == ErrorCode::kMalformed);
  CHECK(testing::contains(refused.message, "sealed"));

  constexpr std::size_t kHugePage = 2u << 20;
  FileDescriptor huge(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB));
  if (!huge) return;  // a kernel without them
  REQUIRE(ftruncate(huge.get(), kHugePage) == 0);
  REQUIRE(fcntl(huge.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0);
  const auto kept = failure_of(SharedMemory::map_kept(std::move(huge), "a test"));
  CHECK(kept.code == ErrorCode::kMalformed);
}

TEST_CASE("parts of sparse memory are there when reserved, and zero again when discarded") {
  auto memory = required(SharedMemory::create_sparse(std::size_t{1} << 36, "a test", SharedMemory::Peers::kWrite));
  constexpr std::size_t kAt = (std::size_t{1} << 35) + 4'096;
  REQUIRE(memory.reserve(kAt, 8'192));
  memory.data()[kAt + 8'191] = std::byte{7};
  auto readable = required(memory.read_only());
  const auto mapped = required(SharedMemory::map_sealed(std::move(readable), "a test"));
  CHECK(mapped.data()[kAt + 8'191] == std::byte{7});
  struct stat before {
  }, after{};
  REQUIRE(fstat(memory.fd(), &before) == 0);
  memory.discard(kAt, 8'192);
  REQUIRE(fstat(memory.fd(), &after) == 0);
  CHECK(after.st_blocks < before.st_blocks);
  CHECK(mapped.data()[kAt + 8'191] == std::byte{0});
}

TEST_CASE("more memory than the machine has is refused with the number and a cure, not with a crash later") {
  const auto memory = failure_of(SharedMemory::create(std::size_t{1} << 46, "job 'huge'", SharedMemory::Peers::kWrite));
  CHECK(memory.code == ErrorCode::kLimit);
  CHECK(testing::contains(memory.message, "70368744177664"));
  CHECK(testing::contains(memory.message, "job 'huge'"));
  CHECK(testing::contains(memory.message, "smaller model"));
}

TEST_CASE("an announcement in shared memory wakes another process, and a sleep for nothing ends in time") {
  auto memory = required(SharedMemory::create(4'096, "a test", SharedMemory::Peers::kWrite));
  auto* header = new (memory.data()) NodeHeader;
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    while (header->progress.load() == 0) {
      if (!header->sleep(0, std::chrono::seconds(20))) _exit(1);
    }
    _exit(0);
  }
  while (header->waiters.load() == 0) usleep(100);
  usleep(10'000);
  header->announce();
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);

  CHECK(header->waiters.load() == 0);
  CHECK_FALSE(header->sleep(1, std::chrono::milliseconds(5)));  // nobody wakes: the time runs out
  CHECK(header->sleep(0, std::chrono::seconds(20)));            // there is progress already: no sleep
}

}  // namespace tributary::shared_memory_test
