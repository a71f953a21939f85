// The result that a trainer printed when it ended.
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "common/base/result.h"
#include "tools/cluster/local_cluster.h"

namespace tributary {

// Parses trainer_result(). kUnavailable: there is none; the error shows the last lines of the trainer's log.
Result<nlohmann::ordered_json> parsed_result(const Trainer& trainer);

// Parses the results of all trainers, in their order.
Result<std::vector<nlohmann::ordered_json>> parsed_results(LocalCluster& cluster);

// The sum of the trainer's sample losses; NaN if it is not finite, which JSON cannot express.
double train_loss_sum(const nlohmann::ordered_json& result);

}  // namespace tributary
