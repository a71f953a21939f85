#include "tools/cluster/trainer_result.h"

#include <limits>
#include <string>
#include <utility>

#include "common/config/json_text.h"

namespace tributary {

Result<nlohmann::ordered_json> parsed_result(const Trainer& trainer) {
  const std::string line = trainer_result(trainer);
  if (line.empty()) {
    return fail(ErrorCode::kUnavailable,
                "rank " + std::to_string(trainer.rank) + " left no result; the last lines of " + trainer.log_file +
                    ":\n" + last_lines(trainer.log_file, LocalCluster::kReportedLogLines, trainer.log_from));
  }
  return ordered_json_in(line);
}

Result<std::vector<nlohmann::ordered_json>> parsed_results(LocalCluster& cluster) {
  std::vector<nlohmann::ordered_json> all;
  for (const Trainer& trainer : cluster.trainers()) {
    auto result = parsed_result(trainer);
    if (!result) return tl::unexpected(result.error());
    all.push_back(std::move(*result));
  }
  return all;
}

double train_loss_sum(const nlohmann::ordered_json& result) {
  const auto& sum = result.at("train_loss_sum");
  return sum.is_null() ? std::numeric_limits<double>::quiet_NaN() : sum.get<double>();
}

}  // namespace tributary
