// Histogram: durations in classes that grow by 1, 2, 5, 10, from 1 ms to 100 s, the range of a round. One writer; any
// number of readers, who may see each class a little late (LaneCounter).
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "common/base/counters.h"

namespace tributary {

class Histogram {
 public:
  // Upper ends, each included; one more class has the longer durations.
  static constexpr std::array<double, 16> kSeconds = {0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2,
                                                      0.5,   1,     2,     5,    10,   20,   50,  100};

  struct Counts {
    std::array<std::uint64_t, kSeconds.size() + 1> in_class{};  // not summed up from below
    double sum_s = 0.0;

    void add(const Counts& other) {
      for (std::size_t i = 0; i < in_class.size(); ++i) in_class[i] += other.in_class[i];
      sum_s += other.sum_s;
    }
  };

  void observe(std::uint64_t ns) {
    const auto at = std::ranges::lower_bound(kSeconds, static_cast<double>(ns) * 1e-9);
    in_class_[static_cast<std::size_t>(at - kSeconds.begin())].add();
    sum_ns_.add(ns);
  }
  Counts counts() const {
    Counts counts;
    for (std::size_t i = 0; i < in_class_.size(); ++i) counts.in_class[i] = in_class_[i].value();
    counts.sum_s = static_cast<double>(sum_ns_.value()) * 1e-9;
    return counts;
  }

 private:
  std::array<LaneCounter, kSeconds.size() + 1> in_class_;
  LaneCounter sum_ns_;
};

}  // namespace tributary
