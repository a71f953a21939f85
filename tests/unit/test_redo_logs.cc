// The redo logs' background writer: order, back-pressure, and disks that are full.
#include <doctest/doctest.h>

#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <thread>
#include <vector>

#include "common/printed.h"
#include "server/redo_logs.h"
#include "tests/unit/redo_fixture.h"
#include "tests/unit/small_disk.h"

namespace tributary {

using namespace testing;

namespace {

constexpr std::uint64_t kRecord = redo_record_bytes(RedoBlocks::kElements);

struct Logs {
  explicit Logs(const std::string& folder, std::vector<JobId> jobs = {kRedoJob}) {
    auto opened = RedoLogs::open(folder, jobs, [this](const std::string& line) {
      const std::lock_guard lock(mutex);
      lines.push_back(line);
    });
    REQUIRE_MESSAGE(opened, opened.error().message);
    logs = std::move(*opened);
  }
  void begin(RedoLog::Limits limits, bool waits, std::optional<Round> after = Round(0)) {
    logs->begin({kRedoJob, "mnist", 1, limits, waits}, after);
  }
  // As a shard does: false if there is no block.
  bool step(std::uint64_t version) {
    LoggedStep step = blocks.step(0, version);
    if (!step.block) return false;
    logs->append(std::move(step));
    return true;
  }
  // As many steps as it takes until the log can be written no more (and the blocks are used up, if that is asked).
  // Returns the first that found no block, or has not been tried.
  std::uint64_t fill(bool blocks_too) {
    std::uint64_t version = 1;
    REQUIRE(eventually([&] {
      while (version < 100 && step(version)) ++version;
      return !logs->status(kRedoJob)->error.empty() && (!blocks_too || blocks.pool.available() == 0);
    }));
    return version;
  }
  void flush() {
    bool done = false;
    std::condition_variable changed;
    std::mutex m;
    logs->flush(kRedoJob, [&] {
      const std::lock_guard lock(m);
      done = true;
      changed.notify_all();
    });
    std::unique_lock lock(m);
    REQUIRE(changed.wait_for(lock, std::chrono::seconds(30), [&] { return done; }));
  }
  std::uint64_t replayed(std::uint64_t after, std::uint64_t to) {
    std::uint64_t count = 0;
    const Status status =
        logs->replay(kRedoJob, Round(after), Round(to), [&](const LoggedStep& step, std::span<const float> sum) {
          CHECK(RedoBlocks::is(step, sum));
          ++count;
          return Status{};
        });
    REQUIRE_MESSAGE(status, status.error().message);
    return count;
  }
  template <class Condition>
  bool eventually(Condition condition) {
    for (int i = 0; i < 3000; ++i) {
      if (condition()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }
  bool said(const std::string& part) {
    const std::lock_guard lock(mutex);
    return std::ranges::any_of(lines, [&](const std::string& line) { return contains(line, part); });
  }

  RedoBlocks blocks{16};
  std::mutex mutex;
  std::vector<std::string> lines;
  std::unique_ptr<RedoLogs> logs;  // last: it ends before what it uses
};

}  // namespace

TEST_CASE("steps are written in the background, and a flush tells when they are there") {
  const TempDir dir;
  {
    Logs logs(dir / "redo");
    logs.begin({1u << 20, 64u << 20}, true);
    for (std::uint64_t version = 1; version <= 200; ++version)
      REQUIRE(logs.eventually([&] { return logs.step(version); }));
    logs.flush();
    CHECK(logs.logs->range(kRedoJob) == LoggedRounds{Round(1), Round(200)});
    CHECK(logs.logs->status(kRedoJob)->written == 200 * kRecord);
    CHECK(logs.replayed(0, 200) == 200);
    logs.begin({1u << 20, 64u << 20}, true, Round(150));
    logs.flush();
    CHECK(logs.logs->range(kRedoJob) == LoggedRounds{Round(1), Round(150)});
    REQUIRE(logs.step(151));
  }  // writes what is queued
  {
    Logs logs(dir / "redo");
    CHECK(logs.logs->range(kRedoJob) == LoggedRounds{Round(1), Round(151)});
    logs.logs->drop(kRedoJob);
    CHECK(logs.logs->range(kRedoJob) == LoggedRounds{});
    CHECK_FALSE(logs.logs->status(kRedoJob));
  }
  CHECK(std::filesystem::is_empty(dir / "redo"));
}

TEST_CASE("a log of a job that the store does not know is removed") {
  const TempDir dir;
  {
    Logs logs(dir / "redo");
    logs.begin({1u << 20, 64u << 20}, true);
    REQUIRE(logs.step(1));
  }
  CHECK_FALSE(std::filesystem::is_empty(dir / "redo"));
  Logs logs(dir / "redo", {});
  CHECK(std::filesystem::is_empty(dir / "redo"));
}

TEST_CASE("a log that cannot be opened holds steps back, says so, and is opened when it can be") {
  const TempDir dir;
  Logs logs(dir / "redo");
  std::filesystem::create_directories(dir / "redo");
  const std::string folder = dir / ("redo/" + printed("%016llx", static_cast<unsigned long long>(kRedoJob.value)));
  std::ofstream(folder) << "no folder";
  logs.begin({1u << 20, 64u << 20}, true);
  CHECK(logs.said("the redo log of job 'mnist' cannot be written"));
  REQUIRE(logs.logs->status(kRedoJob));
  CHECK(contains(logs.logs->status(kRedoJob)->error, folder));
  CHECK_FALSE(logs.logs->replay(kRedoJob, Round(0), Round(1), [](const auto&, auto) { return Status{}; }));
  for (std::uint64_t version = 1; version <= 16; ++version) REQUIRE(logs.step(version));
  CHECK_FALSE(logs.step(17));
  std::filesystem::remove(folder);
  REQUIRE(logs.eventually([&] { return logs.step(17); }));
  REQUIRE(logs.eventually([&] { return logs.logs->status(kRedoJob)->error.empty(); }));
  logs.flush();
  CHECK(logs.replayed(0, 17) == 17);
}

TEST_CASE("who waits for a flush hears of it when the log goes") {
  const TempDir dir;
  Logs logs(dir / "redo");
  logs.begin({8 * kRecord, 8 * kRecord}, true);
  for (std::uint64_t version = 1; version <= 8; ++version) REQUIRE(logs.step(version));
  bool flushed = false;
  logs.logs->flush(kRedoJob, [&] { flushed = true; });
  logs.logs->drop(kRedoJob);
  logs.logs->stop();  // what the thread had in hand is through
  CHECK(flushed);
}

TEST_CASE("a log that is at its bound holds steps back until a snapshot covers some, and says so") {
  const TempDir dir;
  Logs logs(dir / "redo");
  logs.begin({8 * kRecord, 32 * kRecord}, true);
  const std::uint64_t version = logs.fill(true);
  CHECK(version == 1 + 32 + 16);  // what is written, and what the pool has
  CHECK_FALSE(logs.step(version));
  CHECK(logs.said("training waits"));
  CHECK(contains(logs.logs->status(kRedoJob)->error, "recovery.log_mb"));
  logs.flush();  // nobody waits for what cannot be
  CHECK(logs.logs->range(kRedoJob) == LoggedRounds{Round(1), Round(32)});
  logs.logs->trim(kRedoJob, Round(24));
  REQUIRE(logs.eventually([&] { return logs.step(version); }));
  REQUIRE(logs.eventually([&] { return logs.said("is written again"); }));
  logs.flush();
  CHECK(logs.logs->status(kRedoJob)->error.empty());
  CHECK(logs.logs->status(kRedoJob)->dropped == 0);
  CHECK(logs.replayed(24, version) == version - 24);
}

TEST_CASE("a log that can take no more steps still takes which of them are void, and has none of those from then on") {
  const TempDir dir;
  {
    Logs logs(dir / "redo");
    logs.begin({8 * kRecord, 32 * kRecord}, true);
    logs.fill(false);
    logs.begin({8 * kRecord, 32 * kRecord}, true, Round(25));
    logs.begin({8 * kRecord, 32 * kRecord}, true, Round(20));
    CHECK(logs.logs->range(kRedoJob) == LoggedRounds{Round(1), Round(20)});  // before it is written, too
    logs.begin({8 * kRecord, 32 * kRecord}, true, Round(22));
    CHECK(logs.logs->range(kRedoJob) == LoggedRounds{Round(1), Round(20)});
  }
  {
    Logs logs(dir / "redo");
    CHECK(logs.logs->range(kRedoJob) == LoggedRounds{Round(1), Round(32)});  // it died before that was written
    logs.begin({8 * kRecord, 32 * kRecord}, true, Round(20));
    logs.flush();
    CHECK(logs.logs->status(kRedoJob)->error.empty());
    CHECK(logs.logs->range(kRedoJob) == LoggedRounds{Round(1), Round(20)});
    REQUIRE(logs.step(21));
    REQUIRE(logs.eventually([&] { return !logs.logs->status(kRedoJob)->error.empty(); }));
  }
  Logs logs(dir / "redo");
  CHECK(logs.logs->range(kRedoJob) == LoggedRounds{Round(1), Round(20)});
}

TEST_CASE("who does not want to wait loses the log, not the training, until a snapshot covers the gap") {
  const TempDir dir;
  Logs logs(dir / "redo");
  logs.begin({8 * kRecord, 32 * kRecord}, false);
  for (std::uint64_t version = 1; version <= 200; ++version) {
    REQUIRE(logs.eventually([&] { return logs.step(version); }));
  }
  CHECK(logs.said("training goes on"));
  CHECK(logs.logs->status(kRedoJob)->dropped > 0);
  logs.logs->trim(kRedoJob, Round(200));
  REQUIRE(logs.eventually([&] {
    logs.step(201);
    return logs.logs->status(kRedoJob)->error.empty();
  }));
  logs.flush();
  CHECK(logs.logs->range(kRedoJob).last == Round(201));
}

TEST_CASE("a full disk holds steps back, and when there is room they are written by themselves") {
  const auto disk = SmallDisk::mount(36u << 20);
  if (!disk) return;
  Logs logs(*disk / "redo");
  logs.begin({1u << 20, 64u << 20}, true);
  REQUIRE(logs.step(1));
  logs.flush();
  disk->fill();
  std::uint64_t version = 2;
  REQUIRE(logs.eventually([&] {
    while (logs.step(version)) ++version;
    return !logs.logs->status(kRedoJob)->error.empty();
  }));
  CHECK(contains(logs.logs->status(kRedoJob)->error, "No space left"));
  CHECK(logs.said("free space"));
  disk->make_room();
  const std::uint64_t last = version - 1;
  REQUIRE(logs.eventually([&] { return logs.logs->range(kRedoJob).last == Round(last); }));
  CHECK(logs.replayed(0, last) == last);
}

}  // namespace tributary
