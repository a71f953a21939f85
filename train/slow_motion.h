// SlowMotion: makes a rank compute as on a slower machine: it sleeps for so long per sample, and on a slow rank several
// times as long, always or in steps that are drawn at random. For experiments on machines with fewer processors than
// ranks: sleeping ranks do not slow down each other, and a slow one uses no more processor.
#pragma once

#include <chrono>
#include <cstdint>
#include <thread>

#include "common/base/ids.h"
#include "train/counter_rng.h"

namespace tributary::train {

struct SlowMotionOptions {
  double us_per_sample = 0.0;  // 0: none of this
  double factor = 1.0;         // of a slow rank
  double chance = 1.0;         // that a step of a slow rank is slow
  std::uint64_t seed = 1;
};

class SlowMotion {
 public:
  explicit SlowMotion(const SlowMotionOptions& options) : options_(options) {}

  // Nanoseconds that so many samples of this step take.
  std::uint64_t ns(Round round, std::uint32_t step, std::size_t samples) const {
    return static_cast<std::uint64_t>(1e3 * options_.us_per_sample * static_cast<double>(samples) *
                                      (slow(round, step) ? options_.factor : 1.0));
  }
  bool slow(Round round, std::uint32_t step) const {
    const CounterRng draws(options_.seed, kStreamSlowSteps, round.value);
    return static_cast<double>(draws.at(step) >> 11) * 0x1p-53 < options_.chance;
  }
  void pass(Round round, std::uint32_t step, std::size_t samples) const {
    if (options_.us_per_sample > 0.0) std::this_thread::sleep_for(std::chrono::nanoseconds(ns(round, step, samples)));
  }

 private:
  SlowMotionOptions options_;
};

}  // namespace tributary::train
