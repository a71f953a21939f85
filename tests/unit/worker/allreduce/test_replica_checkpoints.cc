#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "server/checkpoint/checkpoint_directory.h"
#include "tests/unit/expect.h"
#include "tests/unit/required.h"
#include "tests/unit/temp_dir.h"
#include "worker/allreduce/replica_checkpoints.h"

namespace tributary::replica_checkpoints_test {

using namespace testing;

namespace {

namespace fs = std::filesystem;

JobConfig job_named(const std::string& name) {
  JobConfig job{.name = name, .mode = Mode::kAllreduce, .optimizer = default_optimizer("adamw")};
  return job;
}

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
  ReplicaCheckpoints of(const std::string& store) const { return {store, job, *layout}; }
  Status write(const std::string& store, std::uint64_t round) {
    float* const slots[] = {first.data(), second.data()};
    return of(store).write(Round(round), {values.data(), slots, steps});
  }
  Status read(const std::string& store, std::uint64_t round) {
    float* const slots[] = {first.data(), second.data()};
    return of(store).read(Round(round), {values.data(), slots, steps});
  }
  Result<Round> newest(const std::string& store) const { return of(store).newest(); }
  void clear() {
    for (auto* array : {&values, &first, &second}) std::ranges::fill(*array, 0.0f);
    std::ranges::fill(steps, 0);
  }
  bool operator==(const Sample& other) const {
    return values == other.values && first == other.first && second == other.second && steps == other.steps;
  }
  JobConfig job = job_named("a-job");
  std::unique_ptr<Layout> layout;
  std::vector<float> values, first, second;
  std::vector<std::uint64_t> steps;
};

// A job, and a folder for its checkpoints.
struct Stored {
  std::string path_of(std::uint64_t round) const { return sample.of(directory.path()).path_of(Round(round)); }
  TempDir directory;
  Sample sample;
};

void flip_byte(const fs::path& file, std::uint64_t at) {
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekg(static_cast<std::streamoff>(at));
  char byte = 0;
  stream.get(byte);
  stream.seekp(static_cast<std::streamoff>(at));
  stream.put(static_cast<char>(byte ^ 0x10));
}

bool mentions(const Error& error, const std::string& text) {
  return contains(error.message, text);
}

}  // namespace

TEST_CASE_FIXTURE(Stored, "what is written is read back, and is a checkpoint like those of servers") {
  REQUIRE(sample.write(directory.path(), 5));
  CHECK(sample.newest(directory.path()) == Round(5));
  sample.clear();
  REQUIRE(sample.read(directory.path(), 5));
  CHECK(sample == Sample());
  const auto listed = only_one(required(list_checkpoints(directory / "allreduce")));
  CHECK(listed.name == "a-job-round-5");
  CHECK(verify_checkpoint(listed.path).findings.empty());
}

TEST_CASE_FIXTURE(Stored, "a store without checkpoints of the job has none, and that is no error") {
  CHECK(sample.newest(directory / "missing") == Round(0));
  CHECK(sample.newest("") == Round(0));
  REQUIRE(sample.write(directory.path(), 5));
  Sample another;
  for (const char* name : {"another job", "a", "a-job-round-5", "a-job-round"}) {
    another.job.name = name;
    CHECK(another.newest(directory.path()) == Round(0));
  }
  const auto missing = failure_of(sample.read(directory.path(), 6));
  CHECK(missing.code == ErrorCode::kNotFound);
  CHECK(mentions(missing, "a-job-round-6"));
}

TEST_CASE_FIXTURE(Stored, "the newest two checkpoints are kept") {
  for (const std::uint64_t round : {4, 9, 10, 100}) REQUIRE(sample.write(directory.path(), round));
  CHECK(sample.read(directory.path(), 100));
  CHECK(sample.read(directory.path(), 10));
  CHECK_FALSE(sample.read(directory.path(), 9));
  CHECK(sample.newest(directory.path()) == Round(100));
}

TEST_CASE("names that fit no file name are kept apart all the same") {
  TempDir directory;
  Sample one, other;
  one.job.name = ".a";
  other.job.name = "_a";
  REQUIRE(one.write(directory.path(), 5));
  REQUIRE(other.write(directory.path(), 7));
  CHECK(one.newest(directory.path()) == Round(5));
  CHECK(other.newest(directory.path()) == Round(7));
  CHECK(std::distance(fs::directory_iterator(directory.path()), {}) == 1);
  CHECK(std::distance(fs::directory_iterator(directory / "allreduce"), {}) == 2);
}

TEST_CASE_FIXTURE(Stored, "every damaged byte is found, and the checkpoint is named") {
  REQUIRE(sample.write(directory.path(), 5));
  const fs::path path = path_of(5);
  for (const char* name : {"shard-0.bin", "manifest.json", "COMPLETE"}) {
    const fs::path file = path / name;
    const std::uint64_t size = fs::file_size(file);
    for (std::uint64_t at = 0; at < size; at += at < 150 ? 1 : 997) {
      flip_byte(file, at);
      const Status read = sample.read(directory.path(), 5);
      REQUIRE_MESSAGE(!read, name << ", byte " << at);
      CHECK(mentions(read.error(), path.string()));
      const auto newest = failure_of(sample.newest(directory.path()));
      CHECK(mentions(newest, path.string()));
      flip_byte(file, at);
    }
  }
  CHECK(sample.read(directory.path(), 5));
}

TEST_CASE_FIXTURE(Stored,
                  "a checkpoint that is cut short, or half of one, is refused, and the next one takes its place") {
  REQUIRE(sample.write(directory.path(), 5));
  const fs::path path = path_of(5), file = path / "shard-0.bin";
  const std::uint64_t size = fs::file_size(file);
  for (const std::uint64_t cut : {size + 4, size - 1, size / 2, std::uint64_t{70}, std::uint64_t{0}}) {
    fs::resize_file(file, cut);
    CHECK_FALSE(sample.read(directory.path(), 5));
    CHECK_FALSE(sample.newest(directory.path()));
    REQUIRE(sample.write(directory.path(), 5));
    REQUIRE(sample.read(directory.path(), 5));
  }
  fs::remove(path / "COMPLETE");
  CHECK_FALSE(sample.read(directory.path(), 5));
  REQUIRE(sample.write(directory.path(), 5));
  CHECK(sample.newest(directory.path()) == Round(5));
}

TEST_CASE_FIXTURE(Stored, "the same round of other values takes the place of those that were given up") {
  REQUIRE(sample.write(directory.path(), 5));
  sample.values[7] = 1234.0f;
  REQUIRE(sample.write(directory.path(), 5));
  sample.clear();
  REQUIRE(sample.read(directory.path(), 5));
  CHECK(sample.values[7] == 1234.0f);
}

TEST_CASE_FIXTURE(Stored, "an older whole checkpoint stands in for a damaged one") {
  REQUIRE(sample.write(directory.path(), 5));
  REQUIRE(sample.write(directory.path(), 8));
  flip_byte(fs::path(path_of(8)) / "shard-0.bin", 2000);
  CHECK(sample.newest(directory.path()) == Round(5));
}

TEST_CASE_FIXTURE(Stored, "what a job that went back writes is kept beside the damaged rounds after it") {
  for (const std::uint64_t round : {8, 9}) {
    REQUIRE(sample.write(directory.path(), round));
    flip_byte(fs::path(path_of(round)) / "shard-0.bin", 2000);
  }
  CHECK_FALSE(sample.newest(directory.path()));
  REQUIRE(sample.write(directory.path(), 6));  // another node had round 5
  CHECK(sample.newest(directory.path()) == Round(6));
  REQUIRE(sample.write(directory.path(), 7));
  CHECK(sample.newest(directory.path()) == Round(7));
  CHECK(sample.read(directory.path(), 6));
}

TEST_CASE_FIXTURE(Stored, "a checkpoint of another optimizer or one put in the wrong place is refused") {
  REQUIRE(sample.write(directory.path(), 5));
  const ReplicaCheckpoints checkpoints = sample.of(directory.path());
  float* const one[] = {sample.first.data()};
  const auto fewer = failure_of(checkpoints.read(Round(5), {sample.values.data(), one, sample.steps}));
  CHECK(mentions(fewer, "2 state arrays, the job's optimizer has 1"));
  fs::copy(checkpoints.path_of(Round(5)), checkpoints.path_of(Round(6)), fs::copy_options::recursive);
  const auto renamed = failure_of(sample.read(directory.path(), 6));
  CHECK(mentions(renamed, "it holds round 5"));
  CHECK(checkpoints.newest() == Round(5));
}

TEST_CASE_FIXTURE(Stored, "a store that cannot be written to is an error with the reason") {
  std::ofstream(directory / "allreduce") << "a file, not a directory";
  const auto written = failure_of(sample.write(directory.path(), 5));
  CHECK(written.code == ErrorCode::kIo);
  CHECK(mentions(written, "[store] path"));
}

TEST_CASE_FIXTURE(Stored, "a checkpoint of another training under the same name is refused with the first difference") {
  REQUIRE(sample.write(directory.path(), 8));
  sample.job.train.epochs = 99;  // may go on for longer
  CHECK(sample.newest(directory.path()) == Round(8));
  sample.job.optimizer.lr = 0.5;
  const auto refused = failure_of(sample.newest(directory.path()));
  CHECK(refused.code == ErrorCode::kConfigMismatch);
  CHECK(mentions(refused, "optimizer.lr"));
  CHECK(mentions(refused, "round 8"));
  REQUIRE(sample.read(directory.path(), 8));
}

TEST_CASE_FIXTURE(Stored, "a checkpoint of other tensors or chunks under the same name is refused, not passed over") {
  REQUIRE(sample.write(directory.path(), 5));
  const auto refused = failure_of(Sample(2048).newest(directory.path()));
  CHECK(refused.code == ErrorCode::kConfigMismatch);
  CHECK(mentions(refused, "chunk_bytes"));
  CHECK(mentions(refused, path_of(5)));
}

TEST_CASE_FIXTURE(Stored,
                  "what a crash left half written goes with the next checkpoint, and nothing of other jobs does") {
  Sample other;
  other.job.name = "a-job-2";
  for (const Sample* one : {&sample, &other})
    fs::create_directories(one->of(directory.path()).path_of(Round(3)) + ".partial");
  REQUIRE(sample.write(directory.path(), 5));
  CHECK_FALSE(fs::exists(path_of(3) + ".partial"));
  CHECK(fs::exists(other.of(directory.path()).path_of(Round(3)) + ".partial"));
}

}  // namespace tributary::replica_checkpoints_test
