// Inverse predictions: the payload, the compute time or the number of ranks for an efficiency.
#include <algorithm>
#include <cmath>
#include <string>

#include "common/base/assert.h"
#include "common/base/printed.h"
#include "common/math/cost_model.h"

namespace tributary {
namespace {

std::string number(double value) {
  return printed("%.4g", value);
}

Status check_efficiency(double efficiency) {
  if (efficiency > 0.0 && efficiency < 1.0) return {};
  return fail(ErrorCode::kInvalidArgument,
              "an efficiency of " + number(efficiency) + " is asked for; it must lie between 0 and 1");
}

// The efficiency of a scenario whose values were checked before.
double efficiency_of(const Scenario& scenario) {
  const auto prediction = predict(scenario);
  TRIB_ASSERT(prediction.has_value());
  return prediction->efficiency;
}

// Returns where `above` turns false between low (true) and high (false), to the last bits of a double.
template <class Above>
double crossing(double low, double high, Above above) {
  for (int i = 0; i < 200; ++i) {
    const double middle = 0.5 * (low + high);
    if (middle <= low || middle >= high) break;
    (above(middle) ? low : high) = middle;
  }
  return high;
}

}  // namespace

Result<double> payload_for_efficiency(Scenario s, double efficiency, double low, double high) {
  if (const Status good = check_efficiency(efficiency); !good) return tl::unexpected<Error>(good.error());
  for (double payload : {low, high}) {
    s.payload_bytes = payload;
    if (const auto prediction = predict(s); !prediction) return tl::unexpected<Error>(prediction.error());
  }
  const auto above = [&](double payload) {
    s.payload_bytes = payload;
    return efficiency_of(s) > efficiency;
  };
  if (!above(low) || above(high)) {
    return fail(ErrorCode::kNotFound, "the efficiency does not fall to " + number(efficiency) +
                                          " between payloads of " + number(low) + " and " + number(high) + " bytes");
  }
  return crossing(low, high, above);
}

Result<double> compute_for_efficiency(Scenario s, double efficiency) {
  if (const Status good = check_efficiency(efficiency); !good) return tl::unexpected<Error>(good.error());
  s.compute_s = 0.0;
  const auto idle = predict(s);
  if (!idle) return tl::unexpected<Error>(idle.error());
  if (idle->exchange_s <= 0.0) return 0.0;
  // Without any overlap compute + update = e / (1 − e) · exchange is enough; overlap only lowers it.
  const double most = idle->exchange_s * efficiency / (1.0 - efficiency) * (1.0 + 1e-12);
  return crossing(0.0, most, [&](double compute) {
    s.compute_s = compute;
    return efficiency_of(s) < efficiency;
  });
}

Result<std::vector<ScalingPoint>> scaling_curve(Scenario s, const std::vector<std::uint32_t>& ranks) {
  const std::uint32_t per_node = s.ranks_per_node;
  std::vector<ScalingPoint> curve;
  for (std::uint32_t count : ranks) {
    TRIB_ASSERT(per_node > 0 && (count <= per_node || count % per_node == 0));
    s.ranks_per_node = std::min(count, per_node);
    s.nodes = count / std::max(1u, s.ranks_per_node);
    const auto prediction = predict(s);
    if (!prediction) return tl::unexpected<Error>(prediction.error());
    curve.push_back({.ranks = count, .efficiency = prediction->efficiency});
  }
  return curve;
}

std::size_t knee_of(const std::vector<ScalingPoint>& curve) {
  TRIB_ASSERT(curve.size() >= 2);
  std::size_t knee = 0;
  double largest = -1.0;
  for (std::size_t i = 0; i + 1 < curve.size(); ++i) {
    const double drop = curve[i].efficiency - curve[i + 1].efficiency;
    if (drop > largest) {
      largest = drop;
      knee = i;
    }
  }
  return knee;
}

}  // namespace tributary
