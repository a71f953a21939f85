#include <dirent.h>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <new>

#include "worker/futex.h"
#include "common/shared_memory.h"

using namespace tributary;

namespace {

std::size_t names_of_this_process() {
  const std::string prefix = "tributary-" + std::to_string(getpid()) + "-";
  std::size_t count = 0;
  DIR* directory = opendir("/dev/shm");
  REQUIRE(directory != nullptr);
  while (const dirent* entry = readdir(directory)) count += std::string_view(entry->d_name).starts_with(prefix);
  closedir(directory);
  return count;
}

}  // namespace

TEST_CASE("shared memory is zeroed, shared with whoever gets the descriptor, and has no name") {
  auto memory = SharedMemory::create(10'000, "a test");
  REQUIRE(memory);
  CHECK(memory->size() == 10'000);
  CHECK(names_of_this_process() == 0);
  CHECK(std::all_of(memory->data(), memory->data() + 10'000, [](std::byte b) { return b == std::byte{0}; }));

  auto other = SharedMemory::map(FileDescriptor(dup(memory->fd())), 10'000, "a test");
  REQUIRE(other);
  CHECK(other->data() != memory->data());
  memory->data()[9'999] = std::byte{7};
  CHECK(other->data()[9'999] == std::byte{7});
  // The mapping outlives the creator's.
  *memory = SharedMemory();
  other->close_fd();
  CHECK(other->data()[9'999] == std::byte{7});
}

TEST_CASE("memory of another size than announced is refused") {
  auto memory = SharedMemory::create(8'192, "a test");
  REQUIRE(memory);
  for (const std::size_t announced : {0u, 4'096u, 8'191u, 8'193u, 1u << 20}) {
    const auto mapped = SharedMemory::map(FileDescriptor(dup(memory->fd())), announced, "a test");
    REQUIRE_FALSE(mapped);
    CHECK(mapped.error().code == ErrorCode::kMalformed);
    CHECK(mapped.error().message.find("8192") != std::string::npos);
  }
  CHECK_FALSE(SharedMemory::map(FileDescriptor(), 8'192, "a test"));
}

TEST_CASE("more memory than the machine has is refused with the number and a cure, not with a crash later") {
  const auto memory = SharedMemory::create(std::size_t{1} << 46, "job 'huge'");
  REQUIRE_FALSE(memory);
  CHECK(memory.error().code == ErrorCode::kLimit);
  CHECK(memory.error().message.find("70368744177664") != std::string::npos);
  CHECK(memory.error().message.find("job 'huge'") != std::string::npos);
  CHECK(memory.error().message.find("/dev/shm") != std::string::npos);
}

TEST_CASE("a futex in shared memory wakes another process, and a wait for nothing ends in time") {
  auto memory = SharedMemory::create(4'096, "a test");
  REQUIRE(memory);
  auto* word = new (memory->data()) std::atomic<std::uint32_t>(0);
  auto* sleepers = new (memory->data() + 64) std::atomic<std::uint32_t>(0);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    sleepers->store(1);
    while (word->load() == 0) {
      if (!futex_wait(*word, 0, std::chrono::seconds(20))) _exit(1);
    }
    _exit(0);
  }
  while (sleepers->load() == 0) usleep(100);
  usleep(10'000);
  word->store(1);
  futex_wake_all(*word);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);

  CHECK_FALSE(futex_wait(*word, 1, std::chrono::milliseconds(5)));  // nobody wakes: the time runs out
  CHECK(futex_wait(*word, 0, std::chrono::seconds(20)));            // the word differs: no sleep
}
