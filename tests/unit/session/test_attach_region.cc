// Parts of its region of shared memory that a rank uses.
#include <doctest/doctest.h>
#include <unistd.h>

#include "session/shared/attach_region.h"
#include "tests/unit/required.h"

namespace tributary {
namespace {

TEST_CASE("a rank's region has memory for the tensors that the rank holds, in whole pages") {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::uint64_t floats = page / sizeof(float);
  const auto layout = required(Layout::unowned(
      {{"first", {16 * floats}, 0, {0}}, {"tied", {8}, 0, {0, 1}}, {"second", {16 * floats}, 0, {1}}}, kMinChunkBytes));
  const std::size_t at = rank_gradients_offset(3), size = at + layout.flat_elements() * sizeof(float);
  const std::size_t second = at + layout.tensor_offset(2) * sizeof(float);
  const auto up = [page](std::size_t bytes) { return (bytes + page - 1) / page * page; };

  const std::size_t all[] = {0, 1, 2}, of_first[] = {0, 1}, of_second[] = {1, 2};
  CHECK(rank_region_parts(layout, all) == std::vector<RegionPart>{{0, size}});
  CHECK(rank_region_parts(layout, of_first) == std::vector<RegionPart>{{0, up(second - 32)}});
  const std::vector<RegionPart> parts = rank_region_parts(layout, of_second);
  REQUIRE(parts.size() == 2);
  CHECK(parts[0] == RegionPart{0, up(at)});
  CHECK(parts[1].begin == (at + layout.tensor_offset(1) * sizeof(float)) / page * page);
  CHECK(parts[1].end == size);
  CHECK(rank_region_parts(layout, {}) == std::vector<RegionPart>{{0, up(at)}});
}

}  // namespace
}  // namespace tributary
