// Which files of a folder are a run's, and what happens to all others.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include "tests/unit/expect.h"
#include "tests/unit/required.h"
#include "tests/unit/temp_dir.h"
#include "tools/cluster/local_cluster.h"
#include "tools/cluster/run_folder.h"

namespace tributary::testing::run_folder_test {
namespace {

namespace fs = std::filesystem;

void put(const std::string& path, const std::string& text = "mine") {
  fs::create_directories(fs::path(path).parent_path());
  std::ofstream(path) << text;
}

std::set<std::string> files_in(const std::string& folder) {
  std::set<std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (!entry.is_directory()) files.insert(fs::relative(entry.path(), folder).string());
  }
  return files;
}

ClusterOptions options_in(const std::string& folder) {
  ClusterOptions options{.base_dir = folder, .fresh = true};
  options.bin_dir = folder;  // there is no daemon here: a start fails, whatever happens to the files before
  return options;
}

TEST_CASE("a fresh cluster in a folder of somebody else is refused, and every file of it stays as it was") {
  const TempDir dir;
  const std::string folder = dir / "project";
  SUBCASE("logs") {
    put(folder + "/logs/important.log");
  }
  SUBCASE("stores") {
    put(folder + "/store-1/data");
  }
  SUBCASE("configurations") {
    put(folder + "/server-0.toml");
    put(folder + "/worker-0.toml");
  }
  put(folder + "/paper.tex");
  const auto before = files_in(folder);
  const auto started = failure_of(LocalCluster::start(options_in(folder)));
  CHECK(started.code == ErrorCode::kInvalidArgument);
  CHECK(contains(started.message, "is no run of tributary"));
  CHECK(contains(started.message, "--base-dir"));
  CHECK(files_in(folder) == before);
}

TEST_CASE("of a run's folder only what a run wrote is removed, by exact names") {
  const TempDir dir;
  const std::string folder = dir / "run";
  fs::create_directories(folder);
  REQUIRE(claim_run_folder(folder));
  const std::set<std::string> ours = {"server-0.toml",     "worker-12.toml", "store-0/db/x",        "store-worker-3/y",
                                      "logs/server-0.log", "cluster.json",   "logs/trainer-11.log", "summary.json"};
  std::set<std::string> theirs = {"server-room.toml", "worker-pay.toml", "store-backup/x", "logs/notes.log",
                                  "job.toml"};
  for (const auto& files : {ours, theirs}) {
    for (const std::string& file : files) put(folder + "/" + file);
  }
  REQUIRE(claim_run_folder(folder));  // as every start does
  REQUIRE(remove_run(folder));
  theirs.insert(kRunMarker);
  CHECK(files_in(folder) == theirs);
}

TEST_CASE("a scratch folder is renewed only if it was made as one") {
  const TempDir dir;
  const std::string folder = dir / "gates";
  put(folder + "/mine");
  CHECK(renew_scratch_folder(folder).error().code == ErrorCode::kInvalidArgument);
  CHECK(fs::exists(folder + "/mine"));
  REQUIRE(renew_scratch_folder(dir / "other"));
  put(dir / "other/gate");
  REQUIRE(renew_scratch_folder(dir / "other"));
  CHECK_FALSE(fs::exists(dir / "other/gate"));
}

}  // namespace
}  // namespace tributary::testing::run_folder_test
