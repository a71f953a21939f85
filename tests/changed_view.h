// Another view of a lane's part of a job, or another job.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "server/shard/shard_core.h"

namespace tributary::testing {

inline ShardJob changed(ShardJob job, const std::function<void(ViewPlan&, JobConfig&)>& change) {
  ViewPlan view = *job.view;
  JobConfig config = view.plan->config;
  change(view, config);
  view.plan = JobPlan::of(std::move(config));
  job.view = std::make_shared<const ViewPlan>(std::move(view));
  return job;
}

inline ShardJob in_view(ShardJob job, ViewId id) {
  return changed(std::move(job), [id](ViewPlan& view, JobConfig&) { view.view = id; });
}

}  // namespace tributary::testing
