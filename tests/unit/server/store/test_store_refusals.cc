// Refusals of the store, and faults it survives: other versions, other owners, damaged files, a full disk.
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

#include "server/coordinator/cluster/job_record_seal.h"
#include "server/store/records.h"
#include "server/store/snapshot_file.h"
#include "server/store/store.h"
#include "tests/unit/required.h"
#include "tests/unit/server/store/store_samples.h"

namespace tributary::store_refusals_test {

namespace fs = std::filesystem;
using namespace testing;

TEST_CASE("a store of a newer format is refused with both numbers") {
  TempDir dir;
  open_store(dir / "s").reset();
  edit(dir / "s", [](rocksdb::DB& db) {
    REQUIRE(db.Put(rocksdb::WriteOptions(), "identity", records::seal(records::StoreIdentity{0}, 99)).ok());
  });
  const std::string message = refusal(Store::open(dir / "s", 0), ErrorCode::kStoreFormat);
  CHECK(contains(message, "format 99"));
  CHECK(contains(message, "up to " + std::to_string(records::kStoreFormat)));
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

TEST_CASE_FIXTURE(OnDisk, "a byte flipped anywhere in a snapshot file is an error and never a wrong load") {
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
    // A damaged index is noticed at open, a damaged value when it is loaded; load_snapshot() checks every value that it
    // is given.
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
  const std::string header0("\0\0\0\1\0", 5), params0("\0\0\0\1\1", 5), header1("\0\0\0\4\0", 5),
      params1("\0\0\0\4\1", 5);
  records::ChunkHeader good;
  good.version = Version(1);
  good.step = 1;
  good.job = info.job;
  good.round = info.round;
  good.chunk = ChunkIndex(1);
  good.optimizer = info.optimizer;
  good.elements = 8;
  good.checksum = 0x1234;  // never the right one
  const auto header_with = [&](void (*change)(records::ChunkHeader&)) {
    return [=](std::map<std::string, std::string>& m) {
      records::ChunkHeader other = good;
      change(other);
      m[header0] = records::seal(other);
    };
  };
  const std::vector<Case> cases = {
      {"chunk 1 of the snapshot of round 1 of job 'mlp' (job id 7) is damaged: its checksum", [](auto&) {}},
      {"chunk 1 of the snapshot of round 1 of job 'mlp' (job id 7) is damaged: it is missing",
       [&](auto& m) { m.erase(header0); }},
      {"its parameters are missing", [&](auto& m) { m.erase(params0); }},
      {"its parameters have 31 bytes, not 32", [&](auto& m) { m[params0].pop_back(); }},
      {"the header of chunk 1 of the snapshot of round 1 of job 'mlp' (job id 7) is damaged: its checksum",
       [&](auto& m) { m[header0][20] ^= 1; }},
      {"is damaged: it has only 3 bytes", [&](auto& m) { m[header0] = "abc"; }},
      {"its header names chunk 4 of job id 7, round 1, optimizer adamw",
       header_with([](auto& h) { h.chunk = ChunkIndex(4); })},
      {"its header names chunk 1 of job id 7, round 1, optimizer lion",
       header_with([](auto& h) { h.optimizer = "lion"; })},
      {"store format 5", [&](auto& m) { m[header0] = records::seal(good, records::kStoreFormat + 1); }},
      {"its estimate is missing", header_with([](auto& h) { h.estimate = true; })},
      {"the residual of node 2 is missing", header_with([](auto& h) {
         h.nodes = 3;
         h.residual_nodes = {2};
       })},
      {"claims residuals of nodes that are not there", header_with([](auto& h) {
         h.nodes = 2;
         h.residual_nodes = {2};
       })},
      {"claims 8 elements and 200 state arrays", header_with([](auto& h) { h.slots = 200; })},
  };
  records::SnapshotRecord record;
  record.info = info;
  record.chunks = owned(2);
  for (const Case& test : cases) {
    CAPTURE(test.expected);
    std::map<std::string, std::string> entries{
        {header0, records::seal(good)}, {params0, array}, {header1, "x"}, {params1, "x"}};
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
      const auto status = failure_of(read_snapshot(*iterator, record, [](ChunkIndex, const ChunkState&) -> Status {
        FAIL("a damaged chunk was handed out");
        return {};
      }));
      CHECK_MESSAGE(contains(status.message, test.expected), status.message);
    }
    fs::remove_all(path);
  }
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
    auto writer = required(store->begin(info));
    for (const ChunkIndex chunk : owned(4)) {
      status = writer->add(sample_chunk(pool, info.job, info.round, chunk, kLarge, kSlots));
      if (!status) break;
    }
    if (status) status = writer->finish();
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

TEST_CASE_FIXTURE(OnDisk, "a snapshot of another layout or optimizer is refused with both") {
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
  CHECK(contains(refusal(load_snapshot(*store, other), ErrorCode::kStore),
                 "'mlp', the job that is to be resumed has 'cnn'"));
}

TEST_CASE("a registry record of a newer format or with flipped bits is refused by name") {
  TempDir dir;
  {
    auto store = open_store(dir / "s");
    REQUIRE(store->save(sample_job(1)).has_value());
  }
  edit(dir / "s", [](rocksdb::DB& db) {
    REQUIRE(
        db.Put(rocksdb::WriteOptions(), "job/00000000000000ff", records::seal(sample_job(2), records::kStoreFormat + 1))
            .ok());
  });
  CHECK(contains(refusal(open_store(dir / "s")->records(), ErrorCode::kStoreFormat), "job/00000000000000ff"));
  const std::string sealed = records::seal(sample_job(2));
  for (std::size_t i = 0; i < sealed.size(); ++i) {
    std::string flipped = sealed;
    flipped[i] = static_cast<char>(flipped[i] ^ (1 << i % 8));
    CHECK(contains(refusal(records::unseal_job(flipped, "the record"), ErrorCode::kStore), "the record is damaged"));
  }
}

}  // namespace tributary::store_refusals_test
