// The keys of [recovery], and keys that are no more.
#include <doctest/doctest.h>

#include <string>

#include "common/config/config_toml.h"
#include "common/config/job_json.h"
#include "common/wire/redo_plan.h"
#include "tests/unit/expect.h"

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
    CHECK(testing::contains(why, "membership.on_state_lost"));
    CHECK(testing::contains(why, mode));
  }
  CHECK(refused("[membership]\non_state_lost = 'rewnd'\n").find("rewind") != std::string::npos);
}

TEST_CASE("a record of a job with a key that there is not is refused by the key's name") {
  CHECK(refused_json(R"({"job":{"name":"j"},"sync":{"backup":1}})").find("unknown key \"backup\"") !=
        std::string::npos);
}

}  // namespace tributary::config_recovery_test
