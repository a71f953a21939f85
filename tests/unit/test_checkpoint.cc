#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "common/job_json.h"
#include "tests/unit/temp_dir.h"
#include "worker/checkpoint.h"

using namespace tributary;
using namespace tributary::testing;

namespace {

namespace fs = std::filesystem;

struct Sample {
  explicit Sample(std::uint64_t chunk_elements = 1024) {
    const ShardSlots one{};
    layout = std::make_unique<Layout>(*Layout::make({{"a", {2000}}, {"b", {300}}}, chunk_elements, {&one, 1}));
    for (auto* array : {&values, &first, &second}) array->resize(layout->flat_elements());
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<float>(i);
      first[i] = -static_cast<float>(i);
      second[i] = 0.5f * static_cast<float>(i);
    }
    steps.assign(layout->chunks(), 4);
    steps[0] = 3;
  }
  Status write(const std::string& store, std::uint64_t round, std::string_view name = "a job") {
    const float* const slots[] = {first.data(), second.data()};
    return write_checkpoint(store, {name, layout.get(), Round(round), values.data(), slots, steps});
  }
  Status read(const std::string& store, std::uint64_t round, std::string_view name = "a job") {
    float* const slots[] = {first.data(), second.data()};
    return read_checkpoint(store, name, *layout, Round(round), {values.data(), slots, steps});
  }
  std::unique_ptr<Layout> layout;
  std::vector<float> values, first, second;
  std::vector<std::uint64_t> steps;
};

fs::path only_file(const std::string& store) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(store)) {
    if (entry.is_regular_file()) files.push_back(entry.path());
  }
  REQUIRE(files.size() == 1);
  return files.front();
}

void flip_byte(const fs::path& file, std::uint64_t at) {
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekg(static_cast<std::streamoff>(at));
  char byte = 0;
  stream.get(byte);
  stream.seekp(static_cast<std::streamoff>(at));
  stream.put(static_cast<char>(byte ^ 0x10));
}

bool mentions(const Error& error, const std::string& text) {
  return error.message.find(text) != std::string::npos;
}

}  // namespace

TEST_CASE("what is written is read back") {
  TempDir directory;
  Sample sample;
  REQUIRE(sample.write(directory.path(), 5));
  CHECK(newest_checkpoint(directory.path(), "a job", sample.layout->hash()) == Round(5));
  const Sample expected;
  for (auto* array : {&sample.values, &sample.first, &sample.second}) std::ranges::fill(*array, 0.0f);
  std::ranges::fill(sample.steps, 0);
  REQUIRE(sample.read(directory.path(), 5));
  CHECK(sample.values == expected.values);
  CHECK(sample.first == expected.first);
  CHECK(sample.second == expected.second);
  CHECK(sample.steps == expected.steps);
}

TEST_CASE("a store without checkpoints of the job has none, and that is no error") {
  TempDir directory;
  Sample sample;
  CHECK(newest_checkpoint(directory / "missing", "a job", sample.layout->hash()) == Round(0));
  CHECK(newest_checkpoint("", "a job", sample.layout->hash()) == Round(0));
  REQUIRE(sample.write(directory.path(), 5));
  CHECK(newest_checkpoint(directory.path(), "another job", sample.layout->hash()) == Round(0));
  const Status missing = sample.read(directory.path(), 6);
  REQUIRE_FALSE(missing);
  CHECK(missing.error().code == ErrorCode::kNotFound);
  CHECK(mentions(missing.error(), "round-6.ckpt"));
}

TEST_CASE("the newest two checkpoints are kept") {
  TempDir directory;
  Sample sample;
  for (const std::uint64_t round : {4, 9, 10, 100}) REQUIRE(sample.write(directory.path(), round));
  CHECK(sample.read(directory.path(), 100));
  CHECK(sample.read(directory.path(), 10));
  CHECK_FALSE(sample.read(directory.path(), 9));
  CHECK(newest_checkpoint(directory.path(), "a job", sample.layout->hash()) == Round(100));
}

TEST_CASE("names that fit no file name are kept apart all the same") {
  TempDir directory;
  Sample sample;
  REQUIRE(sample.write(directory.path(), 5, "../x/y"));
  REQUIRE(sample.write(directory.path(), 7, "../x y"));
  CHECK(newest_checkpoint(directory.path(), "../x/y", sample.layout->hash()) == Round(5));
  CHECK(newest_checkpoint(directory.path(), "../x y", sample.layout->hash()) == Round(7));
  CHECK(fs::exists(directory / "allreduce"));
  CHECK(std::distance(fs::directory_iterator(directory.path()), {}) == 1);
}

TEST_CASE("every damaged byte is found, and the file is named") {
  TempDir directory;
  Sample sample;
  REQUIRE(sample.write(directory.path(), 5));
  const fs::path file = only_file(directory.path());
  const std::uint64_t size = fs::file_size(file);
  std::vector<std::uint64_t> places;
  for (std::uint64_t at = 0; at < 64 + 8 + 32; ++at) places.push_back(at);  // header, name, first record
  for (std::uint64_t at = 64 + 8 + 32; at < size; at += 997) places.push_back(at);
  places.push_back(size - 1);
  for (const std::uint64_t at : places) {
    if (at >= 64 + 5 && at < 64 + 8) continue;  // padding after the name
    flip_byte(file, at);
    const Status read = sample.read(directory.path(), 5);
    REQUIRE_MESSAGE(!read, "byte " << at);
    CHECK(mentions(read.error(), file.string()));
    const auto newest = newest_checkpoint(directory.path(), "a job", sample.layout->hash());
    REQUIRE_FALSE(newest);
    CHECK(mentions(newest.error(), file.string()));
    flip_byte(file, at);
  }
  CHECK(sample.read(directory.path(), 5));
}

TEST_CASE("a file that is cut short or too long is refused") {
  TempDir directory;
  Sample sample;
  REQUIRE(sample.write(directory.path(), 5));
  const fs::path file = only_file(directory.path());
  const std::uint64_t size = fs::file_size(file);
  for (const std::uint64_t cut :
       {size - 1, size / 2, std::uint64_t{100}, std::uint64_t{70}, std::uint64_t{10}, std::uint64_t{0}}) {
    fs::resize_file(file, cut);
    const Status read = sample.read(directory.path(), 5);
    REQUIRE_FALSE(read);
    CHECK(read.error().code == ErrorCode::kStoreFormat);
    CHECK(mentions(read.error(), "cut short"));
    REQUIRE(sample.write(directory.path(), 5));
  }
  fs::resize_file(file, size + 4);
  const Status read = sample.read(directory.path(), 5);
  REQUIRE_FALSE(read);
  CHECK(mentions(read.error(), "more bytes"));
}

TEST_CASE("an older whole checkpoint stands in for a damaged one") {
  TempDir directory;
  Sample sample;
  REQUIRE(sample.write(directory.path(), 5));
  const fs::path older = only_file(directory.path());
  REQUIRE(sample.write(directory.path(), 8));
  flip_byte(older.parent_path() / "round-8.ckpt", 2000);
  CHECK(newest_checkpoint(directory.path(), "a job", sample.layout->hash()) == Round(5));
}

TEST_CASE("a checkpoint of another optimizer or of a file put in the wrong place is refused") {
  TempDir directory;
  Sample sample;
  REQUIRE(sample.write(directory.path(), 5));
  const fs::path file = only_file(directory.path());
  float* const one[] = {sample.first.data()};
  const Status fewer =
      read_checkpoint(directory.path(), "a job", *sample.layout, Round(5), {sample.values.data(), one, sample.steps});
  REQUIRE_FALSE(fewer);
  CHECK(mentions(fewer.error(), "2 state arrays, the job's optimizer has 1"));
  fs::copy_file(file, file.parent_path() / "round-6.ckpt");
  const Status renamed = sample.read(directory.path(), 6);
  REQUIRE_FALSE(renamed);
  CHECK(mentions(renamed.error(), "it holds round 5"));
}

TEST_CASE("a store that cannot be written to is an error with the reason") {
  TempDir directory;
  Sample sample;
  std::ofstream(directory / "allreduce") << "a file, not a directory";
  const Status written = sample.write(directory.path(), 5);
  REQUIRE_FALSE(written);
  CHECK(written.error().code == ErrorCode::kIo);
}

TEST_CASE("a checkpoint of another training under the same name is refused with the first difference") {
  TempDir directory;
  Sample sample;
  const float* const slots[] = {sample.first.data(), sample.second.data()};
  JobConfig job;
  job.name = "a-job";
  const std::string before = to_canonical_json(job);
  const std::uint64_t layout = sample.layout->hash();
  REQUIRE(write_checkpoint(
      directory.path(), {"a job", sample.layout.get(), Round(8), sample.values.data(), slots, sample.steps, before}));
  CHECK(newest_checkpoint(directory.path(), "a job", layout, before) == Round(8));
  job.train.epochs = 99;  // may go on for longer
  CHECK(newest_checkpoint(directory.path(), "a job", layout, to_canonical_json(job)) == Round(8));
  job.optimizer.lr = 0.5;
  const auto refused = newest_checkpoint(directory.path(), "a job", layout, to_canonical_json(job));
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == ErrorCode::kConfigMismatch);
  CHECK(mentions(refused.error(), "optimizer.lr"));
  CHECK(mentions(refused.error(), "round 8"));
  REQUIRE(sample.read(directory.path(), 8));
}

TEST_CASE("a checkpoint of other tensors or chunks under the same name is refused, not passed over") {
  TempDir directory;
  Sample sample;
  REQUIRE(sample.write(directory.path(), 5));
  const auto refused = newest_checkpoint(directory.path(), "a job", Sample(2048).layout->hash());
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == ErrorCode::kConfigMismatch);
  CHECK(mentions(refused.error(), "chunk_bytes"));
  CHECK(mentions(refused.error(), "round 5"));
  CHECK(mentions(refused.error(), only_file(directory.path()).parent_path().string()));
}

TEST_CASE("a folder whose name has another hash is read, unless it is another job's") {
  TempDir directory;
  Sample sample;
  REQUIRE(sample.write(directory.path(), 5));
  const fs::path own = only_file(directory.path()).parent_path();
  const std::string name = own.filename().string();
  const fs::path older = own.parent_path() / (name.substr(0, name.size() - 16) + "0123456789abcdef");
  fs::rename(own, older);
  CHECK(newest_checkpoint(directory.path(), "a job", sample.layout->hash()) == Round(5));
  REQUIRE(sample.read(directory.path(), 5));
  CHECK(newest_checkpoint(directory.path(), "a_job", sample.layout->hash()) == Round(0));
  REQUIRE(sample.write(directory.path(), 6));
  CHECK(fs::exists(own / "round-6.ckpt"));
  CHECK(newest_checkpoint(directory.path(), "a job", sample.layout->hash()) == Round(6));
}
