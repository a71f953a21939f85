// Files and directories of checkpoints: what is written reads back, and what is damaged is found.
#include <doctest/doctest.h>
#include <sys/stat.h>

#include <filesystem>

#include "tests/unit/expect.h"
#include "tests/unit/required.h"
#include "tests/unit/server/checkpoint/checkpoint_samples.h"

namespace tributary::testing::checkpoint_files_test {
namespace {

namespace fs = std::filesystem;

std::string all(const Verification& result) {
  std::string text;
  for (const std::string& finding : result.findings) text += finding + "\n";
  return text;
}

TEST_CASE("a shard's file reads back chunk by chunk") {
  const TempDir dir;
  Manifest manifest = sample_manifest();
  write_shards(dir / "x", manifest);
  const Layout layout = layout_of(manifest);
  const auto file = required(CheckpointFile::open(dir / "x" + "/shard-1.bin"));
  CHECK(file->info() == CheckpointFileInfo{ShardIndex(1), Round(7), layout.hash()});
  REQUIRE(file->find_chunks(layout));
  REQUIRE(file->chunks().size() == 2);
  for (const ChunkIndex chunk : {ChunkIndex(3), ChunkIndex(1)}) {
    std::vector<std::vector<float>> arrays;
    std::string sealed;
    const StoredChunk expected = sample_stored_chunk(layout, chunk, Round(7), arrays, sealed);
    const auto read = required(file->read(chunk));
    REQUIRE(read.entries.size() == expected.entries.size());
    for (std::size_t i = 0; i < expected.entries.size(); ++i) {
      CHECK(read.entries[i].key == expected.entries[i].key);
      CHECK(read.entries[i].value == expected.entries[i].value);
    }
    CHECK(read.entries.front().value == sealed);
  }
  CHECK_FALSE(file->read(ChunkIndex(0)).has_value());
}

TEST_CASE("the same state gives the same bytes") {
  const TempDir dir;
  Manifest a = sample_manifest(), b = sample_manifest();
  write_shards(dir / "a", a);
  write_shards(dir / "b", b);
  CHECK(a.shards == b.shards);
  Manifest other = sample_manifest(8);
  write_shards(dir / "c", other);
  CHECK(a.shards[0].checksum != other.shards[0].checksum);
}

TEST_CASE("a checkpoint that was sealed opens, and verifies") {
  const TempDir dir;
  const std::string path = write_sample(dir / "all");
  CHECK_FALSE(fs::exists(path + kPartialSuffix));
  const auto manifest = required(open_checkpoint(path));
  CHECK(manifest.round == Round(7));
  const Verification result = verify_checkpoint(path);
  CHECK(all(result) == "");
  CHECK(result.chunks == 4);
  CHECK(manifest_checksum(path).value().size() == 32);
}

TEST_CASE("sealing follows no link") {
  const TempDir dir;
  Manifest manifest = sample_manifest();
  const std::string target = dir / "mlp-round-7", partial = target + kPartialSuffix, elsewhere = dir / "elsewhere";
  write_shards(elsewhere, manifest);
  fs::create_directories(elsewhere + "/mine");
  fs::create_directory_symlink(elsewhere, partial);
  const auto sealed = failure_of(seal_checkpoint(partial, target, to_json(manifest)));
  CHECK(contains(sealed.message, "'" + partial + "' is a link"));
  CHECK(fs::exists(elsewhere + "/mine"));
  CHECK_FALSE(fs::exists(target));
}

TEST_CASE("every flipped bit is found") {
  const TempDir dir;
  const std::string path = write_sample(dir / "all");
  for (const char* name : {"shard-0.bin", "shard-1.bin", "manifest.json", "COMPLETE"}) {
    const std::string file = path + "/" + name;
    const std::uint64_t size = fs::file_size(file), step = size < 3000 ? 1 : 61;
    for (std::uint64_t at = 0; at < size; at += step) {
      flip_bit(file, at);
      const Verification result = verify_checkpoint(path);
      CAPTURE(file);
      CAPTURE(at);
      CHECK(result.findings.size() > 0);
      flip_bit(file, at);
    }
  }
  CHECK(all(verify_checkpoint(path)) == "");
}

TEST_CASE("large parts of what ranks keep are read with the rest, and each flaw is told with its cure") {
  const TempDir dir;
  const std::string target = dir / "mlp-round-7", partial = target + kPartialSuffix;
  Manifest manifest = sample_manifest();
  const SampleState state = sample_state('a', 2 * kPartBytes + 77);
  for (std::uint32_t node = 0; node < 2; ++node) manifest.rank_states[{node, 0}] = state.state;  // kept alike
  write_shards(partial, manifest);
  state.write_to(partial);
  sample_state('b', 100).write_to(partial);  // of an earlier attempt
  REQUIRE(seal_checkpoint(partial, target, to_json(manifest)));
  const std::string file = target + "/" + part_file_name(state.large);
  REQUIRE(fs::file_size(file) == state.large.bytes);
  CHECK_FALSE(fs::exists(target + "/" + part_file_name(sample_state('b', 100).large)));
  const Verification whole = verify_checkpoint(target);
  CHECK(all(whole) == "");
  CHECK(whole.large_parts == 1);
  std::string read;
  REQUIRE(read_part_file(target, state.large, [&](std::uint64_t offset, std::span<const std::byte> piece) -> Status {
    CHECK(offset == read.size());
    read.append(reinterpret_cast<const char*>(piece.data()), piece.size());
    return {};
  }));
  CHECK((read == state.bytes));
  const std::string cure = "; copy the checkpoint again from where it is whole, or take another one";
  std::string flaw;
  SUBCASE("a flipped bit") {
    flip_bit(file, kPartBytes + 5);
    flaw = ", not that of its name: it is damaged" + cure;
  }
  SUBCASE("cut short") {
    fs::resize_file(file, 500);
    flaw = " has 500 bytes, the manifest says 2097229" + cure;
  }
  SUBCASE("missing") {
    fs::remove(file);
    flaw = " is missing" + cure;
  }
  const Verification found = verify_checkpoint(target);
  CHECK(found.findings.size() == 1);
  CHECK(contains(all(found), "'" + file + "', a large part of what ranks keep,"));
  CHECK(contains(all(found), flaw));
  CHECK(found.chunks == 4);
}

TEST_CASE("bytes that are not the large part's become no file") {
  const TempDir dir;
  const SampleState state = sample_state('a', 100), other = sample_state('b', 100);
  const auto refused =
      failure_of(write_part_file(dir.path(), state.large, [&](std::uint64_t at) { return other.piece(at); }));
  CHECK(contains(refused.message, "the store's copy is damaged; save a later round"));
  CHECK(fs::is_empty(dir.path()));
}

TEST_CASE("what a rank keeps that has come since an earlier save of the round is not left out in silence") {
  const TempDir dir;
  const std::string target = write_sample(dir / "all"), partial = target + kPartialSuffix;
  Manifest manifest = sample_manifest();
  manifest.rank_states[{3, 1}] = sample_state('a', 100).state;
  write_shards(partial, manifest);
  const auto refused = failure_of(seal_checkpoint(partial, target, to_json(manifest)));
  CHECK(contains(refused.message, "without what node 3 rank 1 keeps, which has come since; move it away"));
}

TEST_CASE("findings name the file, the chunk, the tensors and the array") {
  const TempDir dir;
  const std::string path = write_sample(dir / "all");
  const std::string file = path + "/shard-0.bin";
  const auto opened = required(CheckpointFile::open(file));
  REQUIRE(opened->find_chunks(layout_of(sample_manifest())));
  const auto place = opened->chunks().at(ChunkIndex(0));
  flip_bit(file, place.end - 10);
  CHECK(contains(all(verify_checkpoint(path)),
                 "shard-0.bin': chunk 0: its state array 1 is damaged; chunk 0 (of tensors 'a', 'b')"));
  flip_bit(file, place.end - 10);
  flip_bit(file, place.end - 3 * 4096 - 20);
  CHECK(contains(all(verify_checkpoint(path)), "chunk 0: its parameters are damaged"));
}

TEST_CASE("missing, cut, foreign and incomplete parts are found") {
  const TempDir dir;
  const std::string path = write_sample(dir / "all");
  std::string found;
  SUBCASE("a missing file") {
    fs::remove(path + "/shard-1.bin");
    CHECK(all(verify_checkpoint(path)) == "shard-1.bin is missing\n");
  }
  SUBCASE("a file cut short") {
    fs::resize_file(path + "/shard-1.bin", 5000);
    CHECK(contains(all(verify_checkpoint(path)), "shard-1.bin has 5000 bytes, the manifest says "));
    const auto file = required(CheckpointFile::open(path + "/shard-1.bin"));
    CHECK(contains(file->find_chunks(layout_of(sample_manifest())).error().message, "it is cut short"));
  }
  SUBCASE("no COMPLETE") {
    fs::remove(path + "/COMPLETE");
    CHECK(contains(all(verify_checkpoint(path)), "COMPLETE is missing"));
    CHECK(contains(open_checkpoint(path).error().message, "COMPLETE is missing"));
  }
  SUBCASE("no manifest") {
    fs::remove(path + "/manifest.json");
    CHECK(contains(all(verify_checkpoint(path)), "manifest.json"));
    CHECK_FALSE(open_checkpoint(path).has_value());
  }
  SUBCASE("another round's file") {
    const std::string other = write_sample(dir / "all", sample_manifest(8));
    fs::copy_file(other + "/shard-0.bin", path + "/shard-0.bin", fs::copy_options::overwrite_existing);
    CHECK(contains(all(verify_checkpoint(path)), "shard-0.bin holds shard 0 at round 8 of this model"));
  }
  SUBCASE("pipes, which nobody writes to") {
    for (const char* name : {"shard-1.bin", "manifest.json", "COMPLETE"}) {
      const std::string file = path + "/" + name;
      fs::rename(file, dir / "away");
      REQUIRE(::mkfifo(file.c_str(), 0600) == 0);
      CHECK(contains(all(verify_checkpoint(path)), std::string(name) + "' is no regular file"));
      fs::rename(dir / "away", file);
    }
  }
  SUBCASE("what is no checkpoint at all") {
    CHECK(contains(all(verify_checkpoint(dir / "none")), "no such directory"));
    CHECK(open_checkpoint(dir / "none").error().code == ErrorCode::kNotFound);
    CHECK(list_checkpoints(dir / "none").error().code == ErrorCode::kNotFound);
  }
}

TEST_CASE("checkpoints are listed by round, whole or not") {
  const TempDir dir;
  const std::string folder = dir / "all";
  write_sample(folder, sample_manifest(12));
  write_sample(folder, sample_manifest(9));
  Manifest half = sample_manifest(20);
  write_shards(folder + "/mlp-round-20" + kPartialSuffix, half);
  fs::create_directories(folder + "/something");
  const auto found = required(list_checkpoints(folder));
  REQUIRE(found.size() == 3);
  CHECK(found.at(0).name == "mlp-round-9");
  CHECK(found.at(1).name == "mlp-round-12");
  CHECK(found.at(1).bytes > 30'000);
  CHECK(found.at(2).name == "mlp-round-20.partial");
  CHECK_FALSE(found.at(2).manifest.has_value());
  CHECK(contains(found.at(2).flaw, "being written"));
  CHECK(is_checkpoint(folder + "/mlp-round-9"));
  CHECK_FALSE(is_checkpoint(folder));
}

TEST_CASE("of checkpoints that rotate the newest stay, and all others stay") {
  const TempDir dir;
  const auto write = [&](std::uint64_t round, const std::string& name, bool rotates) {
    Manifest manifest = sample_manifest(round);
    const std::string target = dir / checkpoint_name(name, manifest.round);
    write_shards(target + kPartialSuffix, manifest);
    REQUIRE(seal_checkpoint(target + kPartialSuffix, target, to_json(manifest), {}, rotates));
    static int second = 0;
    fs::last_write_time(target + "/COMPLETE", fs::file_time_type::clock::now() + std::chrono::seconds(++second));
    return target;
  };
  const Folder folder = *Folder::open(dir.path());
  const std::string older = write(90, "mlp", true), ordered = write(91, "mlp", false),
                    other = write(92, "mlp-round-3", true), middle = write(93, "mlp", true);
  const std::string newest = write(5, "mlp", true);  // the job went back
  CHECK(rotate_checkpoints(folder, "mlp-round-5", 3).empty());
  CHECK(rotate_checkpoints(folder, "mlp-round-5", 2) == std::vector<std::string>{"mlp-round-90"});
  CHECK_FALSE(fs::exists(older));
  for (const std::string& path : {ordered, other, middle, newest}) CHECK(all(verify_checkpoint(path)) == "");
  // A person saves the round, too: then it stays.
  Manifest again = sample_manifest(93);
  write_shards(middle + kPartialSuffix, again);
  CHECK(seal_checkpoint(middle + kPartialSuffix, middle, to_json(again)).value());
  CHECK(rotate_checkpoints(folder, "mlp-round-5", 1).empty());
  CHECK(all(verify_checkpoint(middle)) == "");
  // The newest is what was sealed now, whatever the clocks say.
  CHECK(rotate_checkpoints(folder, "mlp-round-100", 1) == std::vector<std::string>{"mlp-round-5"});
  // A removal was cut off; and a folder with something of somebody else stays with that.
  const std::string half = write(94, "mlp", true), shared = write(95, "mlp", true), last = write(96, "mlp", true);
  fs::remove(half + "/COMPLETE");
  std::ofstream(shared + "/notes.txt") << "mine";
  Manifest unfinished = sample_manifest(97);
  write_shards(dir / ("mlp-round-97" + std::string(kPartialSuffix)), unfinished);
  std::vector<std::string> removed = rotate_checkpoints(folder, "mlp-round-96", 1);
  std::ranges::sort(removed);
  CHECK(removed == std::vector<std::string>{"mlp-round-94", "mlp-round-97.partial"});
  CHECK_FALSE(fs::exists(half));
  CHECK(fs::exists(shared + "/notes.txt"));
  CHECK_FALSE(fs::exists(shared + "/shard-0.bin"));
  CHECK(all(verify_checkpoint(last)) == "");
  // Another training of that name comes to the round of one that rotates, which gives way; an ordered one does not.
  for (const auto& [round, rotates] : {std::pair(96, true), {91, false}}) {
    Manifest another = sample_manifest(static_cast<std::uint64_t>(round));
    const std::string target = dir / ("mlp-round-" + std::to_string(round));
    write_shards(target + kPartialSuffix, another, 1);
    CHECK(seal_checkpoint(target + kPartialSuffix, target, to_json(another), {}, true).has_value() == rotates);
    CHECK(all(verify_checkpoint(target)) == "");
  }
}

TEST_CASE("sealing needs every file, leaves strangers out, and does not replace another state") {
  const TempDir dir;
  const std::string target = dir / "mlp-round-7", partial = target + kPartialSuffix;
  Manifest manifest = sample_manifest();
  write_shards(partial, manifest);
  std::ofstream(partial + "/shard-5.bin") << "of an earlier attempt";
  SUBCASE("a file is not where server 0 looks") {
    fs::remove(partial + "/shard-1.bin");
    const auto sealed = failure_of(seal_checkpoint(partial, target, to_json(manifest)));
    CHECK(contains(sealed.message, "save into a directory that all servers share"));
    CHECK_FALSE(fs::exists(partial + "/COMPLETE"));
  }
  SUBCASE("the same again, and another") {
    CHECK(seal_checkpoint(partial, target, to_json(manifest)).value() == false);
    CHECK_FALSE(fs::exists(target + "/shard-5.bin"));
    Manifest again = sample_manifest();
    again.created = "later";
    write_shards(partial, again);
    CHECK(seal_checkpoint(partial, target, to_json(again)).value() == true);
    CHECK_FALSE(fs::exists(partial));
    Manifest other = sample_manifest();
    other.tensors[0].name = "z";
    write_shards(partial, other);
    const auto refused = failure_of(seal_checkpoint(partial, target, to_json(other)));
    CHECK(contains(refused.message, "is there already and holds another state"));
    CHECK(all(verify_checkpoint(target)) == "");
    fs::remove(target + "/COMPLETE");
    CHECK(contains(seal_checkpoint(partial, target, to_json(other)).error().message, "is no whole checkpoint"));
  }
}

}  // namespace
}  // namespace tributary::testing::checkpoint_files_test
