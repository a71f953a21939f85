#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "common/system/buffer_pool.h"
#include "server/checkpoint/checkpoint_file.h"
#include "server/store/snapshotter.h"
#include "server/store/token_bucket.h"
#include "tests/unit/expect.h"
#include "tests/unit/required.h"
#include "tests/unit/server/coordinator/parts_in_memory.h"
#include "tests/unit/server/store/snapshot_samples.h"
#include "tests/unit/temp_dir.h"

namespace tributary::snapshotter_test {
namespace {

using testing::contains;

using namespace std::chrono_literals;
using testing::sample_chunk;
using testing::sample_info;
using testing::sample_matches;

constexpr std::size_t kElements = 256;
constexpr auto kPatience = 20s;  // longer than any machine needs; a wait that long fails the test

// A store in memory whose disk can be made to fail, or to hang. Without RocksDB, so that these tests run under TSan.
class FakeStore final : public Store {
 public:
  struct Written {
    std::vector<ChunkIndex> chunks;
    bool contents_right = true;
  };

  class Writer final : public SnapshotWriter {
   public:
    Writer(FakeStore& store, SnapshotInfo info) : store_(store), info_(std::move(info)) { ++store_.writers; }
    ~Writer() override { --store_.writers; }
    Status add(const ChunkSnapshot& chunk) override {
      std::unique_lock lock(store_.mutex_);
      store_.changed_.wait(lock, [&] { return !store_.hang_; });
      if (written_.chunks.size() == store_.fail_after_) return fail(ErrorCode::kStore, "no space left on device");
      REQUIRE((written_.chunks.empty() || written_.chunks.back() < chunk.chunk));
      written_.chunks.push_back(chunk.chunk);
      written_.contents_right =
          written_.contents_right && sample_matches(chunk.state.params.floats(), chunk.round, chunk.chunk, 0);
      bytes_ += chunk.state.params.size();
      store_.added_ = written_.chunks.size();
      store_.changed_.notify_all();
      return {};
    }
    Status add(const StoredChunk&) override { return fail(ErrorCode::kInternal, "not here"); }
    Status finish() override {
      std::lock_guard lock(store_.mutex_);
      if (store_.fail_finish_) return fail(ErrorCode::kStore, "cannot sync");
      store_.complete_[{info_.job, info_.round}] = written_;
      return {};
    }
    std::uint64_t bytes() const override { return bytes_; }

   private:
    FakeStore& store_;
    const SnapshotInfo info_;
    Written written_;
    std::uint64_t bytes_ = 0;
  };

  std::vector<StoredJob> jobs() const override { return {}; }
  bool has(JobId, Round, ShardIndex) const override { return false; }
  Result<std::unique_ptr<SnapshotWriter>> begin(const SnapshotInfo& info) override {
    std::lock_guard lock(mutex_);
    if (fail_begin_) return fail(ErrorCode::kStore, "read-only file system");
    return std::make_unique<Writer>(*this, info);
  }
  Status load(const SnapshotInfo&, const EachChunk&) override { return {}; }
  Result<PinnedSnapshot> pin(JobId, Round, ShardIndex) override { return fail(ErrorCode::kInternal, "not here"); }
  Status drop(JobId, Round, Round) override { return {}; }
  Status drop_job(JobId) override { return {}; }
  Status save_all(std::span<const JobRecord>) override { return {}; }
  Status remove(JobId) override { return {}; }
  Result<std::vector<JobId>> recorded() const override { return std::vector<JobId>(); }
  Result<JobRecord> record(JobId) const override { return fail(ErrorCode::kNotFound, "none"); }
  LargePartStore& large_parts() override { return large_parts_; }
  Result<SeatTerms> terms() const override { return SeatTerms(); }
  Status promise(Term) override { return {}; }
  Status own(Term) override { return {}; }
  std::string path() const override { return "memory"; }

  void fail_begin(bool value) { set(fail_begin_, value); }
  void fail_finish(bool value) { set(fail_finish_, value); }
  void fail_after(std::size_t chunks) { set(fail_after_, chunks); }
  void hang(bool value) { set(hang_, value); }
  bool complete(JobId job, Round round) const {
    std::lock_guard lock(mutex_);
    return complete_.contains({job, round});
  }
  Written written(JobId job, Round round) const {
    std::lock_guard lock(mutex_);
    return complete_.at({job, round});
  }
  bool wait_added(std::size_t chunks) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kPatience, [&] { return added_ >= chunks; });
  }

  std::atomic<int> writers{0};

 private:
  template <class T>
  void set(T& field, T value) {
    std::lock_guard lock(mutex_);
    field = value;
    changed_.notify_all();
  }

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool fail_begin_ = false, fail_finish_ = false, hang_ = false;
  std::size_t fail_after_ = SIZE_MAX, added_ = 0;
  std::map<std::pair<JobId, Round>, Written> complete_;
  testing::PartsInMemory large_parts_;
};

// Collects reports.
class Reports {
 public:
  Snapshotter::Done callback() {
    return [this](const SnapshotDone& done) {
      std::lock_guard lock(mutex_);
      reports_.push_back(done);
      changed_.notify_all();
    };
  }
  // The count-th report.
  SnapshotDone wait(std::size_t count) {
    std::unique_lock lock(mutex_);
    REQUIRE(changed_.wait_for(lock, kPatience, [&] { return reports_.size() >= count; }));
    return reports_[count - 1];
  }
  std::size_t count() {
    std::lock_guard lock(mutex_);
    return reports_.size();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<SnapshotDone> reports_;
};

struct Fixture {
  explicit Fixture(std::uint64_t io_bytes_per_s = 0) : options{io_bytes_per_s} {}

  SnapshotPlan plan(std::uint64_t job, std::uint64_t round, std::uint32_t chunks, std::uint32_t view = 1) {
    SnapshotPlan out{sample_info(job, round, chunks), ViewId(view), {}, true};
    for (std::uint32_t i = 0; i < chunks; ++i) out.chunks.emplace_back(2 * i);
    return out;
  }
  ChunkSnapshot chunk(std::uint64_t job, std::uint64_t round, std::uint32_t index, std::uint32_t view = 1) {
    return sample_chunk(pool, JobId(job), Round(round), ChunkIndex(index), kElements, 0, ViewId(view));
  }
  void capture(std::uint64_t job, std::uint64_t round, std::initializer_list<std::uint32_t> indices) {
    for (const std::uint32_t index : indices) snapshotter.captured(chunk(job, round, index));
  }
  // Buffers still referenced, counted by how many more the pool of `kBlocks` gives out.
  std::size_t held() {
    std::vector<BufferRef> rest;
    while (BufferRef ref = pool.acquire(64)) rest.push_back(std::move(ref));
    return kBlocks - rest.size();
  }

  static constexpr std::size_t kBlocks = 64;
  Snapshotter::Options options;
  BufferPool pool{kElements * sizeof(float), kBlocks};
  FakeStore store;
  Reports reports;
  // Reports of snapshots that go into checkpoints.
  std::mutex written_mutex;
  std::condition_variable written_changed;
  std::vector<CheckpointDone> written;
  CheckpointDone wait_written() {
    std::unique_lock lock(written_mutex);
    REQUIRE(written_changed.wait_for(lock, kPatience, [&] { return !written.empty(); }));
    return written.back();
  }
  Snapshotter snapshotter{store, options, reports.callback(),
                          [this](const WriteCheckpoint&, const CheckpointDone& done) {
                            const std::lock_guard lock(written_mutex);
                            written.push_back(done);
                            written_changed.notify_all();
                          },
                          [](const std::string&) {}};
};

}  // namespace

TEST_CASE("chunks captured in any order are written in ascending order") {
  std::mt19937 random(1);
  Fixture f;
  std::size_t count = 0;
  for (std::uint64_t round = 1; round <= 20; ++round) {
    std::vector<std::uint32_t> order(16);
    std::iota(order.begin(), order.end(), 0u);
    if (round == 1) std::reverse(order.begin(), order.end());
    if (round > 2) std::shuffle(order.begin(), order.end(), random);
    f.snapshotter.expect(f.plan(7, round, 16));
    for (const std::uint32_t i : order) f.snapshotter.captured(f.chunk(7, round, 2 * i));
    const SnapshotDone done = f.reports.wait(++count);
    CHECK_MESSAGE(done.ok, done.message);
    CHECK(done.job == JobId(7));
    CHECK(done.view == ViewId(1));
    CHECK(done.round == Round(round));
    CHECK(done.bytes == 16 * kElements * sizeof(float));
    const auto written = f.store.written(JobId(7), Round(round));
    CHECK(written.chunks == f.plan(7, round, 16).chunks);
    CHECK(written.contents_right);
    CHECK(f.held() == 0);
  }
  CHECK(f.reports.count() == 20);
}

TEST_CASE("a snapshot for a checkpoint goes into its file, whatever is wrong with the store") {
  const testing::TempDir dir;
  Fixture f;
  f.store.fail_begin(true);
  SnapshotPlan plan = f.plan(7, 5, 4);
  plan.checkpoint = WriteCheckpoint{9, JobId(7), Round(5), dir / "job-round-5.partial", ViewId(1)};
  std::string file;
  SUBCASE("it can be written") {
    file = dir / "job-round-5.partial/shard-0.bin";
  }
  SUBCASE("its folder cannot be made") {
    std::ofstream(dir / "in-the-way");
    plan.checkpoint->directory = dir / "in-the-way/job-round-5.partial";
  }
  f.snapshotter.expect(plan);
  for (std::uint32_t i = 0; i < 4; ++i) f.snapshotter.captured(f.chunk(7, 5, 2 * i));
  const CheckpointDone done = f.wait_written();
  CHECK(done.operation == 9);
  CHECK(f.reports.count() == 0);
  CHECK(f.held() == 0);
  REQUIRE_MESSAGE(done.ok == !file.empty(), done.message);
  if (!done.ok) {
    CHECK(contains(done.message, "save into a directory that every server may write"));
    return;
  }
  CHECK(done.bytes == std::filesystem::file_size(file));
  CHECK(done.checksum.size() == 32);
  const auto opened = required(CheckpointFile::open(file));
  CHECK(opened->info().round == Round(5));
}

TEST_CASE("a snapshot for a checkpoint that is given up leaves no file") {
  const testing::TempDir dir;
  Fixture f;
  SnapshotPlan plan = f.plan(7, 5, 4);
  plan.checkpoint = WriteCheckpoint{9, JobId(7), Round(5), dir / "job-round-5.partial", ViewId(1)};
  f.snapshotter.expect(plan);
  for (std::uint32_t i = 0; i < 3; ++i) f.snapshotter.captured(f.chunk(7, 5, 2 * i));
  f.snapshotter.abandon(JobId(7), Round(5), "a newer one");
  const CheckpointDone done = f.wait_written();
  CHECK_FALSE(done.ok);
  CHECK(done.code == ErrorCode::kStopped);
  CHECK_FALSE(std::filesystem::exists(dir / "job-round-5.partial/shard-0.bin"));
  CHECK(f.held() == 0);
}

TEST_CASE("several lanes capture at once while another job is written") {
  Fixture f;
  f.snapshotter.expect(f.plan(1, 5, 24));
  f.snapshotter.expect(f.plan(2, 9, 24));
  std::vector<ChunkSnapshot> chunks;
  for (std::uint32_t i = 0; i < 24; ++i) {
    chunks.push_back(f.chunk(1, 5, 2 * i));
    chunks.push_back(f.chunk(2, 9, 2 * i));
  }
  std::vector<std::thread> lanes;
  for (std::size_t lane = 0; lane < 4; ++lane) {
    lanes.emplace_back([&, lane] {
      for (std::size_t i = lane; i < chunks.size(); i += 4) f.snapshotter.captured(std::move(chunks[i]));
    });
  }
  for (auto& lane : lanes) lane.join();
  const auto first = f.reports.wait(1), second = f.reports.wait(2);
  CHECK(first.ok);
  CHECK(second.ok);
  CHECK(first.job != second.job);
  CHECK(f.store.written(JobId(1), Round(5)).chunks.size() == 24);
  CHECK(f.store.written(JobId(2), Round(9)).chunks.size() == 24);
  CHECK(f.store.written(JobId(2), Round(9)).contents_right);
}

TEST_CASE("memory is given back chunk by chunk while the snapshot is still being captured") {
  Fixture f;
  f.snapshotter.expect(f.plan(7, 1, 4));
  f.capture(7, 1, {0, 2});
  f.snapshotter.captured(f.chunk(7, 1, 6));  // 4 is missing: this one has to wait
  REQUIRE(f.store.wait_added(2));
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (f.held() > 1 && std::chrono::steady_clock::now() < deadline) std::this_thread::sleep_for(1ms);
  CHECK(f.held() == 1);
  CHECK(f.snapshotter.waiting_chunks() == 1);
  f.snapshotter.captured(f.chunk(7, 1, 4));
  CHECK(f.reports.wait(1).ok);
  CHECK(f.held() == 0);
}

TEST_CASE("a snapshot without chunks is complete at once") {
  Fixture f;
  f.snapshotter.expect(f.plan(7, 3, 0));
  const SnapshotDone done = f.reports.wait(1);
  CHECK(done.ok);
  CHECK(done.round == Round(3));
  CHECK(f.store.complete(JobId(7), Round(3)));
}

TEST_CASE("chunks that nobody expects, of another view, and second copies are dropped") {
  Fixture f;
  f.snapshotter.captured(f.chunk(7, 1, 0));
  f.snapshotter.expect(f.plan(7, 1, 2));
  f.snapshotter.captured(f.chunk(7, 2, 0));
  f.snapshotter.captured(f.chunk(8, 1, 0));
  f.snapshotter.captured(f.chunk(7, 1, 1));     // not in the plan
  f.snapshotter.captured(f.chunk(7, 1, 0, 2));  // view 2
  CHECK(f.held() == 0);
  f.capture(7, 1, {0, 0});
  CHECK(f.reports.count() == 0);
  f.snapshotter.captured(f.chunk(7, 1, 2));
  CHECK(f.reports.wait(1).ok);
  CHECK(f.store.written(JobId(7), Round(1)).chunks.size() == 2);
}

TEST_CASE("an abandoned snapshot is reported with its reason, frees its buffers and leaves nothing") {
  Fixture f;
  f.snapshotter.expect(f.plan(7, 1, 4));
  f.snapshotter.expect(f.plan(8, 1, 1));
  f.capture(7, 1, {0, 4});
  REQUIRE(f.store.wait_added(1));
  f.snapshotter.abandon(JobId(7), Round(1), "node 1 is lost");
  const SnapshotDone done = f.reports.wait(1);
  CHECK(f.held() == 0);
  CHECK_FALSE(done.ok);
  CHECK(done.job == JobId(7));
  CHECK(done.message == "node 1 is lost");
  CHECK(f.store.writers == 0);
  f.capture(7, 1, {2, 6});
  CHECK(f.held() == 0);
  f.snapshotter.abandon(JobId(7), Round(1), "again");
  f.snapshotter.captured(f.chunk(8, 1, 0));
  CHECK(f.reports.wait(2).ok);  // the other job goes on
  CHECK_FALSE(f.store.complete(JobId(7), Round(1)));
}

TEST_CASE("abandoning does not wait for the disk that a chunk is being written to") {
  Fixture f;
  f.store.hang(true);
  f.snapshotter.expect(f.plan(7, 1, 2));
  f.snapshotter.captured(f.chunk(7, 1, 0));
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (f.snapshotter.waiting_chunks() > 0 && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(1ms);
  f.snapshotter.captured(f.chunk(7, 1, 2));
  f.snapshotter.abandon(JobId(7), Round(1), "stop");
  CHECK(f.held() == 1);  // the one that the disk has not taken yet
  CHECK(f.reports.count() == 0);
  f.store.hang(false);
  CHECK_FALSE(f.reports.wait(1).ok);
  CHECK(f.held() == 0);
}

TEST_CASE(
    "a newer snapshot of a job replaces one that can no longer become complete, but not one that is only being "
    "written") {
  Fixture f;
  f.store.hang(true);
  f.snapshotter.expect(f.plan(7, 10, 2));
  f.snapshotter.captured(f.chunk(7, 10, 0));
  f.snapshotter.captured(f.chunk(7, 10, 2));  // complete, not written
  f.snapshotter.expect(f.plan(7, 20, 2));
  f.snapshotter.captured(f.chunk(7, 20, 0));  // one is missing
  f.snapshotter.expect(f.plan(7, 20, 2));     // the last one, when the job is stopped: same round
  f.capture(7, 20, {0, 2});
  f.store.hang(false);
  std::vector<SnapshotDone> reports = {f.reports.wait(1), f.reports.wait(2), f.reports.wait(3)};
  CHECK(std::count_if(reports.begin(), reports.end(), [](const auto& r) { return r.ok; }) == 2);
  const auto lost = std::find_if(reports.begin(), reports.end(), [](const auto& r) { return !r.ok; });
  CHECK(lost->round == Round(20));
  CHECK(contains(lost->message, "round 20 replaced it"));
  CHECK(f.store.complete(JobId(7), Round(10)));
  CHECK(f.store.complete(JobId(7), Round(20)));
  CHECK(f.held() == 0);
}

TEST_CASE("a failing disk costs the snapshot and not the next one") {
  Fixture f;
  const auto attempt = [&](std::uint64_t round) {
    f.snapshotter.expect(f.plan(7, round, 4));
    f.capture(7, round, {0u, 2u, 4u, 6u});
    const SnapshotDone done = f.reports.wait(round);
    CHECK(f.held() == 0);
    CHECK(f.store.writers == 0);
    CHECK(f.store.complete(JobId(7), Round(round)) == done.ok);
    return done;
  };
  f.store.fail_begin(true);
  SnapshotDone done = attempt(1);
  CHECK_FALSE(done.ok);
  CHECK(done.message == "read-only file system");
  f.store.fail_begin(false);
  f.store.fail_after(2);
  done = attempt(2);
  CHECK_FALSE(done.ok);
  CHECK(done.message == "no space left on device");
  f.store.fail_after(SIZE_MAX);
  f.store.fail_finish(true);
  done = attempt(3);
  CHECK_FALSE(done.ok);
  CHECK(done.message == "cannot sync");
  f.store.fail_finish(false);
  CHECK(attempt(4).ok);
}

TEST_CASE("stopping abandons what is under way") {
  Fixture f;
  f.snapshotter.expect(f.plan(7, 1, 4));
  f.snapshotter.captured(f.chunk(7, 1, 2));
  f.snapshotter.stop();
  f.snapshotter.stop();
  CHECK(f.held() == 0);
  REQUIRE(f.reports.count() == 1);
  const SnapshotDone done = f.reports.wait(1);
  CHECK_FALSE(done.ok);
  CHECK(contains(done.message, "stopping"));
}

TEST_CASE("the writer keeps to its budget, and the last snapshot of a job need not") {
  constexpr std::uint64_t kBytes = 32 * kElements * sizeof(float);
  // Seconds for a snapshot of kBytes; one that takes longer than any machine needs fails in Reports::wait().
  const auto seconds = [&](std::uint64_t budget, bool paced) {
    Fixture f(budget);
    auto plan = f.plan(7, 1, 32);
    plan.paced = paced;
    const auto begin = std::chrono::steady_clock::now();
    f.snapshotter.expect(std::move(plan));
    for (std::uint32_t i = 0; i < 32; ++i) f.snapshotter.captured(f.chunk(7, 1, 2 * i));
    CHECK(f.reports.wait(1).ok);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  CHECK(seconds(kBytes * 4, true) >= 0.18);  // a quarter of a second, less the burst
  seconds(kBytes / 100, false);
}

TEST_CASE("a last snapshot does not wait for another job's pace, nor for its own") {
  Fixture f(kElements * sizeof(float));  // a chunk a second
  f.snapshotter.expect(f.plan(1, 5, 40));
  for (std::uint32_t i = 0; i < 40; ++i) f.snapshotter.captured(f.chunk(1, 5, 2 * i));
  REQUIRE(f.store.wait_added(1));
  SnapshotPlan last = f.plan(2, 9, 8);
  last.paced = false;
  const auto began = std::chrono::steady_clock::now();
  f.snapshotter.expect(last);
  for (std::uint32_t i = 0; i < 8; ++i) f.snapshotter.captured(f.chunk(2, 9, 2 * i));
  CHECK(f.reports.wait(1).job == JobId(2));
  f.snapshotter.hurry(JobId(1), Round(5));
  CHECK(f.reports.wait(2).job == JobId(1));
  CHECK(std::chrono::steady_clock::now() - began < 5s);
}

TEST_CASE("a token bucket lets bytes out at its rate") {
  constexpr std::uint64_t kSecond = 1'000'000'000;
  TokenBucket bucket(1000, 100);
  std::uint64_t now = 5 * kSecond;
  CHECK(bucket.take(100, now) == 0);            // the burst
  CHECK(bucket.take(50, now) == kSecond / 20);  // 50 bytes of debt
  now += kSecond / 20;
  CHECK(bucket.take(0, now) == 0);
  CHECK(bucket.take(1000, now) == kSecond);  // larger than the burst: at the rate
  now += kSecond;
  CHECK(bucket.take(0, now) == 0);
  now += 100 * kSecond;  // a pause saves no more than the burst
  CHECK(bucket.take(300, now) == kSecond / 5);

  std::mt19937_64 random(1);
  TokenBucket random_bucket(1'000'000, 10'000);
  std::uint64_t total = 0;
  now = 0;
  while (total < 10'000'000) {
    const std::uint64_t bytes = random() % 50'000;
    total += bytes;
    now += random_bucket.take(bytes, now);
  }
  CHECK(static_cast<double>(now) == doctest::Approx(static_cast<double>(total - 10'000) * 1000.0).epsilon(0.001));

  TokenBucket unlimited(0, 0);
  CHECK(unlimited.take(1u << 30, 0) == 0);
}

}  // namespace tributary::snapshotter_test
