#include "server/shard/chunk_arrays.h"

#include "common/math/encoding.h"
#include "server/shard/shard_job.h"

namespace tributary {

ChunkArrays chunk_arrays(const ShardJob& job) {
  ChunkArrays arrays;
  const JobPlan& plan = job.plan();
  arrays.state = 1 + static_cast<std::size_t>(plan.optimizer->slots());
  arrays.encoded = plan.pull->id() == EncodingId::kFp32 ? 0 : 1;
  arrays.estimate = plan.pull->is_delta() ? 1 : 0;
  arrays.previous = job.recovers ? 1 : 0;
  arrays.sums = plan.has_gate() ? 1 : 0;
  arrays.told = plan.has_clocks() ? job.view->nodes : 0;
  arrays.residuals = plan.push->keeps_residual() ? job.view->nodes : 0;
  return arrays;
}

}  // namespace tributary
