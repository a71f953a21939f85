#include "tools/lab/step_times.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "tools/cluster/progress_socket.h"

namespace tributary::lab {

void StepTimes::take(std::string_view datagram) {
  const auto report = parse_progress(datagram);
  if (!report || (rounds_.size() >= kMaxRounds && !rounds_.contains(report->round))) return;
  RoundSum& sum = rounds_[report->round];
  ++sum.ranks;
  sum.compute_ns += static_cast<double>(report->compute_ns);
  sum.reduce_ns += static_cast<double>(report->reduce_ns);
  sum.wait_ns += static_cast<double>(report->wait_ns);
  sum.slowest_ns = std::max(sum.slowest_ns, static_cast<double>(report->step_ns()));
}

nlohmann::ordered_json StepTimes::result() const {
  std::vector<double> steps;
  double compute = 0.0, reduce = 0.0, wait = 0.0;
  std::uint64_t seen = 0;
  for (const auto& [round, sum] : rounds_) {
    if (sum.ranks != ranks_ || ++seen <= kWarmupRounds) continue;
    steps.push_back(sum.slowest_ns * 1e-9);
    compute += sum.compute_ns;
    reduce += sum.reduce_ns;
    wait += sum.wait_ns;
  }
  std::ranges::sort(steps);
  const std::size_t n = steps.size();
  const double parts = std::max(static_cast<double>(n) * ranks_, 1.0) * 1e6;
  return {{"step_seconds", n == 0 ? Json(nullptr) : Json((steps[(n - 1) / 2] + steps[n / 2]) / 2.0)},
          {"step_split", {{"compute_ms", compute / parts}, {"reduce_ms", reduce / parts}, {"wait_ms", wait / parts}}}};
}

}  // namespace tributary::lab
