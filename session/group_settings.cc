#include "session/group_settings.h"

#include <string>
#include <utility>

namespace tributary {

GroupSettings::GroupSettings(JobConfig job, std::span<const TensorSpec> tensors)
    : plan_(JobPlan::of(std::move(job))), settings_(plan_->groups.size()) {
  for (const TensorSpec& tensor : tensors) groups_.push_back(tensor.group);
}

Status GroupSettings::set(std::uint32_t group, double weight_decay, double momentum) {
  if (group >= settings_.size()) {
    return fail(ErrorCode::kInvalidArgument, "job '" + plan_->name() + "' has no group " + std::to_string(group) +
                                                 ": its groups count from 0 to " +
                                                 std::to_string(settings_.size() - 1));
  }
  const StepSettings settings{.weight_decay = weight_decay, .momentum = momentum};
  if (!takes(*plan_->groups[group], settings)) {
    return fail(ErrorCode::kInvalidArgument,
                "group " + std::to_string(group) + " of job '" + plan_->name() + "', optimizer " +
                    plan_->config.optimizer.name + ", cannot step with " + settings.in_words() +
                    ": each must be a value that this optimizer has, finite and from 0 on, and momentum below 1; a "
                    "momentum that is 0 stays 0, and one above 0 stays above 0");
  }
  settings_[group] = settings;
  return {};
}

StepSettings GroupSettings::of(std::size_t tensor, double lr) const {
  StepSettings settings = settings_[groups_[tensor]];
  settings.lr = lr;
  return settings;
}

}  // namespace tributary
