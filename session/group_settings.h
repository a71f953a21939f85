// GroupSettings: weight decay and momentum that a trainer has set for a group's steps. For callers that give only the
// learning rate with a tensor's gradient.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/base/layout.h"
#include "common/base/result.h"
#include "common/config/job_plan.h"
#include "common/math/step_settings.h"

namespace tributary {

// Thread rule: of() by several threads, set() while none is in of() of the group's tensors.
class GroupSettings {
 public:
  // REQUIRES: check_groups() (common/config/step_runs.h), faults_of(job) finds none.
  GroupSettings(JobConfig job, std::span<const TensorSpec> tensors);

  // kInvalidArgument: the job has no such group, or its optimizer does not take these values.
  Status set(std::uint32_t group, double weight_decay, double momentum);
  StepSettings of(std::size_t tensor, double lr) const;

 private:
  std::shared_ptr<const JobPlan> plan_;
  std::vector<std::uint32_t> groups_;   // by tensor
  std::vector<StepSettings> settings_;  // by group
};

}  // namespace tributary
