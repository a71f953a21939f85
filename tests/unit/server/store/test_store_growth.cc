// A store's memory and disk besides its snapshots do not grow with the number of past snapshots.
#include <doctest/doctest.h>
#include <malloc.h>

#include <cstdint>
#include <filesystem>
#include <string>

#include "tests/unit/server/store/store_samples.h"

namespace tributary::store_growth_test {

namespace fs = std::filesystem;
using namespace testing;

namespace {

constexpr std::uint64_t kSnapshots = 60;

// One after another, each dropping the one before, as a job's servers do.
void write_snapshots(Store& store, BufferPool& pool, std::uint64_t from, std::uint64_t count) {
  for (std::uint64_t round = from; round < from + count; ++round) {
    write_snapshot(store, pool, sample_info(7, round, 2));
    REQUIRE(store.drop(JobId(7), Round(0), Round(round - 1)).has_value());
  }
}

// Below 4 GiB. Portable programs have no mallinfo2().
std::size_t heap_in_use() {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
  return static_cast<unsigned>(::mallinfo().uordblks);
#pragma GCC diagnostic pop
}

}  // namespace

TEST_CASE_FIXTURE(OnDisk,
                  "neither the memory nor the disk space of a store grows with the snapshots that came and went") {
  auto store = open_store(dir / "s");
  write_snapshots(*store, pool, 1, kSnapshots);
  const std::size_t heap = heap_in_use();
  const std::uint64_t disk = bytes_below(dir / "s");
  write_snapshots(*store, pool, 1 + kSnapshots, 2 * kSnapshots);
  const auto per_snapshot = [](std::uint64_t before, std::uint64_t after) {
    return (static_cast<double>(after) - static_cast<double>(before)) / static_cast<double>(2 * kSnapshots);
  };
  // Small records are in memory and in the write-ahead log until there are a quarter of a MiB of them.
  CHECK(per_snapshot(heap, heap_in_use()) < 2048.0);
  CHECK(per_snapshot(disk, bytes_below(dir / "s")) < 2048.0);
  CHECK_FALSE(fs::exists(dir / "s/db/LOG"));
  CHECK(rounds(*store) == std::vector<Round>{Round(3 * kSnapshots)});
}

}  // namespace tributary::store_growth_test
