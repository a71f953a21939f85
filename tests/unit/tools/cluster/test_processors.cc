#include <doctest/doctest.h>
#include <sched.h>

#include "tests/unit/root_of_files.h"
#include "tools/cluster/processors.h"

namespace tributary::processors_test {
namespace {

using testing::RootOfFiles;

double quota(const RootOfFiles& root) {
  return processor_quota(root.path());
}

TEST_CASE("the smallest quota of a process' control groups counts") {
  const RootOfFiles two{{"proc/self/cgroup", "0::/jobs/mine\n"},
                        {"sys/fs/cgroup/jobs/cpu.max", "400000 100000\n"},
                        {"sys/fs/cgroup/jobs/mine/cpu.max", "max 100000\n"},
                        {"sys/fs/cgroup/others/cpu.max", "100000 100000\n"}};
  CHECK(quota(two) == 4.0);
  const RootOfFiles container{{"proc/self/cgroup", "0::/\n"}, {"sys/fs/cgroup/cpu.max", "250000 100000\n"}};
  CHECK(quota(container) == 2.5);
  const RootOfFiles one{{"proc/self/cgroup", "5:memory:/m\n4:cpu,cpuacct:/docker/x\n0::/y\n"},
                        {"sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "300000\n"},
                        {"sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n"},
                        {"sys/fs/cgroup/m/cpu.cfs_quota_us", "100000\n"},
                        {"sys/fs/cgroup/m/cpu.cfs_period_us", "100000\n"}};
  CHECK(quota(one) == 3.0);  // of a container that sees its own group as the root
}

TEST_CASE("without a quota, or with files that say nothing, there is none") {
  CHECK(quota(RootOfFiles{}) > 1e9);
  const RootOfFiles odd{{"proc/self/cgroup", "nonsense\n0:\n0::\n0::/a\n4:cpu:/b\n"},
                        {"sys/fs/cgroup/a/cpu.max", "max 100000\n"},
                        {"sys/fs/cgroup/cpu/b/cpu.cfs_quota_us", "-1\n"},
                        {"sys/fs/cgroup/cpu/b/cpu.cfs_period_us", "100000\n"},
                        {"sys/fs/cgroup/cpu.max", ""}};
  CHECK(quota(odd) > 1e9);
}

TEST_CASE("a process that is bound to one processor may use one") {
  cpu_set_t before, one;
  REQUIRE(sched_getaffinity(0, sizeof before, &before) == 0);
  CPU_ZERO(&one);
  for (int i = 0; i < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++i) {
    if (CPU_ISSET(i, &before)) CPU_SET(i, &one);
  }
  REQUIRE(sched_setaffinity(0, sizeof one, &one) == 0);
  CHECK(usable_processors() == 1);
  REQUIRE(sched_setaffinity(0, sizeof before, &before) == 0);
  CHECK(usable_processors() >= 1);
}

}  // namespace
}  // namespace tributary::processors_test
