// The computation behind `tributary plan`, apart from the tool for its tests: the table of layouts with a recommendation.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/math/cost_model.h"

namespace tributary::cli {

struct Plan {
  Scenario scenario;                // mode does not count
  std::vector<Prediction> layouts;  // one for each mode that makes sense for it
  std::size_t best = 0;             // of the modes that Tributary has; the simplest of those within 3 %
  std::vector<std::string> advice;  // sentences
};

// The modes that the scenario's machines allow, in the order of the table.
std::vector<ExchangeMode> modes_for(const Scenario& scenario);
Result<Plan> make_plan(const Scenario& scenario);
std::string plan_text(const Plan& plan);
nlohmann::ordered_json plan_json(const Plan& plan);

// A name as the table has it: "hierarchical ring", "servers dedicated".
std::string mode_in_words(ExchangeMode mode);

}  // namespace tributary::cli
