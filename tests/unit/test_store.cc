#include <doctest/doctest.h>
#include <rocksdb/db.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/buffer_pool.h"
#include "server/records.h"
#include "server/snapshot_file.h"
#include "server/store.h"
#include "tests/unit/snapshot_samples.h"
#include "tests/unit/temp_dir.h"

namespace tributary {
namespace {

namespace fs = std::filesystem;
using testing::sample_chunk;
using testing::sample_info;
using testing::sample_matches;
using testing::TempDir;

constexpr std::size_t kElements = 1000;
constexpr int kSlots = 2;

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

std::unique_ptr<Store> open_store(const std::string& path, std::uint16_t index = 0) {
  auto store = Store::open(path, index);
  REQUIRE_MESSAGE(store.has_value(), store.error().message);
  return std::move(*store);
}

// Chunks 1, 4, 7, ...: a shard does not own all chunks.
std::vector<ChunkIndex> owned(std::uint32_t count) {
  std::vector<ChunkIndex> out;
  for (std::uint32_t i = 0; i < count; ++i) out.emplace_back(1 + 3 * i);
  return out;
}

void write_snapshot(Store& store, BufferPool& pool, const SnapshotInfo& info, std::size_t elements = kElements) {
  auto writer = store.begin(info);
  REQUIRE(writer.has_value());
  for (const ChunkIndex chunk : owned(info.chunks)) {
    const auto status = (*writer)->add(sample_chunk(pool, info.job, info.round, chunk, elements, kSlots));
    REQUIRE_MESSAGE(status.has_value(), status.error().message);
  }
  const auto status = (*writer)->finish();
  REQUIRE_MESSAGE(status.has_value(), status.error().message);
  CHECK((*writer)->bytes() >= info.chunks * elements * sizeof(float) * (1 + kSlots));
}

// Loads and checks every value; the status of the load.
Status load_snapshot(Store& store, const SnapshotInfo& info, std::size_t elements = kElements) {
  const auto expected = owned(info.chunks);
  std::size_t position = 0;
  auto status = store.load(info, [&](const LoadedChunk& chunk) -> Status {
    REQUIRE(position < expected.size());
    CHECK(chunk.chunk == expected[position++]);
    CHECK(chunk.version == Version(info.round.value));
    CHECK(chunk.step == info.round.value);
    CHECK(chunk.params.size() == elements);
    CHECK(sample_matches(chunk.params, info.round, chunk.chunk, 0));
    REQUIRE(chunk.slots.size() == kSlots);
    for (int slot = 0; slot < kSlots; ++slot) {
      CHECK(chunk.slots[slot].size() == elements);
      CHECK(sample_matches(chunk.slots[slot], info.round, chunk.chunk, slot + 1));
    }
    return {};
  });
  if (status) CHECK(position == expected.size());
  return status;
}

std::string refusal(const Status& status, ErrorCode code) {
  REQUIRE_FALSE(status.has_value());
  CHECK_MESSAGE(status.error().code == code, status.error().message);
  return status.error().message;
}

template <class T>
std::string refusal(const Result<T>& result, ErrorCode code) {
  REQUIRE_FALSE(result.has_value());
  CHECK_MESSAGE(result.error().code == code, result.error().message);
  return result.error().message;
}

std::vector<Round> rounds(const Store& store) {
  const auto jobs = store.jobs();
  return jobs.empty() ? std::vector<Round>{} : jobs[0].snapshots;
}

// What another version of the program, a bug or a disk may have left: edits the database behind the store's back.
void edit(const std::string& store, const std::function<void(rocksdb::DB&)>& change) {
  rocksdb::Options options;
  std::vector<std::string> names;
  REQUIRE(rocksdb::DB::ListColumnFamilies(options, store + "/db", &names).ok());
  std::vector<rocksdb::ColumnFamilyDescriptor> descriptors;
  for (const auto& name : names) descriptors.emplace_back(name, options);
  std::vector<rocksdb::ColumnFamilyHandle*> handles;
  rocksdb::DB* raw = nullptr;
  REQUIRE(rocksdb::DB::Open(options, store + "/db", descriptors, &handles, &raw).ok());
  std::unique_ptr<rocksdb::DB> db(raw);
  change(*db);
  for (auto* handle : handles) REQUIRE(db->DestroyColumnFamilyHandle(handle).ok());
}

JobRecord sample_job(std::uint64_t id) {
  JobRecord record;
  record.job = JobId(id);
  record.job_json = R"({"name":"mlp"})";
  record.tensors = {{"w", {128, 784}}, {"b", {128}}, {"scale", {}}};
  record.chunk_elements = 65536;
  record.owners = {{ShardIndex(0), LaneIndex(0)}, {ShardIndex(1), LaneIndex(3)}};
  record.world_size = 8;
  record.view = ViewId(5);
  record.committed = Round(400);
  record.initialised = true;
  return record;
}

bool equal(const JobRecord& a, const JobRecord& b) {
  return a.job == b.job && a.job_json == b.job_json && a.tensors == b.tensors && a.chunk_elements == b.chunk_elements &&
         a.owners == b.owners && a.world_size == b.world_size && a.view == b.view && a.committed == b.committed &&
         a.initialised == b.initialised && a.finished == b.finished;
}

}  // namespace

TEST_CASE("a snapshot survives closing and opening the store") {
  TempDir dir;
  BufferPool pool(kElements * sizeof(float), 16);
  const auto info = sample_info(7, 120, 5);
  {
    auto store = open_store(dir / "s");
    CHECK(store->jobs().empty());
    write_snapshot(*store, pool, info);
    CHECK(load_snapshot(*store, info).has_value());
    CHECK(fs::is_empty(dir / "s/incoming"));
  }
  auto store = open_store(dir / "s");
  const auto jobs = store->jobs();
  REQUIRE(jobs.size() == 1);
  CHECK(jobs[0].job == info.job);
  CHECK(jobs[0].name == info.job_name);
  CHECK(jobs[0].layout_hash == info.layout_hash);
  CHECK(jobs[0].snapshots == std::vector<Round>{info.round});
  const auto status = load_snapshot(*store, info);
  CHECK_MESSAGE(status.has_value(), status.error().message);
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

TEST_CASE("a snapshot that was not finished leaves nothing behind") {
  TempDir dir;
  BufferPool pool(kElements * sizeof(float), 16);
  auto store = open_store(dir / "s");
  const auto info = sample_info(7, 120, 3);
  {
    auto writer = store->begin(info);
    REQUIRE(writer.has_value());
    REQUIRE((*writer)->add(sample_chunk(pool, info.job, info.round, ChunkIndex(1), kElements, kSlots)).has_value());
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
  auto writer = store->begin(info);
  REQUIRE(writer.has_value());
  const auto add = [&](JobId job, Round round, std::uint32_t chunk) {
    return (*writer)->add(sample_chunk(pool, job, round, ChunkIndex(chunk), kElements, kSlots));
  };
  REQUIRE(add(info.job, info.round, 4).has_value());
  CHECK(contains(refusal(add(info.job, info.round, 4), ErrorCode::kInternal), "ascending"));
  CHECK(contains(refusal(add(info.job, info.round, 1), ErrorCode::kInternal), "ascending"));
  CHECK(contains(refusal(add(JobId(8), info.round, 7), ErrorCode::kInternal), "job id 8"));
  CHECK(contains(refusal(add(info.job, Round(119), 7), ErrorCode::kInternal), "round 119"));
}

TEST_CASE("leftovers of a crash are dropped at open") {
  TempDir dir;
  BufferPool pool(kElements * sizeof(float), 16);
  const auto kept = sample_info(7, 100, 3);
  {
    auto store = open_store(dir / "s");
    write_snapshot(*store, pool, kept);
    write_snapshot(*store, pool, sample_info(7, 110, 3));
  }
  // As if the crash had come after the files were ingested and before the key was durable; a file was being written; and a key
  // whose family is gone.
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
  for (int repeat = 0; repeat < 2; ++repeat) {
    auto store = open_store(dir / "s");
    REQUIRE(store->jobs().size() == 1);
    CHECK(rounds(*store) == std::vector<Round>{kept.round});
    CHECK(load_snapshot(*store, kept).has_value());
    CHECK(fs::is_empty(dir / "s/incoming"));
  }
  // The dropped round can be written again.
  auto store = open_store(dir / "s");
  write_snapshot(*store, pool, sample_info(7, 110, 3));
  CHECK(load_snapshot(*store, sample_info(7, 110, 3)).has_value());
}

TEST_CASE("a snapshot written again replaces the older one") {
  TempDir dir;
  BufferPool pool(kElements * sizeof(float), 16);
  const auto info = sample_info(7, 100, 3);
  for (int repeat = 0; repeat < 3; ++repeat) {
    auto store = open_store(dir / "s");
    write_snapshot(*store, pool, info);
    write_snapshot(*store, pool, info);
    CHECK(rounds(*store) == std::vector<Round>{info.round});
    CHECK(load_snapshot(*store, info).has_value());
  }
  std::vector<std::string> families;
  REQUIRE(rocksdb::DB::ListColumnFamilies(rocksdb::Options(), dir / "s/db", &families).ok());
  CHECK(families.size() == 2);
}

TEST_CASE("a store of a newer format is refused with both numbers") {
  TempDir dir;
  open_store(dir / "s").reset();
  edit(dir / "s", [](rocksdb::DB& db) {
    REQUIRE(db.Put(rocksdb::WriteOptions(), "identity", records::seal(records::StoreIdentity{0}, 99)).ok());
  });
  const std::string message = refusal(Store::open(dir / "s", 0), ErrorCode::kStoreFormat);
  CHECK(contains(message, "format 99"));
  CHECK(contains(message, "up to " + std::to_string(kStoreFormat)));
  CHECK(contains(message, dir / "s"));
}

TEST_CASE("the store of another server is refused with both indexes") {
  TempDir dir;
  open_store(dir / "s", 3).reset();
  const std::string message = refusal(Store::open(dir / "s", 5), ErrorCode::kStore);
  CHECK(contains(message, "belongs to server 3"));
  CHECK(contains(message, "this is server 5"));
  CHECK(contains(message, dir / "s"));
  open_store(dir / "s", 3);
}

TEST_CASE("a store in use is refused with its path and the holder") {
  TempDir dir;
  auto first = open_store(dir / "s");
  const std::string message = refusal(Store::open(dir / "s", 0), ErrorCode::kStore);
  CHECK(contains(message, dir / "s"));
  CHECK(contains(message, "in use by process " + std::to_string(::getpid())));
  CHECK(contains(message, "stop that server"));
  first.reset();
  open_store(dir / "s");
}

TEST_CASE("a path that cannot be a store is refused by name") {
  TempDir dir;
  std::ofstream(dir / "file") << "not a directory";
  CHECK(contains(refusal(Store::open(dir / "file", 0), ErrorCode::kStore), dir / "file"));
  CHECK(contains(refusal(Store::open(dir / "file/below", 0), ErrorCode::kStore), "[store] path"));
}

TEST_CASE("a byte flipped anywhere in a snapshot file is an error and never a wrong load") {
  TempDir dir;
  BufferPool pool(kElements * sizeof(float), 16);
  const auto info = sample_info(7, 120, 4);
  {
    auto store = open_store(dir / "s");
    write_snapshot(*store, pool, info);
  }
  std::string file;
  for (const auto& entry : fs::directory_iterator(dir / "s/db")) {
    if (entry.path().extension() == ".sst") file = entry.path();
  }
  REQUIRE_FALSE(file.empty());
  const auto size = static_cast<std::int64_t>(fs::file_size(file));
  int named = 0;
  for (std::int64_t at = 0; at < size; at += size / 40) {
    CAPTURE(at);
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    const auto flip = [&] {
      stream.seekg(at);
      const char byte = static_cast<char>(stream.get() ^ 0x10);
      stream.seekp(at);
      stream.put(byte);
      stream.flush();
    };
    flip();
    auto store = Store::open(dir / "s", 0);
    // A damaged index is noticed at open, a damaged value when it is loaded; load_snapshot() checks every value that it is given.
    std::string message;
    if (store) {
      const auto status = load_snapshot(**store, info);
      if (!status) message = refusal(status, ErrorCode::kStore);
      if (contains(message, "chunk ") && contains(message, "of the snapshot of round 120 of job 'mlp'")) ++named;
      store->reset();
    } else {
      message = refusal(store, ErrorCode::kStore);
    }
    if (at < size - 2000) CHECK_FALSE(message.empty());  // the tail holds properties that no load reads
    flip();
  }
  CHECK(named >= 30);
  auto store = open_store(dir / "s");
  CHECK(load_snapshot(*store, info).has_value());
}

TEST_CASE("records of a snapshot that do not belong together are refused by name") {
  TempDir dir;
  // Written as the store writes them, but wrong: RocksDB's own checksums are right, so ours must notice.
  const auto info = sample_info(7, 1, 2);
  const std::vector<float> values(8, 1.5f);
  const std::string array(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  struct Case {
    const char* expected;
    std::function<void(std::map<std::string, std::string>&)> damage;
  };
  const std::string header0("\0\0\0\1\0", 5), params0("\0\0\0\1\1", 5), header1("\0\0\0\4\0", 5), params1("\0\0\0\4\1", 5);
  records::ChunkHeader good{info.job, info.round, ChunkIndex(1), Version(1), 1, 8, 0, info.optimizer, 0};
  good.checksum = 0x1234;  // never the right one
  const std::vector<Case> cases = {
      {"chunk 1 of the snapshot of round 1 of job 'mlp' (job id 7) is damaged: its checksum", [](auto&) {}},
      {"chunk 1 of the snapshot of round 1 of job 'mlp' (job id 7) is damaged: it is missing", [&](auto& m) { m.erase(header0); }},
      {"its array 1 is missing", [&](auto& m) { m.erase(params0); }},
      {"array 1 has 31 bytes, not 32", [&](auto& m) { m[params0].pop_back(); }},
      {"the header of chunk 1 of the snapshot of round 1 of job 'mlp' (job id 7) is damaged: its checksum",
       [&](auto& m) { m[header0][20] ^= 1; }},
      {"is damaged: it has only 3 bytes", [&](auto& m) { m[header0] = "abc"; }},
      {"its header names chunk 4 of job id 7, round 1, optimizer adamw", [&](auto& m) {
         auto other = good;
         other.chunk = ChunkIndex(4);
         m[header0] = records::seal(other);
       }},
      {"its header names chunk 1 of job id 7, round 1, optimizer lion", [&](auto& m) {
         auto other = good;
         other.optimizer = "lion";
         m[header0] = records::seal(other);
       }},
      {"store format 2", [&](auto& m) { m[header0] = records::seal(good, 2); }},
      {"claims 8 elements and 200 state arrays", [&](auto& m) {
         auto other = good;
         other.slots = 200;
         m[header0] = records::seal(other);
       }},
  };
  records::SnapshotRecord record;
  record.info = info;
  record.chunks = owned(2);
  for (const Case& test : cases) {
    CAPTURE(test.expected);
    std::map<std::string, std::string> entries{{header0, records::seal(good)}, {params0, array}, {header1, "x"}, {params1, "x"}};
    test.damage(entries);
    const std::string path = dir / "db";
    rocksdb::Options options;
    options.create_if_missing = true;
    rocksdb::DB* raw = nullptr;
    REQUIRE(rocksdb::DB::Open(options, path, &raw).ok());
    {
      std::unique_ptr<rocksdb::DB> db(raw);
      for (const auto& [key, value] : entries) REQUIRE(db->Put(rocksdb::WriteOptions(), key, value).ok());
      std::unique_ptr<rocksdb::Iterator> iterator(db->NewIterator(rocksdb::ReadOptions()));
      const auto status = read_snapshot(*iterator, record, [](const LoadedChunk&) -> Status {
        FAIL("a damaged chunk was handed out");
        return {};
      });
      REQUIRE_FALSE(status.has_value());
      CHECK_MESSAGE(contains(status.error().message, test.expected), status.error().message);
    }
    fs::remove_all(path);
  }
}

TEST_CASE("dropping keeps the round that is named, newer ones, and other jobs") {
  TempDir dir;
  BufferPool pool(kElements * sizeof(float), 16);
  {
    auto store = open_store(dir / "s");
    for (const std::uint64_t round : {10, 20, 30, 40}) write_snapshot(*store, pool, sample_info(7, round, 2));
    write_snapshot(*store, pool, sample_info(8, 5, 2));
    REQUIRE(store->save(sample_job(7)).has_value());
    REQUIRE(store->drop_before(JobId(7), Round(30)).has_value());
  }
  auto store = open_store(dir / "s");
  CHECK(rounds(*store) == std::vector<Round>{Round(30), Round(40)});
  CHECK(load_snapshot(*store, sample_info(7, 30, 2)).has_value());
  CHECK(contains(refusal(load_snapshot(*store, sample_info(7, 20, 2)), ErrorCode::kNotFound), "it has rounds 30, 40"));
  CHECK(load_snapshot(*store, sample_info(8, 5, 2)).has_value());

  REQUIRE(store->drop_job(JobId(7)).has_value());
  REQUIRE(store->jobs().size() == 1);
  CHECK(store->jobs()[0].job == JobId(8));
  CHECK(store->registry()->empty());
}

TEST_CASE("a disk that takes no more bytes fails the snapshot and neither the store nor the next snapshot") {
  TempDir dir;
  constexpr std::size_t kLarge = 1u << 18;
  BufferPool pool(kLarge * sizeof(float), 16);
  auto store = open_store(dir / "s");
  write_snapshot(*store, pool, sample_info(7, 10, 2), kLarge);

  rlimit unlimited{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &unlimited) == 0);
  const auto previous = std::signal(SIGXFSZ, SIG_IGN);  // the write then fails with EFBIG, as it would with ENOSPC
  rlimit small = unlimited;
  small.rlim_cur = 4u << 20;
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
  const auto info = sample_info(7, 20, 4);
  Status status;
  {
    auto writer = store->begin(info);
    REQUIRE(writer.has_value());
    for (const ChunkIndex chunk : owned(4)) {
      status = (*writer)->add(sample_chunk(pool, info.job, info.round, chunk, kLarge, kSlots));
      if (!status) break;
    }
    if (status) status = (*writer)->finish();
  }
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &unlimited) == 0);
  std::signal(SIGXFSZ, previous);
  const std::string message = refusal(status, ErrorCode::kStore);
  CHECK(contains(message, "snapshot of round 20 of job 'mlp'"));
  CHECK(contains(message, "File too large"));
  CHECK(fs::is_empty(dir / "s/incoming"));

  CHECK(rounds(*store) == std::vector<Round>{Round(10)});
  CHECK(load_snapshot(*store, sample_info(7, 10, 2), kLarge).has_value());
  write_snapshot(*store, pool, info, kLarge);
  CHECK(load_snapshot(*store, info, kLarge).has_value());
}

TEST_CASE("a snapshot may be dropped while it is being loaded") {
  TempDir dir;
  BufferPool pool(kElements * sizeof(float), 16);
  auto store = open_store(dir / "s");
  const auto info = sample_info(7, 10, 4);
  write_snapshot(*store, pool, info);
  int seen = 0;
  const auto status = store->load(info, [&](const LoadedChunk& chunk) -> Status {
    if (seen++ == 0) CHECK(store->drop_job(info.job).has_value());
    CHECK(sample_matches(chunk.params, info.round, chunk.chunk, 0));
    return {};
  });
  CHECK(status.has_value());
  CHECK(seen == 4);
}

TEST_CASE("the reason of a callback that refuses a chunk comes back") {
  TempDir dir;
  BufferPool pool(kElements * sizeof(float), 16);
  auto store = open_store(dir / "s");
  const auto info = sample_info(7, 10, 4);
  write_snapshot(*store, pool, info);
  const auto status = store->load(info, [](const LoadedChunk&) { return fail(ErrorCode::kWrongLength, "too long"); });
  CHECK(refusal(status, ErrorCode::kWrongLength) == "too long");
}

TEST_CASE("a snapshot of another layout or optimizer is refused with both") {
  TempDir dir;
  BufferPool pool(kElements * sizeof(float), 16);
  auto store = open_store(dir / "s");
  const auto info = sample_info(7, 10, 2);
  write_snapshot(*store, pool, info);
  auto other = info;
  other.layout_hash = 0x1111;
  std::string message = refusal(load_snapshot(*store, other), ErrorCode::kStore);
  CHECK(contains(message, "abcdef0123456789"));
  CHECK(contains(message, "0000000000001111"));
  other = info;
  other.optimizer = "sgd";
  message = refusal(load_snapshot(*store, other), ErrorCode::kStore);
  CHECK(contains(message, "optimizer adamw"));
  CHECK(contains(message, "has sgd"));
  other = info;
  other.chunks = 3;
  message = refusal(load_snapshot(*store, other), ErrorCode::kStore);
  CHECK(contains(message, " of 2, "));
  CHECK(contains(message, "has 3"));
  other = info;
  other.job_name = "cnn";
  CHECK(contains(refusal(load_snapshot(*store, other), ErrorCode::kStore), "'mlp', the job that is to be resumed has 'cnn'"));
}

TEST_CASE("the registry survives closing and opening the store") {
  TempDir dir;
  JobRecord first = sample_job(1);
  JobRecord second = sample_job(0xffffffffffffffffull);
  {
    auto store = open_store(dir / "s");
    CHECK(store->registry()->empty());
    REQUIRE(store->save(first).has_value());
    REQUIRE(store->save(second).has_value());
    first.view = ViewId(6);
    first.finished = true;
    REQUIRE(store->save(first).has_value());
  }
  auto store = open_store(dir / "s");
  const auto registry = store->registry();
  REQUIRE_MESSAGE(registry.has_value(), registry.error().message);
  REQUIRE(registry->size() == 2);
  CHECK(equal((*registry)[0], first));
  CHECK(equal((*registry)[1], second));
}

TEST_CASE("a registry record of a newer format or with flipped bits is refused by name") {
  TempDir dir;
  {
    auto store = open_store(dir / "s");
    REQUIRE(store->save(sample_job(1)).has_value());
  }
  edit(dir / "s", [](rocksdb::DB& db) {
    REQUIRE(db.Put(rocksdb::WriteOptions(), "job/x", records::seal(sample_job(2), kStoreFormat + 1)).ok());
  });
  CHECK(contains(refusal(open_store(dir / "s")->registry(), ErrorCode::kStoreFormat), "job/x"));
  const std::string sealed = records::seal(sample_job(2));
  for (std::size_t i = 0; i < sealed.size(); ++i) {
    std::string flipped = sealed;
    flipped[i] = static_cast<char>(flipped[i] ^ (1 << i % 8));
    CHECK(contains(refusal(records::unseal_job(flipped, "the record"), ErrorCode::kStore), "the record is damaged"));
  }
}

}  // namespace tributary
