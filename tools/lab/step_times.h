// Times of steps that trainers report (train/progress.h), put together by round.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>

namespace tributary::lab {

class StepTimes {
 public:
  static constexpr std::size_t kMaxRounds = 1'000'000;  // that are kept; later ones are ignored
  static constexpr std::uint64_t kWarmupRounds = 5;     // not counted: connections and windows find their speed

  explicit StepTimes(std::uint32_t ranks) : ranks_(ranks) {}
  // One datagram of a rank. Anything that is none is ignored.
  void take(std::string_view datagram);
  // step_seconds, step_split: see lab_run.h. Rounds of which a datagram was lost count for nothing.
  nlohmann::ordered_json result() const;

 private:
  struct RoundSum {
    std::uint32_t ranks = 0;
    double compute_ns = 0.0, reduce_ns = 0.0, wait_ns = 0.0;  // over ranks
    double slowest_ns = 0.0;
  };

  const std::uint32_t ranks_;
  std::map<std::uint64_t, RoundSum> rounds_;
};

}  // namespace tributary::lab
