// The large parts of ranks' states, in a server's store.
#include <doctest/doctest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <memory>

#include "common/base/checksum.h"
#include "server/store/disk_space.h"
#include "server/store/large_part_families.h"
#include "tests/unit/expect.h"
#include "tests/unit/required.h"
#include "tests/unit/server/store/small_disk.h"
#include "tests/unit/server/store/store_samples.h"

namespace tributary::large_part_families_test {

namespace fs = std::filesystem;
using namespace testing;

namespace {

constexpr JobId kJob(7);

struct Sample {
  std::vector<std::byte> bytes;
  LargePart large;
};

Sample sample(char content, std::size_t size) {
  Sample made;
  made.bytes.resize(size);
  for (std::size_t i = 0; i < size; ++i) made.bytes[i] = static_cast<std::byte>(i * 31 + i / 4096 + content);
  const auto [high, low] = Checksum128().add(made.bytes.data(), size).value();
  made.large = {size, high, low};
  return made;
}

std::span<const std::byte> piece(const Sample& of, std::uint64_t offset) {
  return std::span(of.bytes).subspan(offset, std::min<std::size_t>(kPartBytes, of.bytes.size() - offset));
}

void add_all(LargePartStore& parts, JobId job, const Sample& one) {
  REQUIRE(parts.begin(job, one.large));
  for (std::uint64_t offset = 0; offset < one.bytes.size(); offset += kPartBytes) {
    REQUIRE(parts.add(job, one.large, offset, piece(one, offset)));
  }
}

void keep(LargePartStore& parts, JobId job, const Sample& one) {
  add_all(parts, job, one);
  REQUIRE(parts.finish(job, one.large));
}

bool holds(const LargePartStore& parts, JobId job, const Sample& one) {
  for (std::uint64_t offset = 0; offset < one.bytes.size(); offset += kPartBytes) {
    const auto read = parts.read(job, one.large, offset);
    const auto expected = piece(one, offset);
    if (!read || !std::ranges::equal(*read, expected)) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("a large part survives closing and opening the store, one that was not finished does not") {
  TempDir dir;
  const Sample kept = sample('a', 20 * kPartBytes + 3), unfinished = sample('b', 3 * kPartBytes), tiny = sample('c', 1);
  {
    auto store = open_store(dir / "s");
    LargePartStore& parts = store->large_parts();
    keep(parts, kJob, kept);
    add_all(parts, kJob, unfinished);
    keep(parts, JobId(8), tiny);
    CHECK_FALSE(parts.read(kJob, unfinished.large, 0));
  }
  auto store = open_store(dir / "s");
  const LargePartStore& parts = store->large_parts();
  CHECK(parts.complete() == LargePartStore::Complete{{kJob, {kept.large}}, {JobId(8), {tiny.large}}});
  CHECK(holds(parts, kJob, kept));
  CHECK(holds(parts, JobId(8), tiny));
  const auto read = failure_of(parts.read(kJob, unfinished.large, 0));
  CHECK(read.code == ErrorCode::kNotFound);
  CHECK(store->jobs().empty());  // they are no snapshots
}

TEST_CASE("what is dropped is gone, with its room, and nothing else is") {
  TempDir dir;
  const Sample one = sample('a', 30 * kPartBytes), other = sample('b', kPartBytes);
  {
    auto store = open_store(dir / "s");
    LargePartStore& parts = store->large_parts();
    keep(parts, kJob, one);
    keep(parts, kJob, other);
    keep(parts, JobId(8), one);
    REQUIRE(parts.drop(kJob, {other.large}));
    CHECK(parts.complete() == LargePartStore::Complete{{kJob, {other.large}}, {JobId(8), {one.large}}});
    CHECK_FALSE(parts.read(kJob, one.large, 0));
    CHECK(holds(parts, JobId(8), one));
    REQUIRE(parts.drop(JobId(8), {}));
  }
  auto store = open_store(dir / "s");
  CHECK(store->large_parts().complete() == LargePartStore::Complete{{kJob, {other.large}}});
  CHECK(bytes_below(dir / "s") < 4 * kPartBytes);
}

TEST_CASE("begun again, it is another one, and takes the place of the first") {
  TempDir dir;
  auto store = open_store(dir / "s");
  LargePartStore& parts = store->large_parts();
  const Sample one = sample('a', 2 * kPartBytes);
  REQUIRE(parts.begin(kJob, one.large));
  REQUIRE(parts.add(kJob, one.large, 0, piece(sample('b', kPartBytes), 0)));
  keep(parts, kJob, one);
  CHECK(holds(parts, kJob, one));
  keep(parts, kJob, one);
  CHECK(holds(parts, kJob, one));
}

TEST_CASE_FIXTURE(OnDisk, "snapshots and large parts do not touch each other") {
  const auto info = sample_info(7, 120, 5);
  const Sample one = sample('a', 2 * kPartBytes);
  {
    auto store = open_store(dir / "s");
    write_snapshot(*store, pool, info);
    keep(store->large_parts(), kJob, one);
    REQUIRE(store->drop(JobId(7), Round(0), Round(999)).has_value());
    CHECK(holds(store->large_parts(), kJob, one));
    write_snapshot(*store, pool, info);
  }
  auto store = open_store(dir / "s");
  CHECK(load_snapshot(*store, info).has_value());
  CHECK(holds(store->large_parts(), kJob, one));
}

TEST_CASE("who asks for what there is does not wait for the disk") {
  TempDir dir;
  std::unique_ptr<rocksdb::DB> db;
  rocksdb::Options options;
  options.create_if_missing = true;
  rocksdb::DB* opened = nullptr;
  REQUIRE(rocksdb::DB::Open(options, dir / "s", &opened).ok());
  db.reset(opened);
  LargePartFamilies* of = nullptr;
  int answered = 0, looked = 0;
  const auto looks = [&](const std::string&, std::uint64_t) -> Status {  // as the disk is about to be used
    ++looked;
    auto asked = std::async(std::launch::async, [&] { return of->complete().size(); });
    if (asked.wait_for(std::chrono::seconds(5)) == std::future_status::ready)
      ++answered;
    else
      std::abort();  // else the future waits for ever
    return {};
  };
  LargePartFamilies parts({*db, options, dir / "s", looks});
  of = &parts;
  const Sample one = sample('a', 2 * kPartBytes);
  keep(parts, kJob, one);
  keep(parts, kJob, one);  // drops the first
  REQUIRE(parts.drop(kJob, {}));
  CHECK(looked > 4);
  CHECK(answered == looked);
  CHECK(parts.complete().empty());
}

TEST_CASE("what is larger than the disk's room is refused before it is written") {
  const auto disk = SmallDisk::mount(64u << 20);
  if (!disk) return;
  auto store = open_store(*disk / "s");
  const auto begun = failure_of(store->large_parts().begin(kJob, sample('a', 60u << 20).large));
  CHECK(begun.code == ErrorCode::kStore);
  CHECK(contains(begun.message, "MiB are left"));
  keep(store->large_parts(), kJob, sample('b', 4u << 20));
}

}  // namespace tributary::large_part_families_test
