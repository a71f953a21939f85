#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "common/config/config_toml.h"
#include "common/config/job_json.h"
#include "common/config/schedule.h"
#include "common/config/step_runs.h"
#include "tests/unit/expect.h"
#include "tests/unit/required.h"

namespace tributary::step_runs_test {
namespace {

using testing::contains;

constexpr const char* kGroups = R"(
job.name = 'j'
[optimizer]
name = 'adamw'
lr = 0.5
weight_decay = 0.25
[[groups]]
weight_decay = 0.0
[[groups]]
lr = 0.125
beta1 = 0.5
[schedule]
warmup_rounds = 4
)";

JobConfig parsed(const std::string& toml) {
  return required(parse_job_config(toml, "job.toml"));
}

std::string refusal(const std::string& toml) {
  const auto job = parse_job_config(toml, "job.toml");
  return job ? "(accepted)" : job.error().message;
}

// Chunks of 1024 elements: 0 | 0 1 2 | 2, where the groups of the first two meet at 1008 with padding before it.
Layout some_layout() {
  return *Layout::unowned({{"a", {1000}}, {"b", {10, 2}, 1}, {"c", {1}, 2}, {"d", {1500}, 2}}, 1024);
}

bool same(const kernels::StepScalars& a, const kernels::StepScalars& b) {
  return std::memcmp(a.a, b.a, sizeof a.a) == 0 && a.first == b.first && a.lerp_from_gradient == b.lerp_from_gradient;
}

}  // namespace

TEST_CASE("a group has the keys of [optimizer] but for those that it gives, in TOML and in JSON") {
  const JobConfig job = parsed(kGroups);
  REQUIRE(job.groups.size() == 2);
  CHECK(job.groups[0].weight_decay == 0.0);
  CHECK(job.groups[0].lr == 0.5);
  CHECK(job.groups[1].weight_decay == 0.25);
  CHECK(job.groups[1].own[kernels::optimizer_kind(job.optimizer.name)->place("beta1")] == 0.5);
  CHECK(job.groups[1].lr == 0.125);
  const std::string json = to_canonical_json(job);
  const auto back = required(job_from_json(json));
  CHECK(to_canonical_json(back) == json);
  CHECK(describe_config_difference(job, back).empty());
  JobConfig other = job;
  other.groups[1].own[kernels::optimizer_kind(job.optimizer.name)->place("beta1")] = 0.25;
  CHECK(contains(describe_config_difference(job, other), "groups[1].beta1 is 0.5 in the job, but 0.25"));
  other.groups.pop_back();
  CHECK(contains(describe_config_difference(job, other), "the job has 2 [[groups]], but your configuration has 1"));
}

TEST_CASE("groups that cannot be are refused with line and key") {
  const std::string head = "job.name = 'j'\n[optimizer]\nname = 'sgd'\n";
  CHECK(
      contains(refusal(head + "[[groups]]\nmomentum = 0.5\n"), "job.toml:5: groups[0].momentum = 0.5: must be above"));
  CHECK(contains(refusal(head + "momentum = 0.9\n[[groups]]\nnesterov = true\n"), "groups[0].momentum"));
  CHECK(contains(refusal(head + "[[groups]]\nbeta1 = 0.5\n"), "job.toml:5: groups[0].beta1 = 0.5: sgd has no beta1"));
  CHECK(contains(refusal(head + "[[groups]]\nlr = -1.0\n"), "job.toml:5: groups[0].lr = -1"));
  CHECK(contains(refusal(head + "[[groups]]\nweigth_decay = 0.5\n"), "weight_decay"));
  CHECK(contains(refusal("job.name = 'j'\n[optimizer]\nname = 'adagrad'\n[[groups]]\ninitial_accumulator = 0.5\n"),
                 "must be that of all other groups"));
  CHECK(contains(refusal("job.name = 'j'\n[optimizer]\nname = 'mean'\nlr = 0.5\n"), "mean has no lr"));
  CHECK(refusal("job.name = 'j'\n[optimizer]\nname = 'mean'\n") == "(accepted)");
  std::string many = head;
  for (std::uint32_t i = 0; i < kMaxGroups; ++i) many += "[[groups]]\n";
  CHECK(contains(refusal(many), "one group too many"));
}

TEST_CASE("a tensor's group must be one of the job's") {
  const JobConfig job = parsed(kGroups);
  CHECK(check_groups(job, some_layout().tensors()));
  const std::vector<TensorSpec> beyond{{"w", {4}, 3}};
  const auto refused = failure_of(check_groups(job, beyond));
  CHECK(contains(refused.message, "tensor 'w' is of group 3, but job 'j' has 2 [[groups]]"));
  CHECK_FALSE(Layout::unowned({{"w", {4}, kMaxGroups}}, 1024));
}

TEST_CASE("groups belong to what a layout is, and a layout without them is what it was") {
  const Layout plain = *Layout::unowned({{"a", {1000}}, {"b", {20}}}, 1024);
  const Layout grouped = *Layout::unowned({{"a", {1000}}, {"b", {20}, 1}}, 1024);
  CHECK(plain.hash() != grouped.hash());
  CHECK(contains(describe_difference(plain.tensors(), grouped.tensors()), "in group 1"));
  CHECK(some_layout().groups_of(ChunkIndex(0)) == std::vector<std::uint32_t>{0, 1});
  CHECK(some_layout().groups_of(ChunkIndex(1)) == std::vector<std::uint32_t>{1, 2});
  CHECK(some_layout().groups_of(ChunkIndex(2)) == std::vector<std::uint32_t>{2});
}

TEST_CASE("a step goes over a chunk in runs of tensors of one group, each at its own rate") {
  const auto plan = JobPlan::of(parsed(kGroups));
  const Layout layout = some_layout();
  StepRuns step;
  auto runs = step.of(*plan, layout, ChunkIndex(0), 3, 2, {});
  REQUIRE(runs.size() == 2);
  CHECK(runs[0].end == 1008);  // with its padding
  CHECK(runs[1].end == 1024);
  CHECK(same(runs[0].scalars, plan->groups[0]->scalars(3, 0.25)));  // half of the warm-up
  CHECK(same(runs[1].scalars, plan->groups[1]->scalars(3, 0.25)));
  CHECK_FALSE(same(runs[0].scalars, runs[1].scalars));
  const std::vector<StepSettings> said{{.lr = 0.75, .weight_decay = 0.5}, {}};
  runs = step.of(*plan, layout, ChunkIndex(1), 1, 2, said);
  REQUIRE(runs.size() == 2);  // c and d are one run
  CHECK(runs[0].end == 16);
  CHECK(runs[1].end == 1024);
  CHECK(same(runs[0].scalars, plan->groups[1]->scalars(1, said[0].over(*plan->groups[1]))));
  CHECK_FALSE(same(runs[0].scalars, plan->groups[1]->scalars(1, 0.75)));
  CHECK(same(runs[1].scalars, plan->groups[2]->scalars(1, 0.0625)));
  runs = step.of(*plan, layout, ChunkIndex(2), 1, 2, {});
  REQUIRE(runs.size() == 1);
  CHECK(runs[0].end == layout.chunk(ChunkIndex(2)).elements);
}

TEST_CASE("runs change no bits, wherever groups meet and whatever the answers are") {
  const Layout layout = some_layout();
  const auto plan = JobPlan::of(parsed(kGroups));
  for (const char* pull : {"fp32", "bf16", "int8-delta"}) {
    const auto answers = make_encoding(*parse_encoding(pull));
    const auto fp32 = make_encoding(EncodingId::kFp32);
    const std::size_t n = 1024;
    std::vector<float> gradient(n), start(n);
    for (std::size_t i = 0; i < n; ++i) gradient[i] = std::sin(static_cast<float>(i)), start[i] = 1.0f / (1.0f + i);
    StepRuns runs;
    const PushFrame frame{reinterpret_cast<const std::byte*>(gradient.data())};
    std::vector<float> params = start, m(n), v(n), estimate = start;
    std::vector<std::byte> answer(answers->bytes(n));
    FusedArgs args;
    args.elements = n;
    args.frames = {&frame, 1};
    args.push = fp32.get();
    args.param_in = args.param_out = params.data();
    args.state_in[0] = args.state_out[0] = m.data();
    args.state_in[1] = args.state_out[1] = v.data();
    args.pull = answers.get();
    args.answer = answer.data();
    if (answers->is_delta()) args.estimate_in = args.estimate_out = estimate.data();
    fused_step(*plan->optimizer, runs.of(*plan, layout, ChunkIndex(0), 1, 9, {}), args);

    std::vector<float> expected = start, em(n), ev(n);
    for (std::size_t i = 0; i < n; ++i) {
      kernels::BlockArgs block;
      block.count = 1;
      block.grad = &gradient[i];
      block.param_in = block.param_out = &expected[i];
      block.state_in[0] = block.state_out[0] = &em[i];
      block.state_in[1] = block.state_out[1] = &ev[i];
      const auto& optimizer = *plan->groups[i < 1008 ? 0 : 1];
      optimizer.step(optimizer.scalars(1, 0.5), block);
    }
    CHECK(std::memcmp(params.data(), expected.data(), n * sizeof(float)) == 0);
    CHECK(std::memcmp(v.data(), ev.data(), n * sizeof(float)) == 0);
  }
}

}  // namespace tributary::step_runs_test
