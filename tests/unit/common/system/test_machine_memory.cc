#include <doctest/doctest.h>
#include <unistd.h>

#include "common/system/machine_memory.h"
#include "tests/unit/root_of_files.h"

namespace tributary::machine_memory_test {
namespace {

using testing::RootOfFiles;

std::uint64_t whole() {
  return static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

}  // namespace

TEST_CASE("memory that a process may use is its control groups', or the machine's") {
  const RootOfFiles two{{"proc/self/cgroup", "0::/jobs/mine\n"},
                        {"sys/fs/cgroup/jobs/memory.max", "9000000\n"},
                        {"sys/fs/cgroup/jobs/mine/memory.max", "max\n"},
                        {"sys/fs/cgroup/others/memory.max", "1000\n"}};
  CHECK(usable_memory(two.path()) == 9000000);
  const RootOfFiles container{{"proc/self/cgroup", "0::/\n"}, {"sys/fs/cgroup/memory.max", "8000000\n"}};
  CHECK(usable_memory(container.path()) == 8000000);
  const RootOfFiles one{{"proc/self/cgroup", "5:memory:/m\n4:cpu,cpuacct:/docker/x\n0::/y\n"},
                        {"sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"},
                        {"sys/fs/cgroup/memory/m/memory.limit_in_bytes", "7000000\n"}};
  CHECK(usable_memory(one.path()) == 7000000);
  CHECK(usable_memory(RootOfFiles{}.path()) == whole());
  const RootOfFiles beyond{{"proc/self/cgroup", "0::/\n"}, {"sys/fs/cgroup/memory.max", "9223372036854771712\n"}};
  CHECK(usable_memory(beyond.path()) == whole());
}

}  // namespace tributary::machine_memory_test
