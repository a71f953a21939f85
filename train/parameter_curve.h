// ParameterCurve: copies of the parameters, taken now and then while a job trains and evaluated when it is over
// (TrainerOptions::curve_ms). The trainer owns it; one thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/ids.h"
#include "common/base/layout.h"
#include "train/dataset.h"
#include "train/rank_compute.h"
#include "train/report.h"

namespace tributary::train {

class ParameterCurve {
 public:
  explicit ParameterCurve(std::uint32_t every_ms) : every_ns_(every_ms * 1'000'000ull) {}  // 0: never

  // Time for a copy; and then not again for a while.
  bool due();
  void copy(Round round, const std::vector<TensorSpec>& tensors, std::span<const float* const> parameters);
  // REQUIRES: nothing is bound to `compute`.
  std::vector<CurvePoint> evaluate(RankCompute& compute, const ImageSet& test) const;
  bool empty() const { return copies_.empty(); }

 private:
  static constexpr std::size_t kMaxCopies = 400;
  struct Copy {
    std::uint64_t at_ns = 0;
    Round round;
    std::vector<std::vector<float>> values;  // by tensor
  };

  const std::uint64_t every_ns_;
  std::uint64_t next_ns_ = 0;
  std::vector<Copy> copies_;
};

}  // namespace tributary::train
