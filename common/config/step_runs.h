// How a step goes over a chunk: in runs of tensors of one group, each with its group's scalars (docs/torch.md).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/layout.h"
#include "common/base/result.h"
#include "common/config/job_plan.h"
#include "common/math/fused_step.h"
#include "common/math/step_settings.h"

namespace tributary {

// kInvalidArgument: a tensor's group is none of the job's.
Status check_groups(const JobConfig& job, std::span<const TensorSpec> tensors);

// step: of the chunk's parameters, 1-based; position: in the schedule. `runs` is overwritten.
// REQUIRES: check_groups(), said.size() is 0 or that of Layout::groups_of(chunk).
void step_runs(const JobPlan& plan, const Layout& layout, ChunkIndex chunk, std::uint64_t step, std::uint64_t position,
               SaidSettings said, std::vector<StepRun>& runs);

}  // namespace tributary
