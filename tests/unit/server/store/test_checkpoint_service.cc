// A server's part in checkpoints, with real stores: written by two, loaded by three.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/fsuid.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <thread>

#include "common/files/durable_file.h"
#include "common/system/folder.h"
#include "server/checkpoint/checkpoint_directory.h"
#include "server/checkpoint/checkpoint_file.h"
#include "server/store/checkpoint_service.h"
#include "tests/unit/expect.h"
#include "tests/unit/required.h"
#include "tests/unit/server/checkpoint/checkpoint_samples.h"
#include "tests/unit/server/store/store_samples.h"

namespace tributary::testing::checkpoint_service_test {
namespace {

namespace fs = std::filesystem;

constexpr JobId kJob{11};

// A store with its service; ask() waits for the answer.
class Shard {
 public:
  Shard(const std::string& path, std::uint16_t index, const PathRoots& roots = {{}, false})
      : store(open_store(path, index)),
        service(
            *store, {ShardIndex(index), 0, roots},
            [this](const CheckpointDone& done) {
              if (done.operation == 0) return;  // a drop
              const std::lock_guard lock(mutex_);
              answers_.push_back(done);
              changed_.notify_all();
            },
            [](const std::string&) {}) {}

  CheckpointDone next() {
    std::unique_lock lock(mutex_);
    REQUIRE(changed_.wait_for(lock, std::chrono::seconds(30), [&] { return !answers_.empty(); }));
    const CheckpointDone done = answers_.front();
    answers_.erase(answers_.begin());
    return done;
  }

  std::unique_ptr<Store> store;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<CheckpointDone> answers_;

 public:
  CheckpointService service;
};

std::vector<ChunkOwner> dealt(std::uint32_t chunks, std::uint16_t shards) {
  std::vector<ChunkOwner> owners;
  for (std::uint32_t c = 0; c < chunks; ++c) {
    owners.push_back({ShardIndex(static_cast<std::uint16_t>(c % shards)), LaneIndex(0)});
  }
  return owners;
}

// The chunks of `shard` as a committed snapshot, written the way lanes' captures are.
void keep(Shard& shard, const Layout& layout, std::uint16_t index, Round round) {
  BufferPool pool(layout.chunk_elements() * sizeof(float), 8);
  SnapshotInfo info{kJob, "mlp", round, layout.hash(), "adamw", 0, ShardIndex(index)};
  for (const ChunkOwner owner : layout.owners()) info.chunks += owner.shard.value == index ? 1 : 0;
  auto writer = required(shard.store->begin(info));
  for (std::uint32_t c = 0; c < layout.chunks(); ++c) {
    if (layout.owner(ChunkIndex(c)).shard.value != index) continue;
    ChunkSnapshot chunk = sample_chunk(pool, kJob, round, ChunkIndex(c), layout.chunk(ChunkIndex(c)).elements, 2);
    REQUIRE(writer->add(chunk));
  }
  REQUIRE(writer->finish());
}

Manifest manifest_of_layout(const Layout& layout, Round round) {
  Manifest manifest = sample_manifest(round.value);
  manifest.tensors = layout.tensors();
  manifest.chunk_elements = layout.chunk_elements();
  manifest.chunk_shards.clear();
  for (const ChunkOwner owner : layout.owners()) manifest.chunk_shards.push_back(owner.shard);
  return manifest;
}

TEST_CASE("what two stores hold is written, sealed, and loaded by three, value for value") {
  const TempDir dir;
  const Round round(7);
  const std::vector<TensorSpec> tensors = {{"w", {9000}}, {"b", {100}}};
  const Layout layout = Layout::with_owners(tensors, 1024, dealt(9, 2)).value();
  const std::string target = dir / "mlp-round-7", partial = target + kPartialSuffix;
  Manifest manifest = manifest_of_layout(layout, round);
  for (std::uint16_t s = 0; s < 2; ++s) {
    Shard shard(dir / ("from-" + std::to_string(s)), s);
    keep(shard, layout, s, round);
    shard.service.write({1, kJob, round, partial});
    REQUIRE(shard.store->drop_job(kJob));  // the order holds the snapshot
    const CheckpointDone done = shard.next();
    REQUIRE_MESSAGE(done.ok, done.message);
    CHECK(done.bytes == fs::file_size(partial + "/" + shard_file_name(ShardIndex(s))));
    manifest.shards.push_back(
        {shard_file_name(ShardIndex(s)), ShardIndex(s), s == 0 ? 5u : 4u, done.bytes, done.checksum});
    if (s == 0) continue;
    shard.service.seal({2, kJob, partial, target, to_json(manifest)});
    CHECK(shard.next().ok);
  }
  CHECK(verify_checkpoint(target).findings.empty());

  const Layout moved = Layout::with_owners(tensors, 1024, dealt(9, 3)).value();
  LoadCheckpoint order{3, JobId(99), "moved", manifest_checksum(target).value(), target, moved.owners()};
  std::uint64_t read = 0, all = 0;
  for (const ManifestShard& file : manifest.shards) all += file.bytes;
  for (std::uint16_t s = 0; s < 3; ++s) {
    Shard shard(dir / ("to-" + std::to_string(s)), s);
    shard.service.load(order);
    const CheckpointDone done = shard.next();
    REQUIRE_MESSAGE(done.ok, done.message);
    read += shard.service.moved();
    std::uint32_t seen = 0;
    const auto each = [&](ChunkIndex chunk, const ChunkState& state) -> Status {
      CHECK(chunk.value % 3 == s);
      CHECK(state.version == Version(7));
      CHECK(state.step == 7);
      CHECK(sample_matches(state.params.floats(), round, chunk, 0));
      REQUIRE(state.slots[1]);
      CHECK_FALSE(state.slots[2]);
      CHECK(sample_matches(state.slots[1].floats(), round, chunk, 2));
      ++seen;
      return {};
    };
    required(shard.store->load({JobId(99), "moved", round, moved.hash(), "adamw", 3, ShardIndex(s)}, each));
    CHECK(seen == 3);
    shard.service.drop({JobId(99), {}});
    shard.service.write({4, kJob, round, partial});  // one after the other: when this is answered, that is done
    CHECK_FALSE(shard.next().ok);
    CHECK(shard.store->jobs().empty());
  }
  CHECK(read < 2 * all);  // and not each file by each server: once whole, and once what is another's of it
}

TEST_CASE("of servers that load, one finds that a file is another checkpoint's, whoever takes chunks out of it") {
  const TempDir dir;
  const std::string path = write_sample(dir / "all");
  const std::string other = write_sample(dir / "other", sample_manifest(), 1);
  fs::copy_file(other + "/shard-1.bin", path + "/shard-1.bin", fs::copy_options::overwrite_existing);
  std::size_t found = 0;
  for (std::uint16_t s = 0; s < 2; ++s) {
    Shard shard(dir / ("to-" + std::to_string(s)), s);
    shard.service.load({1, JobId(5), "mlp", manifest_checksum(path).value(), path, dealt(4, 2)});
    found += shard.next().ok ? 0 : 1;
  }
  CHECK(found == 1);
}

TEST_CASE("a file that a whole checkpoint of the round has is linked, not written again") {
  const TempDir dir;
  const Layout layout = Layout::with_owners({{"w", {4096}}}, 1024, dealt(4, 1)).value();
  const std::string target = dir / "mlp-round-7", partial = target + kPartialSuffix;
  Shard shard(dir / "store", 0);
  keep(shard, layout, 0, Round(7));
  Manifest manifest = manifest_of_layout(layout, Round(7));
  CheckpointDone first;
  bool damaged = false;
  SUBCASE("it is whole") {}
  SUBCASE("it is damaged, and is mended") {
    damaged = true;
  }
  for (const bool again : {false, true}) {
    if (again && damaged) {
      std::fstream file(target + "/shard-0.bin", std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(-5, std::ios::end);
      file.put('\x7f');
      file.close();
      REQUIRE_FALSE(verify_checkpoint(target).findings.empty());
    }
    shard.service.write({1, kJob, Round(7), partial});
    const CheckpointDone done = shard.next();
    REQUIRE_MESSAGE(done.ok, done.message);
    CHECK(done.unchanged == (again && !damaged));
    if (again) {
      CHECK(done.checksum == first.checksum);
      CHECK(fs::hard_link_count(partial + "/shard-0.bin") == (damaged ? 1 : 2));
    } else {
      first = done;
      manifest.shards = {{"shard-0.bin", ShardIndex(0), 4, done.bytes, done.checksum}};
    }
    shard.service.seal({2, kJob, partial, target, to_json(manifest)});
    const CheckpointDone sealed = shard.next();
    REQUIRE_MESSAGE(sealed.ok, sealed.message);
    CHECK(sealed.unchanged == again);
  }
  CHECK(verify_checkpoint(target).findings.empty());
}

// A store with a snapshot and a large part, and the checkpoint that is made of it.
struct SavedWithPart {
  SavedWithPart() {
    keep(shard, layout, 0, Round(7));
    LargePartStore& parts = shard.store->large_parts();
    REQUIRE(parts.begin(kJob, state.large));
    for (std::uint64_t at = 0; at < state.bytes.size(); at += kPartBytes) {
      REQUIRE(parts.add(kJob, state.large, at, *state.piece(at)));
    }
    REQUIRE(parts.finish(kJob, state.large));
    manifest.rank_states = {{{0, 0}, state.state}, {{1, 0}, state.state}};
  }
  CheckpointDone save() {
    shard.service.write({1, kJob, Round(7), partial});
    const CheckpointDone done = shard.next();
    REQUIRE_MESSAGE(done.ok, done.message);
    manifest.shards = {{"shard-0.bin", ShardIndex(0), 4, done.bytes, done.checksum}};
    shard.service.seal({2, kJob, partial, target, to_json(manifest)});
    return shard.next();
  }
  LoadCheckpoint order(std::uint16_t servers) const {
    return {3, JobId(99), "moved", manifest_checksum(target).value(), target, dealt(4, servers), true};
  }
  bool has(Shard& where, JobId job) const {
    for (std::uint64_t at = 0; at < state.bytes.size(); at += kPartBytes) {
      const auto piece = where.store->large_parts().read(job, state.large, at);
      if (!piece || *piece != *state.piece(at)) return false;
    }
    return true;
  }

  const TempDir dir;
  const std::string target = dir / "mlp-round-7", partial = target + kPartialSuffix;
  const Layout layout = Layout::with_owners({{"w", {4096}}}, 1024, dealt(4, 1)).value();
  const SampleState state = sample_state('a', 2 * kPartBytes + 77);
  const std::string file = target + "/" + part_file_name(state.large);
  Manifest manifest = manifest_of_layout(layout, Round(7));
  Shard shard{dir / "store", 0};
};

TEST_CASE("what ranks keep of any size is saved by the coordinator's server, and loaded by that of another cluster") {
  SavedWithPart it;
  const CheckpointDone saved = it.save();
  REQUIRE_MESSAGE(saved.ok, saved.message);
  CHECK(saved.bytes == it.state.large.bytes);
  CHECK(verify_checkpoint(it.target).findings.empty());
  for (std::uint16_t s = 0; s < 2; ++s) {
    Shard shard(it.dir / ("to-" + std::to_string(s)), s);
    LoadCheckpoint order = it.order(2);
    order.parts = s == 1;  // of the server that has the coordinator there
    shard.service.load(order);
    const CheckpointDone done = shard.next();
    REQUIRE_MESSAGE(done.ok, done.message);
    CHECK(it.has(shard, JobId(99)) == (s == 1));
    shard.service.drop({JobId(99), {}});
    shard.service.write({4, kJob, Round(7), it.partial});  // when this is answered, that is done
    CHECK_FALSE(shard.next().ok);
    CHECK(shard.store->large_parts().complete().empty());
  }
}

TEST_CASE("a large part that a whole checkpoint of the round has is linked, a damaged one is mended") {
  SavedWithPart it;
  REQUIRE(it.save().ok);
  bool damaged = false;
  SUBCASE("whole") {}
  SUBCASE("damaged") {
    damaged = true;
    flip_bit(it.file, 5);
  }
  const auto before = fs::last_write_time(it.file);
  const CheckpointDone again = it.save();
  REQUIRE_MESSAGE(again.ok, again.message);
  CHECK(again.unchanged);
  CHECK((fs::last_write_time(it.file) == before) == !damaged);
  CHECK(verify_checkpoint(it.target).findings.empty());
  CHECK_FALSE(fs::exists(it.partial));
}

TEST_CASE("a large part that is damaged is not loaded, and one that the store lost not saved") {
  SavedWithPart it;
  SUBCASE("saved") {
    REQUIRE(it.shard.store->large_parts().drop(kJob, {}));
    const CheckpointDone done = it.save();
    CHECK_FALSE(done.ok);
    CHECK(contains(done.message, "server 0: store "));
    CHECK(contains(done.message, "does not have a large part of what ranks keep (2097229 bytes"));
    CHECK_FALSE(fs::exists(it.target));
    CHECK_FALSE(fs::exists(it.partial + "/" + part_file_name(it.state.large)));
  }
  SUBCASE("loaded") {
    REQUIRE(it.save().ok);
    flip_bit(it.file, it.state.large.bytes - 1);
    Shard shard(it.dir / "to", 0);
    shard.service.load(it.order(1));
    const CheckpointDone done = shard.next();
    CHECK_FALSE(done.ok);
    CHECK(contains(done.message, "server 0: '" + it.file + "', a large part of what ranks keep, has the checksum"));
    CHECK(shard.store->jobs().empty());
    CHECK(shard.store->large_parts().complete().empty());
  }
}

TEST_CASE("orders that cannot be carried out are answered with the reason") {
  const TempDir dir;
  Shard shard(dir / "store", 0);
  const auto refusal = [&] {
    const CheckpointDone done = shard.next();
    CHECK_FALSE(done.ok);
    return done.message;
  };
  shard.service.write({1, kJob, Round(7), dir / "x.partial"});
  CHECK(contains(refusal(), "has no snapshot of round 7 of job id 11"));
  const Layout layout = Layout::with_owners({{"w", {4096}}}, 1024, dealt(4, 1)).value();
  keep(shard, layout, 0, Round(7));
  shard.service.write({2, kJob, Round(7), "/proc/none/x.partial"});
  CHECK(contains(refusal(), "the folder '/proc/none"));

  const std::string path = write_sample(dir / "all");
  const std::vector<ChunkOwner> owners = dealt(4, 1);
  shard.service.load({3, JobId(5), "mlp", "another", path, owners});
  CHECK(contains(refusal(), "has another manifest here than on server 0"));
  shard.service.load({4, JobId(5), "mlp", "x", dir / "none", owners});
  CHECK(contains(refusal(), "restore from a directory that every server sees"));
  flip_bit(path + "/shard-1.bin", fs::file_size(path + "/shard-1.bin") - 9);
  shard.service.load({5, JobId(5), "mlp", manifest_checksum(path).value(), path, owners});
  CHECK(contains(refusal(), "server 0: "));
  CHECK(shard.store->jobs().size() == 1);  // the half-loaded one is gone
  shard.service.stop();
  shard.service.write({6, kJob, Round(7), dir / "x.partial"});
  CHECK(contains(refusal(), "is being stopped"));
}

TEST_CASE("a shard's file of another checkpoint is not loaded, though every chunk in it is whole") {
  const TempDir dir;
  Shard shard(dir / "store", 0);
  const std::string path = write_sample(dir / "all");
  const std::string other = write_sample(dir / "other", sample_manifest(), 1);
  fs::copy_file(other + "/shard-1.bin", path + "/shard-1.bin", fs::copy_options::overwrite_existing);
  const Verification verified = verify_checkpoint(path);
  REQUIRE_FALSE(verified.findings.empty());
  shard.service.load({1, JobId(5), "mlp", manifest_checksum(path).value(), path, dealt(4, 1)});
  const CheckpointDone done = shard.next();
  CHECK_FALSE(done.ok);
  CHECK(contains(done.message, verified.findings.front()));
  CHECK(shard.store->jobs().empty());
}

// A file of some megabytes that claims 4000 arrays of the largest size for its first chunk.
void write_sparse_shard(const std::string& path, const CheckpointFileInfo& info) {
  REQUIRE((*CheckpointFileWriter::create(path, info))->finish());
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  std::uint64_t at = fs::file_size(path);
  for (std::uint32_t entry = 0; entry < 4000; ++entry) {
    const std::string key = chunk_key(ChunkIndex(0), entry == 0 ? kHeaderPart : kParamsPart);
    const std::uint32_t key_bytes[2] = {static_cast<std::uint32_t>(key.size()), 0};
    const std::uint64_t rest[2] = {kMaxChunkBytes, 0};
    file.seekp(static_cast<std::streamoff>(at));
    file.write(reinterpret_cast<const char*>(key_bytes), sizeof key_bytes);
    file.write(reinterpret_cast<const char*>(rest), sizeof rest);
    file << key;
    at += sizeof key_bytes + sizeof rest + key.size() + kMaxChunkBytes;
  }
  file.close();
  fs::resize_file(path, at);
}

TEST_CASE("a file that claims more than memory holds is refused before any is taken") {
  const TempDir dir;
  Shard shard(dir / "store", 0);
  Manifest manifest = sample_manifest();
  const std::string path = dir / "mlp-round-7", partial = path + kPartialSuffix;
  write_shards(partial, manifest);
  write_sparse_shard(partial + "/shard-0.bin", {ShardIndex(0), Round(7), layout_of(manifest).hash()});
  manifest.shards[0].bytes = fs::file_size(partial + "/shard-0.bin");
  REQUIRE(seal_checkpoint(partial, path, to_json(manifest)));
  shard.service.load({1, JobId(5), "mlp", manifest_checksum(path).value(), path, dealt(4, 1)});
  const CheckpointDone done = shard.next();
  CHECK_FALSE(done.ok);
  CHECK(contains(done.message, "shard-0.bin'"));
  shard.service.load({2, JobId(5), "mlp", "x", dir / "none", dealt(4, 1)});
  CHECK_FALSE(shard.next().ok);  // it still takes orders
}

TEST_CASE("a folder below another is reached by no link, whichever component is one") {
  const TempDir dir;
  const std::string root = dir / "root", outside = dir / "outside";
  fs::create_directories(root + "/a/b/c");
  fs::create_directories(outside + "/b/c");
  fs::create_directories(outside + "/c");
  CHECK(Folder::below(root, "a/b/c", false));
  CHECK(Folder::below(root, "a/./b/new/er", true));
  CHECK(Folder::below(root, "a/../a", false).error().code == ErrorCode::kInvalidArgument);
  CHECK(Folder::below(root, "a/none", false).error().code == ErrorCode::kNotFound);
  for (const std::string component : {"a", "a/b", "a/b/c"}) {
    const std::string here = root + "/" + component, aside = dir / "aside";
    for (const bool inside : {false, true}) {
      fs::rename(here, aside);
      fs::create_directory_symlink(inside ? aside : outside, here);
      for (const bool make : {false, true}) {
        const auto refused = failure_of(Folder::below(root, "a/b/c", make));
        CHECK(refused.code == ErrorCode::kInvalidArgument);
        CHECK(contains(refused.message, here));
      }
      fs::remove(here);
      fs::rename(aside, here);
    }
  }
  CHECK(fs::is_empty(outside + "/c"));
}

TEST_CASE("a folder may be reached through one that nobody may list") {
  const TempDir dir;
  const std::string root = dir / "root";
  fs::create_directories(root + "/a/b");
  for (const std::string& path : {fs::path(root).parent_path().string(), root}) {
    fs::permissions(path, fs::perms::all);
  }
  fs::permissions(root + "/a", static_cast<fs::perms>(0311));
  fs::permissions(root + "/a/b", fs::perms::all);
  const int mine = ::setfsuid(65534);  // of this thread: root may list everything
  const auto made = Folder::below(root, "a/b/c", true);
  const bool written = made && write_small_file(made->in("file"), "x").has_value();
  ::setfsuid(static_cast<uid_t>(mine));
  REQUIRE_MESSAGE(made, made.error().message);
  CHECK(written);
  CHECK(read_small_file(root + "/a/b/c/file", 10).value() == "x");
}

TEST_CASE("a link that stands where a checkpoint is to be written is not followed, and nothing behind it is dropped") {
  const TempDir dir;
  const Round round(7);
  const Layout layout = Layout::with_owners({{"w", {3000}}}, 1024, dealt(3, 1)).value();
  const std::string root = dir / "root", partial = root + "/team/mlp-round-7.partial";
  fs::create_directories(root + "/team");
  fs::create_directories(root + "/other");
  std::ofstream(root + "/other/shard-0.bin") << "theirs";
  fs::create_directory_symlink(root + "/other", partial);
  Shard shard(dir / "store", 0, PathRoots({root}, true));
  keep(shard, layout, 0, round);
  shard.service.write({1, kJob, round, partial});
  const CheckpointDone done = shard.next();
  CHECK_FALSE(done.ok);
  CHECK(contains(done.message, partial + "' is a link"));
  shard.service.drop({JobId(0), partial});
  shard.service.load(
      {2, JobId(99), "moved", "0", root + "/none", layout.owners()});  // when that is answered, it is dropped
  shard.next();
  CHECK(read_small_file(root + "/other/shard-0.bin", 100).value() == "theirs");
}

TEST_CASE("a file that is a link is not read, and one that is written takes the link's place") {
  const TempDir dir;
  std::ofstream(dir / "secret") << "not for them";
  fs::create_directory(dir / "folder");
  const auto folder = required(Folder::open(dir / "folder"));
  fs::create_symlink(dir / "secret", folder.in("manifest.json"));
  const auto refused = failure_of(read_small_file(folder.in("manifest.json"), 100));
  CHECK(contains(folder.named(refused).message, (dir / "folder") + "/manifest.json' is a link"));
  REQUIRE(write_small_file(folder.in("manifest.json"), "ours"));
  CHECK(read_small_file(dir / "secret", 100).value() == "not for them");
  CHECK(read_small_file(dir / "folder/manifest.json", 100).value() == "ours");
}

// Somebody who may write below the root puts a link where a folder was, and takes it away again, all the time.
TEST_CASE("checkpoints are written, read and dropped below their root while folders become links and come back") {
  const TempDir dir;
  const Round round(7);
  const Layout layout = Layout::with_owners({{"w", {3000}}}, 1024, dealt(3, 1)).value();
  const std::string root = dir / "root", outside = dir / "outside";
  fs::create_directories(root + "/team");
  fs::create_directories(outside + "/mlp-round-7.partial");
  std::ofstream(outside + "/mlp-round-7.partial/shard-0.bin") << "theirs";
  std::ofstream(outside + "/mlp-round-7.partial/keep") << "theirs";
  const std::string target = root + "/team/mlp-round-7", partial = target + kPartialSuffix;
  fs::create_directory_symlink(outside, root + "/link");
  Shard shard(dir / "store", 0, PathRoots({root}, true));
  keep(shard, layout, 0, round);
  std::atomic<bool> ends{false};
  std::thread swapper([&] {
    while (!ends) {
      // Both names stay: one after the other is a link to the outside.
      ::renameat2(AT_FDCWD, (root + "/team").c_str(), AT_FDCWD, (root + "/link").c_str(), RENAME_EXCHANGE);
    }
  });
  int written = 0, sealed = 0, refused = 0;
  for (int i = 0; i < 200; ++i) {
    shard.service.write({1, kJob, round, partial});
    const CheckpointDone done = shard.next();
    ++(done.ok ? written : refused);
    if (done.ok) {
      Manifest manifest = manifest_of_layout(layout, round);
      manifest.shards.push_back({shard_file_name(ShardIndex(0)), ShardIndex(0), 3u, done.bytes, done.checksum});
      shard.service.seal({2, kJob, partial, target, to_json(manifest)});
      sealed += shard.next().ok ? 1 : 0;
    }
    shard.service.drop({JobId(0), partial});
    shard.service.load({3, JobId(99), "moved", "0", target, layout.owners()});
    shard.next();
  }
  ends = true;
  swapper.join();
  CHECK(written > 0);
  CHECK(refused > 0);
  CHECK(sealed > 0);
  CHECK(std::distance(fs::directory_iterator(outside), fs::directory_iterator()) == 1);
  CHECK(read_small_file(outside + "/mlp-round-7.partial/shard-0.bin", 100).value() == "theirs");
  CHECK(std::distance(fs::directory_iterator(outside + "/mlp-round-7.partial"), fs::directory_iterator()) == 2);
}

}  // namespace
}  // namespace tributary::testing::checkpoint_service_test
