#include "train/parameter_curve.h"

#include "common/base/clock.h"

namespace tributary::train {

bool ParameterCurve::due() {
  const std::uint64_t now = steady_ns();
  if (every_ns_ == 0 || now < next_ns_ || copies_.size() >= kMaxCopies) return false;
  next_ns_ = now + every_ns_;
  return true;
}

void ParameterCurve::copy(Round round, const std::vector<TensorSpec>& tensors,
                          std::span<const float* const> parameters) {
  Copy& copy = copies_.emplace_back();
  copy.at_ns = steady_ns();
  copy.round = round;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    copy.values.emplace_back(parameters[t], parameters[t] + tensors[t].elements());
  }
}

std::vector<CurvePoint> ParameterCurve::evaluate(RankCompute& compute, const ImageSet& test) const {
  std::vector<CurvePoint> points;
  for (const Copy& copy : copies_) {
    std::vector<const float*> parameters;
    for (const auto& values : copy.values) parameters.push_back(values.data());
    compute.bind({.parameters = parameters, .gradients = {}});
    points.push_back({copy.at_ns, copy.round.value, compute.evaluate(test)});
    compute.unbind();
  }
  return points;
}

}  // namespace tributary::train
