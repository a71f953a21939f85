#include "tools/lab/training_curve.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "tools/cluster/progress_socket.h"

namespace tributary::lab {
namespace {

using Json = nlohmann::ordered_json;

}  // namespace

void TrainingCurve::take(std::string_view datagram, std::uint64_t now_ns) {
  const auto report = parse_progress(datagram);
  if (!report || (rounds_.size() >= kMaxRounds && !rounds_.contains(report->round))) return;
  RoundSum& sum = rounds_[report->round];
  ++sum.ranks;
  sum.loss_sum += report->loss_sum.value_or(0.0);
  sum.samples += static_cast<double>(report->samples);
  sum.compute_ns += static_cast<double>(report->compute_ns);
  sum.reduce_ns += static_cast<double>(report->reduce_ns);
  sum.wait_ns += static_cast<double>(report->wait_ns);
  sum.slowest_ns = std::max(sum.slowest_ns, static_cast<double>(report->step_ns()));
  sum.test_accuracy = report->test_accuracy.value_or(sum.test_accuracy);
  sum.at_ns = now_ns;
  // Training began one step before the first report.
  if (first_ns_ == 0) first_ns_ = now_ns > report->step_ns() ? now_ns - report->step_ns() : now_ns;
}

Json TrainingCurve::result() const {
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
          {"step_split", {{"compute_ms", compute / parts}, {"reduce_ms", reduce / parts}, {"wait_ms", wait / parts}}},
          {"curve", curve()}};
}

Json TrainingCurve::curve() const {
  Json points = Json::array();
  const std::size_t every = rounds_.size() / kMaxPoints + 1;
  double loss = 0.0, samples = 0.0, accuracy = -1.0;
  std::size_t seen = 0;
  for (const auto& [round, sum] : rounds_) {
    loss += sum.loss_sum;
    samples += sum.samples;
    accuracy = std::max(accuracy, sum.test_accuracy);
    if (++seen % every != 0 && seen != rounds_.size()) continue;
    points.push_back({{"seconds", 1e-9 * static_cast<double>(sum.at_ns - std::min(first_ns_, sum.at_ns))},
                      {"round", round},
                      {"loss", samples > 0.0 ? Json(loss / samples) : Json(nullptr)},
                      {"test_accuracy", accuracy >= 0.0 ? Json(accuracy) : Json(nullptr)}});
    loss = samples = 0.0;
    accuracy = -1.0;
  }
  return points;
}

}  // namespace tributary::lab
