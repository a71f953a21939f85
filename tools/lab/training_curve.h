// Progress that trainers report (train/progress.h), put together by round.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "common/base/result.h"

namespace tributary::lab {

class TrainingCurve {
 public:
  static constexpr std::size_t kMaxPoints = 400;        // of the curve in the result
  static constexpr std::size_t kMaxRounds = 1'000'000;  // that are kept; later ones are ignored
  static constexpr std::uint64_t kWarmupRounds = 5;  // not counted in times: connections and windows find their speed

  explicit TrainingCurve(std::uint32_t ranks) : ranks_(ranks) {}
  // One datagram of a rank, which came now. Anything that is none is ignored.
  void take(std::string_view datagram, std::uint64_t now_ns);
  // step_seconds, step_split, curve: see lab_run.h. Rounds of which a datagram was lost count for nothing.
  nlohmann::ordered_json result() const;

 private:
  struct RoundSum {
    std::uint32_t ranks = 0;
    double loss_sum = 0.0, samples = 0.0;
    double compute_ns = 0.0, reduce_ns = 0.0, wait_ns = 0.0;  // over ranks
    double slowest_ns = 0.0;
    double test_accuracy = -1.0;
    std::uint64_t at_ns = 0;  // when the last of them came
  };

  nlohmann::ordered_json curve() const;

  const std::uint32_t ranks_;
  std::uint64_t first_ns_ = 0;
  std::map<std::uint64_t, RoundSum> rounds_;
};

}  // namespace tributary::lab
