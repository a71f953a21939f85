#include "common/config/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "common/base/assert.h"

namespace tributary {

double scheduled_lr(const ScheduleConfig& schedule, double lr, std::uint64_t t) {
  TRIB_ASSERT(t >= 1);
  if (t <= schedule.warmup_rounds) return lr * (static_cast<double>(t) / static_cast<double>(schedule.warmup_rounds));
  const std::uint64_t past = t - 1 - schedule.warmup_rounds;  // steps since the warm-up
  if (schedule.kind == ScheduleKind::kConstant) return lr;
  if (schedule.kind == ScheduleKind::kStep) {
    if (schedule.step_rounds == 0) return lr;
    return lr * std::pow(schedule.step_gamma, static_cast<double>(past / schedule.step_rounds));
  }
  const std::uint64_t length =
      schedule.total_rounds > schedule.warmup_rounds ? schedule.total_rounds - schedule.warmup_rounds : 1;
  const double u = std::min(1.0, static_cast<double>(past) / static_cast<double>(length));
  const double floor = schedule.min_lr_ratio;
  if (schedule.kind == ScheduleKind::kLinear) return lr * (1.0 - (1.0 - floor) * u);
  return lr * (floor + (1.0 - floor) * (1.0 + std::cos(std::numbers::pi * u)) / 2.0);
}

ScheduleConfig server_schedule(const JobConfig& job) {
  return has_local_steps(job) ? ScheduleConfig{} : job.schedule;
}

}  // namespace tributary
