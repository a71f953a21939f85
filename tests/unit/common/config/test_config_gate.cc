// The keys of the round gate.
#include <doctest/doctest.h>

#include <string>

#include "common/config/config_toml.h"
#include "common/config/job_json.h"
#include "common/wire/redo_plan.h"
#include "tests/unit/expect.h"
#include "tests/unit/required.h"

namespace tributary::config_gate_test {
namespace {

using testing::contains;

JobConfig parsed(const std::string& text) {
  return required(parse_job_config("[job]\nname = 'j'\n" + text, "job.toml", {}));
}

std::string refused(const std::string& text, const std::string& mode = "sync") {
  const auto job = parse_job_config("[job]\nname = 'j'\nmode = '" + mode + "'\n" + text, "job.toml", {});
  return job ? "(accepted)" : job.error().message;
}

}  // namespace

TEST_CASE("a job has a gate if it clips or scales its loss") {
  CHECK_FALSE(has_gate(parsed("")));
  CHECK_FALSE(has_gate(parsed("[gate]\nclip_norm = 0.0\nloss_scale = 'none'\n")));
  CHECK(has_gate(parsed("[gate]\nclip_norm = 1.5\n")));
  CHECK(has_gate(parsed("[gate]\nloss_scale = '1024'\n")));
  const JobConfig job = parsed("[gate]\nloss_scale = 'dynamic'\n");
  CHECK(has_gate(job));
  CHECK(initial_loss_scale(job.gate) == 65536.0);
  CHECK(job.gate.growth_interval == 2000);
  CHECK(initial_loss_scale(parsed("[gate]\nloss_scale = '1024'\n").gate) == 1024.0);
  CHECK(initial_loss_scale(parsed("[gate]\nloss_scale = '0.5'\n").gate) == 0.5);
  CHECK(initial_loss_scale(parsed("").gate) == 1.0);
}

TEST_CASE("keys of the gate are refused where they make no sense") {
  CHECK(contains(refused("[gate]\nclip_norm = -1.0\n"), "gate.clip_norm = -1.0: must be 0 (no clipping) or a finite"));
  CHECK(contains(refused("[gate]\nclip_norm = nan\n"), "gate.clip_norm = nan"));
  for (const char* scale : {"1000", "-2", "0", "1e400", "12x", ""}) {
    CHECK(contains(refused("[gate]\nloss_scale = '" + std::string(scale) + "'\n"), "or a power of two, as \"1024\""));
  }
  CHECK(contains(refused("[gate]\nloss_scale = 'dynamic'\ninit_scale = 1000.0\n"),
                 "init_scale = 1000.0: must be a power"));
  CHECK(contains(refused("[gate]\nloss_scale = 'dynamic'\ngrowth_factor = 0.5\n"),
                 "growth_factor = 0.5: must be a power"));
  CHECK(contains(refused("[gate]\nloss_scale = 'dynamic'\nbackoff_factor = 0.75\n"), "backoff_factor = 0.75: must be"));
  CHECK(contains(refused("[gate]\nloss_scale = 'dynamic'\ngrowth_interval = 0\n"), "growth_interval = 0: must be at"));
  CHECK(contains(refused("[gate]\nloss_scale = '1024'\ngrowth_interval = 10\n"), "only a dynamic loss scale has it"));
  CHECK(contains(refused("[gate]\nclip_norm = 1.0\ninit_scale = 4.0\n"), "only a dynamic loss scale has it"));
}

TEST_CASE(
    "a gate is refused in modes that have no whole round, and with encodings whose residuals would be of another "
    "scale") {
  CHECK(contains(refused("[gate]\nclip_norm = 1.0\n", "ssp"), "gate.clip_norm = 1.0: needs mode \"sync\""));
  CHECK(contains(refused("[gate]\nclip_norm = 1.0\n", "async"), "with mode \"async\" there is none to wait for"));
  CHECK(contains(refused("[gate]\nloss_scale = 'dynamic'\n", "allreduce"), "gate.loss_scale = 'dynamic': needs mode"));
  CHECK(contains(refused("[gate]\nloss_scale = '2'\n[local]\nsteps = 5\n", "local_sgd"), "needs mode \"sync\""));
  for (const char* push : {"int8", "topk:0.01", "onebit"}) {
    const std::string encoding = "[encoding]\npush = '" + std::string(push) + "'\n";
    CHECK(contains(refused(encoding + "[gate]\nloss_scale = 'dynamic'\n"),
                   "must be fp32, bf16 or fp16 with a dynamic loss scale"));
    CHECK(refused(encoding + "[gate]\nclip_norm = 1.0\n") == "(accepted)");
  }
  CHECK(refused("[encoding]\npush = 'bf16'\npull = 'int8-delta'\n[gate]\nclip_norm = 1.0\n") == "(accepted)");
}

TEST_CASE("a gate goes with the job's JSON, and makes it another training") {
  const JobConfig plain = parsed(""), clipped = parsed("[gate]\nclip_norm = 1.0\n");
  const auto again = required(job_from_json(to_canonical_json(clipped)));
  CHECK(again.gate.clip_norm == 1.0);
  CHECK(
      contains(describe_config_difference(to_canonical_json(plain), to_canonical_json(clipped)), "gate.clip_norm is"));
}

}  // namespace tributary::config_gate_test
