#include "server/shard/chunk_arrays.h"

#include <algorithm>

#include "common/math/encoding.h"
#include "server/shard/shard_job.h"

namespace tributary {
namespace {

// Returns the largest number of nodes that push one chunk.
std::size_t most_holders(const ViewPlan& view) {
  if (view.model_ranks.whole()) return view.nodes;
  std::size_t most = 0;
  for (const TensorSpec& tensor : view.layout->tensors()) {
    most = std::max(most, view.model_ranks.nodes_with(tensor, view.nodes).size());
  }
  return most;
}

}  // namespace

ChunkArrays chunk_arrays(const ShardJob& job) {
  ChunkArrays arrays;
  const JobPlan& plan = job.plan();
  arrays.state = 1 + static_cast<std::size_t>(plan.optimizer->slots());
  arrays.encoded = plan.pull->id() == EncodingId::kFp32 ? 0 : 1;
  arrays.estimate = plan.pull->is_delta() ? 1 : 0;
  arrays.previous = job.recovers ? 1 : 0;
  arrays.sums = plan.has_gate() ? 1 : 0;
  arrays.told = plan.has_clocks() ? job.view->nodes : 0;
  arrays.residuals = plan.push->keeps_residual() ? most_holders(*job.view) : 0;
  return arrays;
}

}  // namespace tributary
