// The keys of local steps (mode local_sgd).
#include <doctest/doctest.h>

#include <string>

#include "common/config/config_toml.h"
#include "tests/unit/expect.h"
#include "tests/unit/required.h"

namespace tributary::config_local_test {
namespace {

using testing::contains;

TEST_CASE(
    "local steps have an inner optimizer with its own defaults, and the outer one averages unless told otherwise") {
  const auto job = required(parse_job_config(
      "[job]\nname = 'j'\nmode = 'local_sgd'\n[local]\nsteps = 50\noptimizer = 'adamw'\n", "job.toml", {}));
  CHECK(job.local.steps == 50);
  CHECK(job.local.keep_state);
  CHECK(job.local.optimizer.name == "adamw");
  CHECK(job.local.optimizer.lr == 0.001);
  CHECK(job.local.optimizer.weight_decay == 0.01);
  CHECK(job.optimizer.name == "sgd");
  CHECK(job.optimizer.lr == 1.0);
  CHECK(job.optimizer["momentum"] == 0.0);
}

TEST_CASE("keys of local steps are refused where they have no use or make no sense") {
  const std::string local = "[job]\nname = 'j'\nmode = 'local_sgd'\n[local]\n";
  const auto refused = [](const std::string& text) {
    const auto job = parse_job_config(text, "job.toml", {});
    return job ? std::string() : job.error().message;
  };
  CHECK(contains(refused(local + "steps = 0\n"), "job.toml:5: local.steps = 0: mode \"local_sgd\" needs the number"));
  CHECK(contains(refused(local + "optimizer = 'sgd'\n"), "local.steps is not set: mode \"local_sgd\" needs"));
  CHECK(contains(refused(local + "steps = 1000001\n"), "from 1 to 1000000"));
  CHECK(contains(refused(local + "steps = 5\noptimizer = 'sdg'\n"), "local.optimizer = 'sdg': must be one of sgd"));
  CHECK(contains(refused(local + "steps = 5\nlr = 0\n"), "local.lr = 0: must be a finite number above 0"));
  CHECK(contains(refused(local + "steps = 5\nnesterov = true\n"), "local.nesterov = true: needs momentum"));
  CHECK(contains(refused(local + "steps = 5\noptimizer = 'adam'\nmomentum = 0.9\n"),
                 "adam has no momentum (sgd has): remove the key or change local.optimizer"));
  CHECK(contains(refused(local + "steps = 5\noptimizer = 'adam'\nbeta1 = 1\n"), "local.beta1 = 1: must be in [0, 1)"));
  CHECK(contains(refused("[job]\nname = 'j'\n[local]\nsteps = 5\n"),
                 "local.steps = 5: mode \"sync\" has no local steps: remove the key or set job.mode to \"local_sgd\""));
  CHECK(contains(refused(local + "steps = 5\n[allreduce]\nalgorithm = 'flat'\n"),
                 "mode \"local_sgd\" has no all-reduce"));
}

}  // namespace
}  // namespace tributary::config_local_test
