// The result that a trainer printed when it ended.
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "common/base/result.h"
#include "tools/cluster/local_cluster.h"

namespace tributary {

// trainer_result(), read. kUnavailable: there is none; the error shows the last lines of its log.
Result<nlohmann::ordered_json> parsed_result(const Trainer& trainer);

// Parses the results of all trainers, in their order.
Result<std::vector<nlohmann::ordered_json>> parsed_results(LocalCluster& cluster);

// The sum of its samples' losses; NaN if that was no finite number, which JSON has no word for.
double train_loss_sum(const nlohmann::ordered_json& result);

}  // namespace tributary
