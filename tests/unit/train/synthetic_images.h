// A small data set for tests that train.
#pragma once

#include <cstdint>

#include "train/counter_rng.h"
#include "train/dataset.h"

namespace tributary::train {

// Images whose class can be seen: the class's pixel is bright, the others are noise.
inline ImageSet synthetic(std::uint32_t count, std::uint64_t seed) {
  ImageSet set{.count = count, .rows = 4, .columns = 5};
  for (std::size_t byte = 0; byte < set.scale.size(); ++byte)
    set.scale[byte] = static_cast<float>(byte) / 255.0f - 0.5f;
  const CounterRng rng(seed, 1, 1);
  std::uint64_t counter = 0;
  for (std::uint32_t i = 0; i < count; ++i) {
    set.labels.push_back(static_cast<std::uint8_t>(rng.below(kClasses, counter)));
    for (std::uint32_t pixel = 0; pixel < 20; ++pixel) {
      const bool bright = pixel / 2 == set.labels.back();
      set.pixels.push_back(static_cast<std::uint8_t>(bright ? 255 : rng.below(160, counter)));
    }
  }
  return set;
}

}  // namespace tributary::train
