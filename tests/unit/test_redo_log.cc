// The redo log on disk: what is read back, what a crash may leave, and its bounds.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "server/redo_log.h"
#include "tests/unit/redo_fixture.h"
#include "tests/unit/temp_dir.h"

namespace tributary {

using namespace testing;

namespace {

constexpr std::uint32_t kChunks = 3;

std::unique_ptr<RedoLog> open_log(const std::string& folder, RedoLog::Limits limits = {1u << 20, 64u << 20}) {
  auto log = RedoLog::open(folder, kRedoJob);
  REQUIRE_MESSAGE(log, log.error().message);
  (*log)->set_limits(limits);
  (*log)->set_chunks(kChunks);
  return std::move(*log);
}

void add(RedoLog& log, RedoBlocks& blocks, std::uint64_t from, std::uint64_t to) {
  for (std::uint64_t version = from; version <= to; ++version) {
    std::vector<LoggedStep> steps;
    for (std::uint32_t chunk = 0; chunk < kChunks; ++chunk) steps.push_back(blocks.step(chunk, version));
    std::size_t done = 0;
    while (done < steps.size()) {
      const auto appended = log.append(std::span(steps).subspan(done));
      REQUIRE_MESSAGE(appended, appended.error().message);
      done += *appended;
    }
  }
}

// Versions of every chunk that a replay brings, after checking what it says of them.
std::vector<std::uint64_t> replayed(RedoLog& log, std::uint64_t after, std::uint64_t to) {
  std::map<std::uint32_t, std::vector<std::uint64_t>> seen;
  const Status status = log.replay(Round(after), Round(to), [&](const LoggedStep& step, std::span<const float> sum) {
    CHECK(RedoBlocks::is(step, sum));
    seen[step.chunk.value].push_back(step.version.value);
    return Status{};
  });
  REQUIRE_MESSAGE(status, status.error().message);
  REQUIRE(seen.size() == kChunks);
  for (const auto& [chunk, versions] : seen) CHECK(versions == seen[0]);
  return seen[0];
}

std::vector<std::uint64_t> run_of(std::uint64_t from, std::uint64_t to) {
  std::vector<std::uint64_t> versions;
  for (; from <= to; ++from) versions.push_back(from);
  return versions;
}

std::vector<std::filesystem::path> files_in(const std::string& folder) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) files.push_back(entry.path());
  std::ranges::sort(files);
  return files;
}

void overwrite(const std::filesystem::path& file, std::uint64_t at, const std::string& bytes) {
  std::fstream out(file, std::ios::in | std::ios::out | std::ios::binary);
  out.seekp(static_cast<std::streamoff>(at));
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  REQUIRE(out.good());
}

constexpr std::uint64_t kRecord = redo_record_bytes(RedoBlocks::kElements);

}  // namespace

TEST_CASE("what was logged is read back, by this process and by the next one") {
  const TempDir dir;
  RedoBlocks blocks;
  {
    const auto log = open_log(dir / "log");
    CHECK(log->range().last < log->range().first);
    add(*log, blocks, 41, 90);
    CHECK(log->range() == LoggedRounds{Round(41), Round(90)});
    CHECK(replayed(*log, 40, 90) == run_of(41, 90));
    CHECK(replayed(*log, 60, 70) == run_of(61, 70));
    CHECK_FALSE(log->replay(Round(30), Round(90), [](const auto&, auto) { return Status{}; }));
    CHECK_FALSE(log->replay(Round(40), Round(91), [](const auto&, auto) { return Status{}; }));
  }
  const auto log = open_log(dir / "log");
  CHECK(log->damage().empty());
  CHECK(log->range() == LoggedRounds{Round(41), Round(90)});
  add(*log, blocks, 91, 95);
  CHECK(replayed(*log, 40, 95) == run_of(41, 95));
  CHECK(files_in(dir / "log").size() > 1);
}

TEST_CASE("processes that are killed one after another leave no space behind that counts") {
  const TempDir dir;
  RedoBlocks blocks;
  std::string folder = dir / "log";
  for (std::uint64_t process = 1; process <= 20; ++process) {
    const auto log = open_log(folder, {64 * kRecord, 128 * kRecord});
    add(*log, blocks, process, process);
    REQUIRE(log->sync());
    const std::string killed = dir / ("killed-" + std::to_string(process));  // as the disk has it now
    std::filesystem::copy(folder, killed);
    folder = killed;
  }
  const auto log = open_log(folder, {64 * kRecord, 128 * kRecord});
  CHECK(log->bytes() == 20 * kChunks * kRecord);
  CHECK(replayed(*log, 0, 20) == run_of(1, 20));
}

TEST_CASE("a view that begins earlier voids what was logged of later rounds") {
  const TempDir dir;
  RedoBlocks blocks;
  {
    const auto log = open_log(dir / "log");
    add(*log, blocks, 1, 20);
    REQUIRE(log->cut(Version(12)));
    CHECK(log->range() == LoggedRounds{Round(1), Round(12)});
    blocks.generation = 1;  // other sums: of other nodes
    add(*log, blocks, 13, 15);
  }
  const auto log = open_log(dir / "log");
  CHECK(log->range() == LoggedRounds{Round(1), Round(15)});
  std::map<std::uint64_t, float> newest;
  REQUIRE(log->replay(Round(0), Round(15), [&](const LoggedStep& step, std::span<const float> sum) {
    newest[step.version.value] = sum[0] - RedoBlocks::value_of(step.chunk.value, step.version.value, 0);
    return Status{};
  }));
  CHECK(newest.at(12) == 0.0f);
  CHECK(newest.at(13) == 1.0f);
}

TEST_CASE("rounds that were not logged leave what came before them of no use, and what comes after is told") {
  const TempDir dir;
  RedoBlocks blocks;
  const auto log = open_log(dir / "log");
  add(*log, blocks, 1, 5);
  add(*log, blocks, 9, 12);
  CHECK(log->range() == LoggedRounds{Round(9), Round(12)});
  CHECK(replayed(*log, 8, 12) == run_of(9, 12));
}

TEST_CASE("a log ends where a crash left half a record, or a damaged one, and can be written again") {
  const TempDir dir;
  RedoBlocks blocks;
  {
    const auto log = open_log(dir / "log");
    add(*log, blocks, 1, 10);
  }
  const auto file = files_in(dir / "log").at(0);
  const std::uint64_t last = (10 * kChunks - 1) * kRecord;  // of chunk 2, version 10
  REQUIRE(std::filesystem::file_size(file) == last + kRecord);
  SUBCASE("cut off in its head") {
    std::filesystem::resize_file(file, last + 100);
  }
  SUBCASE("cut off in its sum") {
    std::filesystem::resize_file(file, last + kRedoHead + 8);
  }
  SUBCASE("its head is damaged") {
    overwrite(file, last + 40, "x");
  }
  SUBCASE("its sum is damaged") {
    overwrite(file, last + kRedoHead + 400, "xyz");
  }
  SUBCASE("its sum never reached the disk") {
    overwrite(file, last + kRedoHead, std::string(4096, '\0'));
  }
  SUBCASE("it never reached the disk") {
    overwrite(file, last, std::string(kRecord, '\0'));
  }
  {
    const auto log = open_log(dir / "log");
    CHECK(log->range() == LoggedRounds{Round(1), Round(9)});
    CHECK(replayed(*log, 0, 9) == run_of(1, 9));
    REQUIRE(log->cut(Version(9)));
    add(*log, blocks, 10, 11);
    CHECK(replayed(*log, 0, 11) == run_of(1, 11));
  }
  const auto log = open_log(dir / "log");
  CHECK(log->damage().empty());
  CHECK(log->range() == LoggedRounds{Round(1), Round(11)});
}

TEST_CASE("a record that is missing in the middle ends the log, whatever reached the disk after it") {
  const TempDir dir;
  RedoBlocks blocks;
  {
    const auto log = open_log(dir / "log", {8 * kRecord, 64u << 20});
    add(*log, blocks, 1, 10);
  }
  const auto files = files_in(dir / "log");
  REQUIRE(files.size() == 4);
  overwrite(files[1], 7 * kRecord, std::string(kRecord, '\0'));  // number 16 is the first of version 6
  const auto log = open_log(dir / "log");
  CHECK(contains(log->damage(), "missing"));
  CHECK(log->range() == LoggedRounds{Round(1), Round(5)});
  CHECK(files_in(dir / "log").size() == 3);  // the file that has the gap before it is there, and empty
  add(*log, blocks, 6, 8);
  CHECK(replayed(*log, 0, 8) == run_of(1, 8));
}

TEST_CASE("damage before the last sync is found when the steps are taken again, and the job goes on before it") {
  const TempDir dir;
  RedoBlocks blocks;
  {
    const auto log = open_log(dir / "log");
    add(*log, blocks, 1, 10);
    REQUIRE(log->sync());
    add(*log, blocks, 11, 12);
  }
  overwrite(files_in(dir / "log").at(0), 5 * kChunks * kRecord + kRedoHead + 16, "xyz");  // of version 6
  {
    const auto log = open_log(dir / "log");
    CHECK(log->range() == LoggedRounds{Round(1), Round(12)});
    const Status damaged = log->replay(Round(0), Round(12), [](const auto&, auto) { return Status{}; });
    REQUIRE_FALSE(damaged);
    CHECK(damaged.error().code == ErrorCode::kUnavailable);
    CHECK(contains(damaged.error().message, "version 6 of chunk 0"));
    CHECK(replayed(*log, 0, 5) == run_of(1, 5));
  }
  CHECK(open_log(dir / "log")->range() == LoggedRounds{Round(1), Round(5)});
}

TEST_CASE("a log has no more than it may, and a snapshot makes room") {
  const TempDir dir;
  RedoBlocks blocks;
  const auto log = open_log(dir / "log", {6 * kRecord, 24 * kRecord});
  std::uint64_t version = 1;
  Status full;
  for (; full; ++version) {
    std::vector<LoggedStep> steps{blocks.step(0, version), blocks.step(1, version), blocks.step(2, version)};
    for (std::size_t done = 0; done < steps.size() && full;) {
      const auto appended = log->append(std::span(steps).subspan(done));
      if (appended) {
        done += *appended;
      } else {
        full = tl::unexpected<Error>(appended.error());
      }
    }
    REQUIRE(version < 100);
  }
  CHECK(full.error().code == ErrorCode::kLimit);
  CHECK(contains(full.error().message, "recovery.log_mb"));
  CHECK(log->bytes() <= 24 * kRecord);
  CHECK(log->range() == LoggedRounds{Round(1), Round(8)});
  log->trim(Round(5));
  CHECK(replayed(*log, 5, 8) == run_of(6, 8));
  add(*log, blocks, 9, 12);
  CHECK(log->range().last == Round(12));
  log->trim(Round(12));
  CHECK(files_in(dir / "log").empty());
  add(*log, blocks, 13, 14);
  CHECK(replayed(*log, 12, 14) == run_of(13, 14));
}

TEST_CASE("a void step takes no place but its head's") {
  const TempDir dir;
  RedoBlocks blocks;
  const auto log = open_log(dir / "log");
  LoggedStep step = blocks.step(0, 1);
  step.elements = 0;
  log->set_chunks(1);
  REQUIRE(log->append({&step, 1}));
  std::size_t seen = 0;
  REQUIRE(log->replay(Round(0), Round(1), [&](const LoggedStep& read, std::span<const float> sum) {
    CHECK(read.version == Version(1));
    CHECK(sum.empty());
    ++seen;
    return Status{};
  }));
  CHECK(seen == 1);
}

TEST_CASE("where rounds of a job fit into log_mb is the same for all servers, and too few are none") {
  JobConfig config;
  config.recovery.redo_log = "disk";
  config.recovery.log_mb = 64;
  std::vector<ChunkOwner> owners(48, ChunkOwner{});  // 48 chunks of one server: 48 * 68 KiB a round with its head
  const std::uint64_t round = 48 * redo_record_bytes(16384);
  CHECK(log_rounds(config, owners, 16384) == (56u << 20) / round);
  for (std::size_t i = 24; i < 48; ++i) owners[i].shard = ShardIndex(1);
  CHECK(log_rounds(config, owners, 16384) == (56u << 20) / (round / 2));
  config.recovery.log_mb = 32;
  CHECK(log_rounds(config, owners, 16384) == (28u << 20) / (round / 2));
  config.recovery.log_mb = 20;
  CHECK(log_rounds(config, owners, 16384) == 0);
  config.recovery.log_mb = 64;
  config.recovery.redo_log = "workers";
  CHECK(log_rounds(config, owners, 16384) == 0);
}

}  // namespace tributary
