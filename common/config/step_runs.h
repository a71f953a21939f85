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

// Owns the memory of the runs, so that a step allocates nothing. Thread rule: one thread at a time.
class StepRuns {
 public:
  // step: of the chunk's parameters, 1-based; position: in the schedule. The result stands until the next call.
  // REQUIRES: check_groups(), said.size() is 0 or that of Layout::groups_of(chunk).
  std::span<const StepRun> of(const JobPlan& plan, const Layout& layout, ChunkIndex chunk, std::uint64_t step,
                              std::uint64_t position, SaidSettings said);

 private:
  std::vector<StepRun> runs_;
  std::vector<std::uint32_t> groups_;          // of the chunk
  std::vector<kernels::StepScalars> scalars_;  // of each of them
};

}  // namespace tributary
