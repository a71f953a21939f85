// A rank's share of a round in micro-batches of even size, for tests of computation.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "train/model_compute.h"

namespace tributary::train {

// Must stay where it is: `share` refers to it.
struct EvenShare {
  EvenShare(std::vector<std::uint32_t> samples, std::uint32_t micro_batches) : all(std::move(samples)) {
    const auto count = static_cast<std::uint32_t>(all.size());
    share.samples = count;
    share.micro_batches = micro_batches;
    share.micro_batch = [this, count, micro_batches](std::uint32_t micro) {
      const std::uint32_t begin = count * micro / micro_batches, end = count * (micro + 1) / micro_batches;
      return std::span<const std::uint32_t>(all).subspan(begin, end - begin);
    };
  }
  EvenShare(const EvenShare&) = delete;
  EvenShare& operator=(const EvenShare&) = delete;

  std::vector<std::uint32_t> all;
  Share share;
};

}  // namespace tributary::train
