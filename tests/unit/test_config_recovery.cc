// The keys of [recovery].
#include <doctest/doctest.h>

#include <string>

#include "common/config_toml.h"
#include "common/redo_plan.h"

namespace tributary {
namespace {

Result<JobConfig> job_of(const std::string& text) {
  return parse_job_config(text, "job.toml", {});
}

std::string refused(const std::string& text) {
  const auto job = job_of(text);
  return job ? std::string() : job.error().message;
}

constexpr const char* kDisk = "[recovery]\nredo_log = \"disk\"\n";

}  // namespace

TEST_CASE("a log on disk is read, and nodes then keep nothing") {
  const auto job = job_of(std::string(kDisk) + "log_mb = 512\n[job]\nname = 'j'\n");
  REQUIRE(job);
  CHECK(job->recovery.log_mb == 512);
  CHECK(recovers(*job));
  CHECK(logs_steps(*job));
  CHECK(redo_rounds(*job, 1000) == 0);
  const auto plain = job_of("[job]\nname = 'j'\n");
  REQUIRE(plain);
  CHECK_FALSE(logs_steps(*plain));
  CHECK(redo_rounds(*plain, 1000) > 0);
}

TEST_CASE("a log on disk is refused where it could not bring the job back") {
  const auto with = [](const std::string& text) { return refused(std::string(kDisk) + text); };
  CHECK(with("[job]\nname = 'j'\nmode = 'ssp'\n").find("is for rounds of all nodes: set \"none\" with mode \"ssp\"") !=
        std::string::npos);
  CHECK(with("[job]\nname = 'j'\n[sync]\nbackup_workers = 1\n").find("set \"none\" with backup workers") !=
        std::string::npos);
  CHECK(with("[job]\nname = 'j'\n[encoding]\npush = 'int8'\n").find("must be fp32, bf16 or fp16 with redo_log") !=
        std::string::npos);
  CHECK(with("[job]\nname = 'j'\n[encoding]\npull = 'int8-delta'\n").find("must be fp32, bf16 or fp16 with redo_log") !=
        std::string::npos);
  CHECK(with("[job]\nname = 'j'\n[optimizer]\nname = 'lamb'\nlr = 0.01\n").find("trust ratios that lamb needs") !=
        std::string::npos);
  CHECK(refused("[job]\nname = 'j'\n[recovery]\nlog_mb = 0\n").find("recovery.log_mb") != std::string::npos);
  CHECK(refused("[job]\nname = 'j'\n[recovery]\nredo_log = 'tape'\n").find("workers, disk") != std::string::npos);
}

}  // namespace tributary
