// How a view begins on a node: what its JobWelcome says is checked, and its memory made.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "worker/local_trainers.h"
#include "worker/node_jobs_context.h"

namespace tributary {

// What the welcome says of this node's part, for the node's so many ranks.
Result<NodeJobSpec> spec_of(const std::shared_ptr<const JobPlan>& plan, const std::vector<TensorSpec>& tensors,
                            std::uint32_t ranks, const JobWelcome& m);
// Makes what the view needs on this node, which joined as `node`, and hands it to the lanes. Of an all-reduce job the
// spec says whether it is added up on devices.
Result<std::shared_ptr<NodeJob>> open_view(NodeJobsContext& context, NodeJobSpec spec, const JobWelcome& m,
                                           NodeRank node, const LocalTrainers& trainers, std::uint64_t now_ms);

}  // namespace tributary
