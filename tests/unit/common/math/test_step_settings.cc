#include <doctest/doctest.h>

#include <limits>
#include <memory>
#include <string_view>

#include "common/math/step_settings.h"
#include "kernels/step/optimizer.h"
#include "tests/unit/stepping_optimizers.h"

namespace tributary::step_settings_test {
namespace {

std::unique_ptr<kernels::Optimizer> made(std::string_view name, double momentum = 0.0) {
  return kernels::make_optimizer(name, kernels::options_of(name, {{"momentum", momentum}}));
}

double momentum_of(const kernels::Optimizer& optimizer, const StepSettings& settings) {
  return settings.over(optimizer).own[optimizer.kind().place("momentum")];
}

}  // namespace

TEST_CASE("a setting is a finite number from 0 on, or as the job has it") {
  CHECK(StepSettings{}.sound());
  CHECK(StepSettings{0.0, 0.0, 0.0}.sound());
  CHECK(StepSettings{1e-300, 1e300, 0.5}.sound());
  for (const double wrong : {-0.5, std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    CHECK_FALSE(StepSettings{.lr = wrong}.sound());
    CHECK_FALSE(StepSettings{.weight_decay = wrong}.sound());
    CHECK_FALSE(StepSettings{.momentum = wrong}.sound());
  }
}

TEST_CASE("settings replace an optimizer's options: momentum is SGD's, and beta1 of others") {
  const auto sgd = made("sgd", 0.75);
  CHECK(momentum_of(*sgd, {}) == 0.75);
  const kernels::OptimizerOptions moved = StepSettings{0.25, 0.125, 0.5}.over(*sgd);
  CHECK(moved.lr == 0.25);
  CHECK(moved.weight_decay == 0.125);
  CHECK(momentum_of(*sgd, {.momentum = 0.5}) == 0.5);
  for (const kernels::OptimizerKind& kind : kernels::optimizer_kinds()) {
    if (kind.place("beta1") == kernels::OptimizerKind::kNone) continue;
    const std::string_view name = kind.name;
    kernels::OptimizerOptions expected = made(name)->options();
    expected.own[made(name)->kind().place("beta1")] = 0.5;
    CHECK(StepSettings{.momentum = 0.5}.over(*made(name)) == expected);
  }
}

TEST_CASE("an optimizer takes what its formula has, while that stays the same formula") {
  for (const std::string& name : testing::stepping_optimizers()) {
    CAPTURE(name);
    CHECK(takes(*made(name), {.lr = 0.5, .weight_decay = 0.25}));
    CHECK_FALSE(takes(*made(name), {.lr = -0.5}));
  }
  CHECK_FALSE(takes(*made("mean"), {.weight_decay = 0.25}));
  CHECK_FALSE(takes(*made("adagrad"), {.momentum = 0.5}));
  CHECK(takes(*made("adam"), {.momentum = 0.0}));
  CHECK_FALSE(takes(*made("adam"), {.momentum = 1.0}));
  // SGD without momentum has no array for it; with momentum it has one that each step moves.
  CHECK(takes(*made("sgd"), {.momentum = 0.0}));
  CHECK_FALSE(takes(*made("sgd"), {.momentum = 0.5}));
  CHECK(takes(*made("sgd", 0.5), {.momentum = 0.9}));
  CHECK_FALSE(takes(*made("sgd", 0.5), {.momentum = 0.0}));
}

TEST_CASE("settings in words name what is said") {
  CHECK(StepSettings{}.in_words() == "nothing");
  CHECK(StepSettings{0.5, -1, 0.25}.in_words() == "lr 0.5, momentum 0.25");
}

}  // namespace tributary::step_settings_test
