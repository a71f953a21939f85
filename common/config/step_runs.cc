#include "common/config/step_runs.h"

#include <algorithm>
#include <string>

#include "common/base/assert.h"
#include "common/config/schedule.h"

namespace tributary {
namespace {

const kernels::OptimizerOptions& options_of(const JobConfig& job, std::uint32_t group) {
  return group == 0 ? job.optimizer : job.groups[group - 1];
}

}  // namespace

Status check_groups(const JobConfig& job, std::span<const TensorSpec> tensors) {
  for (const TensorSpec& tensor : tensors) {
    if (tensor.group <= job.groups.size()) continue;
    return fail(ErrorCode::kInvalidArgument,
                "tensor '" + tensor.name + "' is of group " + std::to_string(tensor.group) + ", but job '" + job.name +
                    "' has " + std::to_string(job.groups.size()) +
                    " [[groups]] beside group 0, its [optimizer]; add a [[groups]] table for each");
  }
  return {};
}

std::span<const StepRun> StepRuns::of(const JobPlan& plan, const Layout& layout, ChunkIndex chunk, std::uint64_t step,
                                      std::uint64_t position, SaidSettings said) {
  runs_.clear();
  const ChunkRange range = layout.chunk(chunk);
  const auto scalars = [&](std::uint32_t group, StepSettings settings) {
    TRIB_ASSERT(group < plan.groups.size());
    if (settings.lr == StepSettings::kConfigured) {
      settings.lr = scheduled_lr(plan.schedule, options_of(plan.config, group).lr, position);
    }
    const kernels::Optimizer& optimizer = *plan.groups[group];
    return optimizer.scalars(step, settings.over(optimizer));
  };
  if (plan.groups.size() == 1) {
    TRIB_ASSERT(said.size() <= 1);
    runs_.push_back({range.elements, scalars(0, said.empty() ? StepSettings{} : said.front())});
    return runs_;
  }
  layout.groups_of(chunk, groups_);
  TRIB_ASSERT(said.empty() || said.size() == groups_.size());
  scalars_.clear();
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    scalars_.push_back(scalars(groups_[g], said.empty() ? StepSettings{} : said[g]));
  }
  const auto [first, last] = layout.tensors_of(chunk);
  std::uint32_t running = 0;
  for (std::size_t t = first; t < last; ++t) {
    const std::uint32_t group = layout.tensors()[t].group;
    const bool ends = t + 1 == layout.tensors().size() || layout.tensor_offset(t + 1) >= range.begin + range.elements;
    // The padding behind a tensor is stepped as it is.
    const std::size_t end = ends ? range.elements : layout.tensor_offset(t + 1) - range.begin;
    if (!runs_.empty() && group == running) {
      runs_.back().end = end;
      continue;
    }
    const auto place = std::ranges::lower_bound(groups_, group) - groups_.begin();
    runs_.push_back({end, scalars_[static_cast<std::size_t>(place)]});
    running = group;
  }
  return runs_;
}

}  // namespace tributary
