// Standalone training: all ranks one after another in one process, without any daemon. It is the reference for "same
// bits": it sums as nodes and servers do (kernels/tree_sum.h inside a node, common/math/fused_step.h over nodes),
// encodes what would cross the network, and steps the same optimizer with the same schedule.
#pragma once

#include <cstdint>

#include "common/base/result.h"
#include "common/config/config.h"
#include "train/dataset.h"
#include "train/report.h"

namespace tributary::train {

inline constexpr std::uint32_t kMaxStandaloneRanks = 256;  // each has a gradient, and inner state, of the model's size

struct StandaloneOptions {
  JobConfig job;
  std::uint32_t ranks = 1;
  std::uint32_t nodes = 1;  // divides ranks. Bits depend on it unless pushes are fp32 and ranks per node a power of two
};

// `test` may be null: no evaluation. `bar` may be null. Errors: kConfig, kTopology.
Result<RunSummary> train_standalone(const StandaloneOptions& options, const ImageSet& training, const ImageSet* test,
                                    ProgressBar* bar);

}  // namespace tributary::train
