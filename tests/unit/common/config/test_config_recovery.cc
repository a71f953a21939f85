// The keys of [recovery], and keys that are no more.
#include <doctest/doctest.h>

#include <string>

#include "common/config/config_toml.h"
#include "common/config/job_json.h"
#include "common/wire/redo_plan.h"

namespace tributary::config_recovery_test {
namespace {

Result<JobConfig> job_of(const std::string& text) {
  return parse_job_config("[job]\nname = 'j'\n" + text, "job.toml", {});
}

std::string refused(const std::string& text) {
  const auto job = job_of(text);
  return job ? std::string() : job.error().message;
}

std::string refused_json(const std::string& text) {
  const auto job = job_from_json(text);
  return job ? std::string() : job.error().message;
}

}  // namespace

TEST_CASE("a job's nodes keep what they push within redo_mb, or nothing") {
  const auto plain = job_of(""), some = job_of("[recovery]\nredo_mb = 1\n"), none = job_of("[recovery]\nredo_mb = 0\n");
  REQUIRE((plain && some && none));
  CHECK(redo_rounds(*plain, 1000) == kMaxRedoRounds);
  CHECK(redo_rounds(*some, 1u << 14) == 64);
  CHECK(redo_rounds(*some, 1u << 17) == 0);  // fewer than are worth it
  CHECK(redo_rounds(*none, 1000) == 0);
  CHECK(refused("[recovery]\nredo_mb = 1048577\n").find("must be at most 1048576 (1 TiB), or 0") != std::string::npos);
}

TEST_CASE("a job goes back for what ranks kept only where they make rounds together, on servers") {
  CHECK(refused("[membership]\non_state_lost = 'rewind'\n").empty());
  CHECK(refused("mode = 'local_sgd'\n[membership]\non_state_lost = 'rewind'\n").find("on_state_lost") ==
        std::string::npos);
  for (const char* mode : {"ssp", "async", "allreduce"}) {
    const std::string why = refused("mode = '" + std::string(mode) + "'\n[membership]\non_state_lost = 'rewind'\n");
    CHECK(why.find("membership.on_state_lost") != std::string::npos);
    CHECK(why.find(mode) != std::string::npos);
  }
  CHECK(refused("[membership]\non_state_lost = 'rewnd'\n").find("rewind") != std::string::npos);
}

TEST_CASE("a key that is no more is refused in a job file with what to set instead") {
  CHECK(
      refused("[sync]\nbackup_workers = 1\n") ==
      "job.toml:4: sync.backup_workers: there is no such key any more; set sync.deadline_ms: then late nodes send what "
      "they managed");
  CHECK(refused("[recovery]\nredo_log = 'disk'\n").find("set recovery.redo_mb") != std::string::npos);
  CHECK(refused("[recovery]\nwhen_full = 'wait'\n").find("nobody waits") != std::string::npos);
  CHECK(refused("mode = 'ssp'\n[ssp]\nlr_by_staleness = true\n").find("lower ssp.staleness") != std::string::npos);
}

TEST_CASE("a record of a job that had such a key is read where it meant nothing, and the job is the same") {
  const auto read = job_from_json(
      R"({"job":{"name":"j","mode":"sync"},"recovery":{"log_mb":4096,"redo_log":"disk","redo_mb":256,"when_full":"wait"},)"
      R"("ssp":{"delay_compensation":0.0,"lr_by_staleness":false,"staleness":3},)"
      R"("sync":{"backup_workers":0,"deadline_ms":150}})");
  REQUIRE_MESSAGE(read, read.error().message);
  CHECK(read->sync.deadline_ms == 150);
  CHECK(refused_json(R"({"job":{"name":"j"},"sync":{"backup_workers":1}})").find("set sync.deadline_ms") !=
        std::string::npos);
  CHECK(refused_json(R"({"job":{"name":"j"},"sync":{"backup":1}})").find("unknown key \"backup\"") !=
        std::string::npos);
}

}  // namespace tributary::config_recovery_test
