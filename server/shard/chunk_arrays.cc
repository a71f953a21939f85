#include "server/shard/chunk_arrays.h"

#include "common/math/encoding.h"
#include "server/shard/shard_job.h"

namespace tributary {

ChunkArrays chunk_arrays(const ShardJob& job) {
  ChunkArrays arrays;
  arrays.state = 1 + static_cast<std::size_t>(job.plan().optimizer->slots());
  arrays.encoded = job.plan().config.pull == EncodingId::kFp32 ? 0 : 1;
  arrays.estimate = make_encoding(job.plan().config.pull)->is_delta() ? 1 : 0;
  arrays.previous = job.recovers ? 1 : 0;
  arrays.sums = job.plan().has_gate() ? 1 : 0;
  arrays.told = job.plan().has_clocks() ? job.view->nodes : 0;
  arrays.residuals = make_encoding(job.plan().config.push)->keeps_residual() ? job.view->nodes : 0;
  return arrays;
}

}  // namespace tributary
