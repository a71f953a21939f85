// The keys of [sync]: deadlines.
#include <doctest/doctest.h>

#include <string>

#include "common/config/config_toml.h"
#include "common/config/job_json.h"
#include "common/wire/redo_plan.h"
#include "tests/unit/expect.h"
#include "tests/unit/required.h"

namespace tributary::config_sync_test {
namespace {

using testing::contains;

Result<JobConfig> job_of(const std::string& text) {
  return parse_job_config("[job]\nname = 'j'\n" + text, "job.toml", {});
}

std::string refused(const std::string& text) {
  const auto job = job_of(text);
  return job ? std::string() : job.error().message;
}

}  // namespace

TEST_CASE("a deadline is read, and says what kind of job it is") {
  const auto plain = job_of(""), deadline = job_of("[sync]\ndeadline_ms = 150\n");
  REQUIRE((plain && deadline));
  CHECK(deadline->sync.deadline_ms == 150);
  CHECK_FALSE(has_deadline(*plain));
  CHECK(has_deadline(*deadline));
  CHECK_FALSE(has_clocks(*deadline));
  const auto read = required(job_from_json(to_canonical_json(*deadline)));
  CHECK(read.sync.deadline_ms == 150);
}

TEST_CASE("keys of sync are refused where they make no sense") {
  CHECK(contains(refused("mode = 'ssp'\n[sync]\ndeadline_ms = 9\n"),
                 "job.toml:5: sync.deadline_ms = 9: mode \"ssp\" has no late nodes"));
  CHECK(contains(refused("mode = 'local_sgd'\n[local]\nsteps = 5\n[sync]\ndeadline_ms = 9\n"),
                 "mode \"local_sgd\" has no late nodes"));
  CHECK(contains(refused("[sync]\ndeadline_ms = 3600001\n"), "must be at most 3600000"));
  CHECK(refused("[sync]\ndeadline_ms = 20\n[encoding]\npush = 'int8'\npull = 'int8-delta'\n").empty());
}

}  // namespace tributary::config_sync_test
