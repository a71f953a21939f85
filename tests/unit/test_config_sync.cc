// The keys of [sync]: backup workers and deadlines.
#include <doctest/doctest.h>

#include <string>

#include "common/config_toml.h"
#include "common/job_json.h"
#include "common/redo_plan.h"

namespace tributary {
namespace {

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

Result<JobConfig> job_of(const std::string& text) {
  return parse_job_config("[job]\nname = 'j'\n" + text, "job.toml", {});
}

std::string refused(const std::string& text) {
  const auto job = job_of(text);
  return job ? std::string() : job.error().message;
}

}  // namespace

TEST_CASE("backup workers and a deadline are read, and say what kind of job it is") {
  const auto plain = job_of("");
  const auto backup = job_of("[sync]\nbackup_workers = 2\n");
  const auto deadline = job_of("[sync]\ndeadline_ms = 150\n");
  const auto both = job_of("[sync]\nbackup_workers = 1\ndeadline_ms = 150\n");
  REQUIRE((plain && backup && deadline && both));
  CHECK(backup->sync.backup_workers == 2);
  CHECK(deadline->sync.deadline_ms == 150);
  CHECK_FALSE(has_clocks(*plain));
  CHECK(has_backups(*backup));
  CHECK(has_clocks(*backup));
  CHECK_FALSE(has_staleness(*backup));
  CHECK_FALSE(has_deadline(*backup));
  CHECK(has_deadline(*both));
  CHECK(has_backups(*both));
  // Weights are kept with the frames: such rounds can be redone. What was dropped must not be.
  CHECK(recovers(*plain));
  CHECK(recovers(*deadline));
  CHECK_FALSE(recovers(*backup));
  // A job that says nothing of it keeps the hash that it had before there were such keys.
  CHECK(config_hash(*plain) != config_hash(*deadline));
  CHECK(config_hash(*plain) != config_hash(*backup));
  const auto zero = job_of("[sync]\nbackup_workers = 0\n");
  REQUIRE(zero);
  CHECK(config_hash(*plain) == config_hash(*zero));
  const auto read = job_from_json(to_canonical_json(*both));
  REQUIRE(read);
  CHECK(read->sync.backup_workers == 1);
  CHECK(read->sync.deadline_ms == 150);
}

TEST_CASE("keys of sync are refused where they make no sense") {
  CHECK(contains(refused("mode = 'ssp'\n[sync]\nbackup_workers = 1\n"),
                 "job.toml:5: sync.backup_workers = 1: mode \"ssp\" has no late nodes"));
  CHECK(contains(refused("mode = 'local_sgd'\n[local]\nsteps = 5\n[sync]\ndeadline_ms = 9\n"),
                 "mode \"local_sgd\" has no late nodes"));
  CHECK(contains(refused("[sync]\nbackup_workers = 65537\n"), "must be at most 65536"));
  CHECK(contains(refused("[sync]\ndeadline_ms = 3600001\n"), "must be at most 3600000"));
  CHECK(contains(refused("[sync]\nbackup_workers = 1\n[encoding]\npush = 'int8'\n"),
                 "encoding.push = 'int8': must be fp32, bf16 or fp16 with backup workers"));
  CHECK(contains(refused("[sync]\nbackup_workers = 1\n[encoding]\npull = 'int8-delta'\n"), "with backup workers"));
  CHECK(refused("[sync]\ndeadline_ms = 20\n[encoding]\npush = 'int8'\npull = 'int8-delta'\n").empty());
}

}  // namespace tributary
