#include <doctest/doctest.h>

#include <cstdlib>

#include "session/session.h"
#include "tests/unit/expect.h"
#include "tests/unit/required.h"

namespace tributary::topology_test {

using testing::contains;

namespace {

void set_torchrun(const char* rank, const char* world, const char* local, const char* local_world, const char* group) {
  setenv("RANK", rank, 1);
  setenv("WORLD_SIZE", world, 1);
  setenv("LOCAL_RANK", local, 1);
  setenv("LOCAL_WORLD_SIZE", local_world, 1);
  setenv("GROUP_RANK", group, 1);
}

std::string refusal(const Topology& topology) {
  const auto status = failure_of(topology.validate());
  CHECK(status.code == ErrorCode::kTopology);
  return status.message;
}

}  // namespace

TEST_CASE("torchrun's environment becomes a topology") {
  set_torchrun("5", "8", "1", "4", "1");
  const auto topology = required(Topology::from_environment());
  CHECK(topology.rank == 5);
  CHECK(topology.world_size == 8);
  CHECK(topology.local_rank == 1);
  CHECK(topology.local_world_size == 4);
  CHECK(topology.node_rank == 1);
}

TEST_CASE("a variable with TRIBUTARY_ in front comes before torchrun's own, each for itself") {
  set_torchrun("5", "8", "1", "4", "1");
  setenv("TRIBUTARY_RANK", "6", 1);
  setenv("TRIBUTARY_LOCAL_RANK", "2", 1);
  setenv("TRIBUTARY_GROUP_RANK", "", 1);  // as if it were not set
  CHECK(Topology::variable("RANK") == "TRIBUTARY_RANK");
  CHECK(Topology::variable("GROUP_RANK") == "GROUP_RANK");
  auto topology = Topology::from_environment();
  REQUIRE(topology);
  CHECK(topology->rank == 6);
  CHECK(topology->local_rank == 2);
  CHECK(topology->world_size == 8);
  CHECK(topology->node_rank == 1);

  setenv("TRIBUTARY_LOCAL_RANK", "two", 1);
  topology = Topology::from_environment();
  REQUIRE_FALSE(topology);
  CHECK(contains(topology.error().message, "TRIBUTARY_LOCAL_RANK='two'"));
  for (const char* name : {"TRIBUTARY_RANK", "TRIBUTARY_LOCAL_RANK", "TRIBUTARY_GROUP_RANK"}) unsetenv(name);
}

TEST_CASE("a missing or unreadable variable is named with its value") {
  set_torchrun("0", "1", "0", "1", "0");
  unsetenv("LOCAL_WORLD_SIZE");
  auto topology = Topology::from_environment();
  REQUIRE_FALSE(topology);
  CHECK(topology.error().code == ErrorCode::kTopology);
  CHECK(contains(topology.error().message, "LOCAL_WORLD_SIZE"));

  for (const char* bad : {"two", "-1", "1x", " 1", "4294967296"}) {
    set_torchrun("0", bad, "0", "1", "0");
    topology = Topology::from_environment();
    REQUIRE_FALSE(topology);
    CHECK(contains(topology.error().message, "WORLD_SIZE='" + std::string(bad) + "'"));
  }
}

TEST_CASE("numbers that contradict each other are refused with the numbers") {
  CHECK(Topology{3, 4, 1, 2, 1}.validate());
  CHECK(contains(refusal({0, 0, 0, 1, 0}), "world_size is 0"));
  CHECK(contains(refusal({0, 1, 0, 0, 0}), "local_world_size is 0"));
  CHECK(contains(refusal({0, 3, 0, 2, 0}), "world_size 3 is no multiple of local_world_size 2"));
  CHECK(contains(refusal({2, 4, 2, 2, 0}), "local_rank 2 is not below local_world_size 2"));
  CHECK(contains(refusal({4, 4, 0, 2, 2}), "node_rank 2 is not below the number of nodes 2"));
  CHECK(contains(refusal({1, 4, 0, 2, 1}), "it would be 2"));
}

}  // namespace tributary::topology_test
