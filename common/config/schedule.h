// Learning-rate schedules: a pure function of the step number, so that a replay and a resumed run see the same rate.
#pragma once

#include <cstdint>

#include "common/config/config.h"

namespace tributary {

// Learning rate of step t (1-based). Warm-up multiplies by min(1, t / warmup_rounds); after it, with
// u = (t - 1 - warmup) / max(1, total - warmup) clamped to [0, 1]:
//   constant  lr
//   linear    lr * (1 - (1 - min_lr_ratio) * u)
//   cosine    lr * (min_lr_ratio + (1 - min_lr_ratio) * (1 + cos(pi u)) / 2)      (Loshchilov & Hutter 2017, one cycle)
//   step      lr * step_gamma ^ floor((t - 1 - warmup) / step_rounds)
// The floor is reached in step total + 1, as PyTorch's schedulers reach theirs after T_max (total_iters) steps.
double scheduled_lr(const ScheduleConfig& schedule, double lr, std::uint64_t t);

// The schedule of the servers' steps: the job's, but in mode local_sgd a constant rate: there the job's schedule is
// that of the inner optimizer, counted in local steps, as in Douillard et al. 2024.
ScheduleConfig server_schedule(const JobConfig& job);

}  // namespace tributary
