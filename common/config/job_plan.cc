#include "common/config/job_plan.h"

#include "common/config/schedule.h"

namespace tributary {

std::shared_ptr<const JobPlan> JobPlan::of(JobConfig config) {
  auto plan = std::make_shared<JobPlan>();
  plan->push = make_encoding(config.push);
  plan->pull = make_encoding(config.pull);
  plan->optimizer = make_optimizer(config.optimizer);
  plan->groups.push_back(plan->optimizer);
  for (const kernels::OptimizerOptions& group : config.groups) {
    plan->groups.push_back(kernels::make_optimizer(config.optimizer.name, group));
  }
  plan->schedule = server_schedule(config);
  plan->config = std::move(config);
  return plan;
}

}  // namespace tributary
