// Orders of the control thread to the store: done in order, by another thread, and answered on the control thread.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "server/store/store_thread.h"
#include "tests/unit/server/coordinator/parts_in_memory.h"

namespace tributary::store_thread_test {
namespace {

using namespace std::chrono_literals;

constexpr auto kPatience = 20s;

// A store with one snapshot. Without RocksDB, so that these tests run under TSan.
class OneSnapshot final : public Store {
 public:
  explicit OneSnapshot(std::uint32_t chunks) : chunks_(chunks) {}
  Status load(const SnapshotInfo& info, const EachChunk& each) override {
    if (chunks_ == 0) return fail(ErrorCode::kNotFound, "no snapshot of round " + std::to_string(info.round.value));
    for (std::uint32_t c = 0; c < chunks_; ++c) {
      if (Status taken = each(ChunkIndex(c), {}); !taken) return taken;
    }
    return {};
  }
  Status drop(JobId, Round, Round) override {
    chunks_ = 0;
    return {};
  }
  std::vector<StoredJob> jobs() const override { return {}; }
  bool has(JobId, Round, ShardIndex) const override { return false; }
  Result<std::unique_ptr<SnapshotWriter>> begin(const SnapshotInfo&) override { return not_here(); }
  Result<PinnedSnapshot> pin(JobId, Round, ShardIndex) override { return not_here(); }
  Status drop_job(JobId) override { return not_here(); }
  Status save_all(std::span<const JobRecord>) override { return not_here(); }
  Status remove(JobId) override { return not_here(); }
  Result<std::vector<JobId>> recorded() const override { return std::vector<JobId>(); }
  Result<JobRecord> record(JobId) const override { return not_here(); }
  LargePartStore& large_parts() override { return large_parts_; }
  Result<SeatTerms> terms() const override { return SeatTerms(); }
  Status promise(Term) override { return {}; }
  Status own(Term) override { return {}; }
  std::string path() const override { return "memory"; }

 private:
  static tl::unexpected<Error> not_here() { return fail(ErrorCode::kInternal, "not here"); }
  std::uint32_t chunks_;
  testing::PartsInMemory large_parts_;
};

struct Fixture {
  explicit Fixture(std::uint32_t chunks) : info{JobId(7), "job", Round(5), 0, "sgd", chunks}, store(chunks) {}
  // As the control thread carries it out.
  void post(std::function<void()> event) {
    const std::lock_guard lock(mutex);
    events.push_back(std::move(event));
    changed.notify_all();
  }
  bool wait(std::size_t count) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, kPatience, [&] { return events.size() >= count; });
  }
  void run_events() {
    const std::lock_guard lock(mutex);
    for (const auto& event : events) event();
    events.clear();
  }
  StoreOrders::Done note(const std::string& what) {
    return [this, what](const Status& status) { done.push_back(what + (status ? "" : ": " + status.error().message)); };
  }

  SnapshotInfo info;
  OneSnapshot store;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::function<void()>> events;
  std::vector<std::string> done;
  StoreThread thread{"store", store, [this](std::function<void()> event) { post(std::move(event)); },
                     [](const std::string&) {}};
};

}  // namespace

TEST_CASE("orders for a store are carried out in order, and answered where the control thread takes them") {
  Fixture f(3);
  std::mutex gate;
  std::unique_lock held(gate);
  std::vector<std::uint32_t> chunks;
  f.thread.load(
      f.info,
      [&](ChunkIndex chunk, ChunkState) -> Status {
        const std::lock_guard lock(gate);
        chunks.push_back(chunk.value);
        return {};
      },
      f.note("loaded"));
  f.thread.run([&] { return f.store.drop(JobId(7), Round(0), Round(9)); }, f.note("dropped"));
  f.thread.load(
      f.info, [](ChunkIndex, ChunkState) { return Status(); }, f.note("loaded again"));
  held.unlock();
  REQUIRE(f.wait(3));
  CHECK(f.done.empty());
  f.run_events();
  CHECK(chunks == std::vector<std::uint32_t>{0, 1, 2});
  REQUIRE(f.done.size() == 3);
  CHECK(f.done[0] == "loaded");
  CHECK(f.done[1] == "dropped");
  CHECK(f.done[2].starts_with("loaded again: no snapshot of round 5"));
}

TEST_CASE("whoever takes a load's chunks ends it with an error") {
  Fixture f(3);
  int taken = 0;
  f.thread.load(
      f.info, [&](ChunkIndex, ChunkState) { return ++taken == 2 ? fail(ErrorCode::kStopped, "enough") : Status(); },
      f.note("loaded"));
  REQUIRE(f.wait(1));
  f.run_events();
  CHECK(taken == 2);
  CHECK(f.done == std::vector<std::string>{"loaded: enough"});
}

TEST_CASE("a server that is being stopped reads no further than the chunk that is under way") {
  Fixture f(5);
  std::atomic<int> taken{0};
  f.thread.load(
      f.info,
      [&](ChunkIndex, ChunkState) {
        ++taken;
        std::this_thread::sleep_for(300ms);
        return Status();
      },
      f.note("loaded"));
  while (taken == 0) std::this_thread::sleep_for(1ms);
  f.thread.stop();
  CHECK(taken < 5);
}

}  // namespace tributary::store_thread_test
