#include <doctest/doctest.h>
#include <rocksdb/db.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "server/store/records.h"
#include "server/store/store.h"
#include "tests/unit/required.h"
#include "tests/unit/server/store/store_samples.h"

namespace tributary::store_test {

namespace fs = std::filesystem;
using namespace testing;

TEST_CASE_FIXTURE(OnDisk, "a snapshot survives closing and opening the store") {
  const auto info = sample_info(7, 120, 5);
  {
    auto store = open_store(dir / "s");
    CHECK(store->jobs().empty());
    write_snapshot(*store, pool, info);
    CHECK(load_snapshot(*store, info).has_value());
    CHECK(fs::is_empty(dir / "s/incoming"));
  }
  auto store = open_store(dir / "s");
  const auto jobs = only_one(store->jobs());
  CHECK(jobs.job == info.job);
  CHECK(jobs.name == info.job_name);
  CHECK(jobs.layout_hash == info.layout_hash);
  CHECK(jobs.snapshots == std::vector<Round>{info.round});
  const auto status = load_snapshot(*store, info);
  CHECK_MESSAGE(status.has_value(), status.error().message);
}

TEST_CASE("terms survive closing and opening the store, and only grow") {
  const TempDir dir;
  {
    const auto store = open_store(dir / "s");
    CHECK(*store->terms() == SeatTerms{});
    REQUIRE(store->promise(Term(17)));
    REQUIRE(store->own(Term(17)));
    REQUIRE(store->promise(Term(32)));
    REQUIRE(store->promise(Term(5)));
  }
  CHECK(*open_store(dir / "s")->terms() == SeatTerms{Term(32), Term(17)});
}

TEST_CASE_FIXTURE(OnDisk, "a store has copies of other servers' parts beside its own, which go with them") {
  const auto own = sample_info(7, 120, 5);
  auto copy = own;
  copy.shard = ShardIndex(3);
  copy.chunks = 4;
  auto later = copy;
  later.round = Round(130);
  {
    auto store = open_store(dir / "s");
    for (const auto& info : {own, copy, later}) write_snapshot(*store, pool, info);
  }
  auto store = open_store(dir / "s");
  const auto jobs = store->jobs();
  REQUIRE(jobs.size() == 2);
  CHECK(jobs[0].own());
  CHECK(jobs[0].snapshots == std::vector<Round>{Round(120)});
  CHECK(jobs[1].copy_of == ShardIndex(3));
  CHECK(jobs[1].snapshots == std::vector<Round>{Round(120), Round(130)});
  CHECK(load_snapshot(*store, own).has_value());
  CHECK(load_snapshot(*store, copy).has_value());
  const auto pinned = required(store->pin(JobId(7), Round(130), ShardIndex(3)));
  std::vector<ChunkIndex> read;
  const auto note = [&](const StoredChunk& chunk) -> Status {
    read.push_back(chunk.chunk);
    return {};
  };
  for (std::size_t place : {2u, 0u}) REQUIRE(pinned.read_one(place, note));
  CHECK(read == std::vector<ChunkIndex>{ChunkIndex(7), ChunkIndex(1)});
  CHECK_FALSE(store->pin(JobId(7), Round(130), ShardIndex(0)));
  REQUIRE(store->drop(JobId(7), Round(0), Round(120)));
  REQUIRE(store->jobs().size() == 1);
  CHECK(store->jobs()[0].snapshots == std::vector<Round>{Round(130)});
  REQUIRE(store->drop_job(JobId(7)));
  CHECK(store->jobs().empty());
}

TEST_CASE_FIXTURE(OnDisk, "a copy that has lost its record is dropped at open") {
  auto copy = sample_info(7, 120, 5);
  copy.shard = ShardIndex(3);
  { write_snapshot(*open_store(dir / "s"), pool, copy); }
  edit(dir / "s", [](rocksdb::DB& db) {
    std::unique_ptr<rocksdb::Iterator> it(db.NewIterator(rocksdb::ReadOptions()));
    it->Seek("copy/");
    REQUIRE(it->Valid());
    REQUIRE(db.Delete(rocksdb::WriteOptions(), it->key()).ok());
  });
  { CHECK(open_store(dir / "s")->jobs().empty()); }
  CHECK(families(dir / "s") == std::vector<std::string>{"default"});
}

TEST_CASE("a snapshot of several files loads in order") {
  TempDir dir;
  constexpr std::size_t kLarge = 2u << 20;  // 24 MiB a chunk with its state: a file closes after three
  BufferPool pool(kLarge * sizeof(float), 16);
  auto store = open_store(dir / "s");
  const auto info = sample_info(1, 3, 7);
  write_snapshot(*store, pool, info, kLarge);
  CHECK(load_snapshot(*store, info, kLarge).has_value());
  int files = 0;
  for (const auto& entry : fs::directory_iterator(dir / "s/db")) files += entry.path().extension() == ".sst" ? 1 : 0;
  CHECK(files >= 3);
}

TEST_CASE("a shard that owns no chunk has snapshots too") {
  TempDir dir;
  BufferPool pool(64, 1);
  const auto info = sample_info(1, 2, 0);
  {
    auto store = open_store(dir / "s");
    write_snapshot(*store, pool, info);
  }
  auto store = open_store(dir / "s");
  CHECK(rounds(*store) == std::vector<Round>{Round(2)});
  CHECK(load_snapshot(*store, info).has_value());
}

TEST_CASE_FIXTURE(OnDisk, "a snapshot that was not finished leaves nothing behind") {
  auto store = open_store(dir / "s");
  const auto info = sample_info(7, 120, 3);
  {
    auto writer = required(store->begin(info));
    REQUIRE(writer->add(sample_chunk(pool, info.job, info.round, ChunkIndex(1), kElements, kSlots)).has_value());
    CHECK_FALSE(fs::is_empty(dir / "s/incoming"));
  }
  CHECK(fs::is_empty(dir / "s/incoming"));
  {
    auto writer = store->begin(info);
    REQUIRE((*writer)->add(sample_chunk(pool, info.job, info.round, ChunkIndex(1), kElements, kSlots)).has_value());
    CHECK(contains(refusal((*writer)->finish(), ErrorCode::kStore), "1 of 3 chunks"));
  }
  CHECK(store->jobs().empty());
  CHECK(contains(refusal(load_snapshot(*store, info), ErrorCode::kNotFound), "none of that job"));
}

TEST_CASE("chunks out of order or of another snapshot are refused") {
  TempDir dir;
  BufferPool pool(kElements * sizeof(float), 32);
  auto store = open_store(dir / "s");
  const auto info = sample_info(7, 120, 3);
  auto writer = required(store->begin(info));
  const auto add = [&](JobId job, Round round, std::uint32_t chunk) {
    return writer->add(sample_chunk(pool, job, round, ChunkIndex(chunk), kElements, kSlots));
  };
  REQUIRE(add(info.job, info.round, 4).has_value());
  CHECK(contains(refusal(add(info.job, info.round, 4), ErrorCode::kInternal), "ascending"));
  CHECK(contains(refusal(add(info.job, info.round, 1), ErrorCode::kInternal), "ascending"));
  CHECK(contains(refusal(add(JobId(8), info.round, 7), ErrorCode::kInternal), "job id 8"));
  CHECK(contains(refusal(add(info.job, Round(119), 7), ErrorCode::kInternal), "round 119"));
}

TEST_CASE_FIXTURE(OnDisk, "a snapshot without its record is set aside with a warning until its job has a later one") {
  const auto kept = sample_info(7, 100, 3);
  {
    auto store = open_store(dir / "s");
    write_snapshot(*store, pool, kept);
    write_snapshot(*store, pool, sample_info(7, 110, 3));
  }
  // As if the crash had come after the files were ingested and before the key was durable; a file was being written;
  // and a key whose family is gone.
  edit(dir / "s", [&](rocksdb::DB& db) {
    std::unique_ptr<rocksdb::Iterator> it(db.NewIterator(rocksdb::ReadOptions()));
    std::vector<std::string> keys;
    for (it->Seek("snapshot/"); it->Valid(); it->Next()) keys.push_back(it->key().ToString());
    REQUIRE(keys.size() == 2);
    REQUIRE(db.Delete(rocksdb::WriteOptions(), keys[1]).ok());
    records::SnapshotRecord gone;
    gone.info = sample_info(9, 1, 0);
    REQUIRE(db.Put(rocksdb::WriteOptions(), "snapshot/9/1", records::seal(gone)).ok());
  });
  std::ofstream(dir / "s/incoming/half.sst") << "half a file";
  const auto count = [&] { return families(dir / "s").size(); };
  for (int repeat = 0; repeat < 2; ++repeat) {
    std::string lines;
    const std::unique_ptr<Store> store =
        required(Store::open(dir / "s", 0, [&](const std::string& line) { lines += line + "\n"; }));
    CHECK(contains(lines, "the snapshot of round 110 of job id 7, is complete"));
    CHECK(contains(lines, "the record snapshot/9/1 is of a snapshot whose data is gone") == (repeat == 0));
    REQUIRE(store->jobs().size() == 1);
    CHECK(rounds(*store) == std::vector<Round>{kept.round});
    CHECK(load_snapshot(*store, kept).has_value());
    CHECK(fs::is_empty(dir / "s/incoming"));
  }
  CHECK(count() == 3);
  {
    // The round can be written again, in another family.
    auto store = open_store(dir / "s");
    write_snapshot(*store, pool, sample_info(7, 110, 3));
    CHECK(load_snapshot(*store, sample_info(7, 110, 3)).has_value());
  }
  CHECK(count() == 3);
  for (const std::uint64_t round : {120, 130}) {  // those before are dropped when one is committed
    auto store = open_store(dir / "s");
    write_snapshot(*store, pool, sample_info(7, round, 3));
    REQUIRE(store->drop(JobId(7), Round(0), Round(round - 1)));
    CHECK(count() == 2);
  }
}

TEST_CASE_FIXTURE(OnDisk, "a snapshot written again replaces the older one") {
  const auto info = sample_info(7, 100, 3);
  for (int repeat = 0; repeat < 3; ++repeat) {
    auto store = open_store(dir / "s");
    write_snapshot(*store, pool, info);
    write_snapshot(*store, pool, info);
    CHECK(rounds(*store) == std::vector<Round>{info.round});
    CHECK(load_snapshot(*store, info).has_value());
  }
  CHECK(families(dir / "s").size() == 2);
}

TEST_CASE_FIXTURE(OnDisk, "dropping keeps the round that is named, newer ones, and other jobs") {
  {
    auto store = open_store(dir / "s");
    for (const std::uint64_t round : {10, 20, 30, 40}) write_snapshot(*store, pool, sample_info(7, round, 2));
    write_snapshot(*store, pool, sample_info(8, 5, 2));
    REQUIRE(store->save(sample_job(7)).has_value());
    REQUIRE(store->drop(JobId(7), Round(0), Round(29)).has_value());
  }
  auto store = open_store(dir / "s");
  CHECK(rounds(*store) == std::vector<Round>{Round(30), Round(40)});
  CHECK(load_snapshot(*store, sample_info(7, 30, 2)).has_value());
  CHECK(contains(refusal(load_snapshot(*store, sample_info(7, 20, 2)), ErrorCode::kNotFound), "it has rounds 30, 40"));
  CHECK(load_snapshot(*store, sample_info(8, 5, 2)).has_value());

  REQUIRE(store->drop(JobId(7), Round(31), Round(~0ull)).has_value());
  CHECK(rounds(*store) == std::vector<Round>{Round(30)});
  CHECK(load_snapshot(*store, sample_info(8, 5, 2)).has_value());

  REQUIRE(store->drop_job(JobId(7)).has_value());
  REQUIRE(store->jobs().size() == 1);
  CHECK(store->jobs()[0].job == JobId(8));
  CHECK(store->records()->size() == 1);  // its record is the coordinator's
  REQUIRE(store->remove(JobId(7)).has_value());
  CHECK(store->records()->empty());
  CHECK(store->remove(JobId(7)).has_value());
}

TEST_CASE_FIXTURE(OnDisk, "a snapshot may be dropped while it is being loaded") {
  auto store = open_store(dir / "s");
  const auto info = sample_info(7, 10, 4);
  write_snapshot(*store, pool, info);
  int seen = 0;
  const auto status = store->load(info, [&](ChunkIndex chunk, const ChunkState& state) -> Status {
    if (seen++ == 0) CHECK(store->drop_job(info.job).has_value());
    CHECK(sample_matches(state.params.floats(), info.round, chunk, 0));
    return {};
  });
  CHECK(status.has_value());
  CHECK(seen == 4);
}

TEST_CASE_FIXTURE(OnDisk, "the reason of a callback that refuses a chunk comes back") {
  auto store = open_store(dir / "s");
  const auto info = sample_info(7, 10, 4);
  write_snapshot(*store, pool, info);
  const auto status = store->load(
      info, [](ChunkIndex, const ChunkState&) -> Status { return fail(ErrorCode::kWrongLength, "too long"); });
  CHECK(refusal(status, ErrorCode::kWrongLength) == "too long");
}

TEST_CASE("the registry survives closing and opening the store") {
  TempDir dir;
  JobRecord first = sample_job(1);
  JobRecord second = sample_job(0xffffffffffffffffull);
  {
    auto store = open_store(dir / "s");
    CHECK(store->records()->empty());
    REQUIRE(store->save(first).has_value());
    REQUIRE(store->save(second).has_value());
    first.view = ViewId(6);
    first.finished = true;
    REQUIRE(store->save(first).has_value());
  }
  auto store = open_store(dir / "s");
  const auto registry = required(store->records());
  REQUIRE(registry.size() == 2);
  CHECK(equal(registry[0], first));
  CHECK(equal(registry[1], second));
}

TEST_CASE("the clocks of a chunk's nodes and its gate's decision come back with it, and other jobs have none") {
  const GateDecision kDecision{GateVerdict::kClipped, 0.125, 3.5, 4096.0f, 12};
  TempDir dir;
  BufferPool pool(kElements * sizeof(float), 64);
  const SnapshotInfo info = sample_info(12, 7, 2);
  {
    auto store = open_store(dir / "store");
    auto writer = required(store->begin(info));
    for (const ChunkIndex chunk : owned(2)) {
      ChunkSnapshot snapshot = sample_chunk(pool, info.job, info.round, chunk, kElements, kSlots);
      snapshot.state.nodes = 3;
      if (chunk == owned(2)[0]) snapshot.state.clocks = {7, 1ull << 40, 9};
      if (chunk == owned(2)[0]) snapshot.state.gate = kDecision;
      REQUIRE(writer->add(snapshot));
    }
    REQUIRE(writer->finish());
  }
  auto store = open_store(dir / "store");
  std::vector<std::vector<std::uint64_t>> clocks;
  REQUIRE(store->load(info, [&](ChunkIndex, const ChunkState& state) -> Status {
    clocks.push_back(state.clocks);
    CHECK(state.gate == (clocks.size() == 1 ? kDecision : GateDecision{}));
    return {};
  }));
  CHECK(clocks == std::vector<std::vector<std::uint64_t>>{{7, 1ull << 40, 9}, {}});
}

TEST_CASE("a chunk's estimate and residuals come back as they were, whatever address they were received at") {
  TempDir dir;
  const auto store = open_store(dir / "s");
  BufferPool pool(kElements * sizeof(float), 8);
  const auto info = sample_info(7, 3, 2);
  const auto value = [](ChunkIndex chunk, std::uint32_t node, std::size_t i) {
    return static_cast<float>(chunk.value * 100 + node) + static_cast<float>(i) * 0.5f;
  };
  {
    auto writer = required(store->begin(info));
    for (const ChunkIndex chunk : owned(2)) {
      ChunkSnapshot snapshot = sample_chunk(pool, info.job, info.round, chunk, kElements, 1);
      snapshot.state.estimate = pool.acquire(kElements * sizeof(float));
      for (std::size_t i = 0; i < kElements; ++i) snapshot.state.estimate.floats()[i] = value(chunk, 50, i);
      snapshot.state.nodes = 300;
      for (const std::uint32_t node : {0u, 2u, 299u}) {
        auto memory = std::make_shared<std::vector<std::byte>>(kElements * sizeof(float) + 1);
        for (std::size_t i = 0; i < kElements; ++i) {
          const float v = value(chunk, node, i);
          std::memcpy(memory->data() + 1 + i * sizeof(float), &v, sizeof v);
        }
        const std::span<const std::byte> bytes = std::span<const std::byte>(*memory).subspan(1);
        snapshot.state.residuals.push_back(NodeResidual::of(node, Payload(std::move(memory), bytes)));
      }
      required(writer->add(snapshot));
    }
    REQUIRE(writer->finish().has_value());
  }
  int chunks = 0;
  required(store->load(info, [&](ChunkIndex chunk, const ChunkState& state) -> Status {
    ++chunks;
    CHECK(sample_matches(state.params.floats(), info.round, chunk, 0));
    REQUIRE(state.slots[0]);
    CHECK_FALSE(state.slots[1]);
    CHECK(sample_matches(state.slots[0].floats(), info.round, chunk, 1));
    REQUIRE(state.estimate.floats().size() == kElements);
    CHECK(state.estimate.floats()[7] == value(chunk, 50, 7));
    CHECK(state.nodes == 300);
    REQUIRE(state.residuals.size() == 3);
    const std::uint32_t nodes[] = {0, 2, 299};
    for (std::size_t r = 0; r < 3; ++r) {
      CHECK(state.residuals[r].node == nodes[r]);
      const auto* values = reinterpret_cast<const float*>(state.residuals[r].bytes().data());
      for (std::size_t i = 0; i < kElements; ++i) {
        REQUIRE(values[i] == value(chunk, nodes[r], i));
      }
    }
    return {};
  }));
  CHECK(chunks == 2);
}

}  // namespace tributary::store_test
