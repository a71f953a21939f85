// Begins a view on a node: checks the JobWelcome, and makes the view's memory.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "worker/local_trainers.h"
#include "worker/node_jobs_context.h"

namespace tributary {

// Returns this node's part of the job by the welcome. ranks: of this node.
Result<NodeJobSpec> spec_of(const std::shared_ptr<const JobPlan>& plan, const std::vector<TensorSpec>& tensors,
                            std::uint32_t ranks, const JobWelcome& m);
// Makes this node's part of a view, which it joined as `node`, and hands it to the lanes. An all-reduce job's spec has
// the choice between devices and host memory.
Result<std::shared_ptr<NodeJob>> open_view(NodeJobsContext& context, NodeJobSpec spec, const JobWelcome& m,
                                           NodeRank node, const LocalTrainers& trainers, std::uint64_t now_ms);

}  // namespace tributary
