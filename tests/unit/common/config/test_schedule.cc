#include <doctest/doctest.h>

#include <cmath>
#include <string>

#include "common/config/schedule.h"

namespace tributary::schedule_test {

namespace {

using tributary::ScheduleConfig;
using tributary::scheduled_lr;
using tributary::ScheduleKind;

// Equal but for the last digits of a double.
bool close(double a, double b) {
  return std::fabs(a - b) <= 1e-14 * std::fabs(b) + 1e-18;
}

ScheduleConfig schedule(ScheduleKind kind, std::uint64_t warmup = 0, std::uint64_t total = 0, double floor = 0.0) {
  ScheduleConfig config{.kind = kind, .warmup_rounds = warmup, .total_rounds = total, .min_lr_ratio = floor};
  return config;
}

TEST_CASE("the constant schedule is the configured rate in every step") {
  for (std::uint64_t t : {1ull, 2ull, 1000000ull, ~0ull})
    CHECK(scheduled_lr(schedule(ScheduleKind::kConstant), 0.1, t) == 0.1);
}

TEST_CASE("warm-up rises linearly to the full rate, before every schedule") {
  for (const ScheduleKind kind :
       {ScheduleKind::kConstant, ScheduleKind::kLinear, ScheduleKind::kCosine, ScheduleKind::kStep}) {
    CAPTURE(word(kind));
    ScheduleConfig config = schedule(kind, 10, 100);
    config.step_rounds = 30;
    for (std::uint64_t t = 1; t <= 10; ++t)
      CHECK(close(scheduled_lr(config, 0.5, t), 0.5 * static_cast<double>(t) / 10));
    CHECK(scheduled_lr(config, 0.5, 10) == 0.5);
    CHECK(scheduled_lr(config, 0.5, 11) == 0.5);  // u = 0: the schedule proper starts at the full rate
  }
}

TEST_CASE("the linear schedule reaches its floor after total_rounds and stays there") {
  const ScheduleConfig config = schedule(ScheduleKind::kLinear, 20, 120, 0.1);
  CHECK(close(scheduled_lr(config, 2.0, 21), 2.0));
  CHECK(close(scheduled_lr(config, 2.0, 46), 2.0 * (1 - 0.9 * 0.25)));
  CHECK(close(scheduled_lr(config, 2.0, 71), 2.0 * (1 - 0.9 * 0.5)));
  CHECK(close(scheduled_lr(config, 2.0, 121), 0.2));
  CHECK(close(scheduled_lr(config, 2.0, 5000), 0.2));
  for (std::uint64_t t = 21; t < 121; ++t) CHECK(scheduled_lr(config, 2.0, t + 1) < scheduled_lr(config, 2.0, t));
}

TEST_CASE("the cosine schedule is half a cosine from the full rate to its floor") {
  const ScheduleConfig config = schedule(ScheduleKind::kCosine, 0, 60, 0.2);
  CHECK(close(scheduled_lr(config, 1.0, 1), 1.0));
  CHECK(close(scheduled_lr(config, 1.0, 21), 0.2 + 0.8 * 0.75));  // cos(pi/3) = 1/2
  CHECK(close(scheduled_lr(config, 1.0, 31), 0.2 + 0.8 * 0.5));
  CHECK(close(scheduled_lr(config, 1.0, 41), 0.2 + 0.8 * 0.25));  // cos(2 pi/3) = -1/2
  CHECK(close(scheduled_lr(config, 1.0, 61), 0.2));
  CHECK(close(scheduled_lr(config, 1.0, 1000), 0.2));
}

TEST_CASE("the step schedule multiplies by gamma every step_rounds") {
  ScheduleConfig config = schedule(ScheduleKind::kStep, 5);
  config.step_rounds = 10;
  config.step_gamma = 0.5;
  CHECK(scheduled_lr(config, 8.0, 6) == 8.0);
  CHECK(scheduled_lr(config, 8.0, 15) == 8.0);
  CHECK(scheduled_lr(config, 8.0, 16) == 4.0);
  CHECK(scheduled_lr(config, 8.0, 25) == 4.0);
  CHECK(scheduled_lr(config, 8.0, 26) == 2.0);
  CHECK(scheduled_lr(config, 8.0, 96) == 8.0 / 512);
  config.step_rounds = 0;
  CHECK(scheduled_lr(config, 8.0, 96) == 8.0);
}

TEST_CASE("a warm-up as long as the run, or longer, leaves the floor for what follows") {
  for (std::uint64_t total : {0, 5, 10}) {
    const ScheduleConfig config = schedule(ScheduleKind::kCosine, 10, total, 0.25);
    CHECK(scheduled_lr(config, 1.0, 10) == 1.0);
    CHECK(scheduled_lr(config, 1.0, 11) == 1.0);
    CHECK(close(scheduled_lr(config, 1.0, 12), 0.25));
  }
}

}  // namespace

}  // namespace tributary::schedule_test
