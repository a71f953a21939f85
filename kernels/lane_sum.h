// The one order of sums over the elements of an array, with which CPUs and GPUs both reach memory speed. There are 1024
// lanes; lane j starts from 0 and adds elements j, j + 1024, j + 2048, ... in ascending order. Then the upper half of
// the lanes is added to the lower (lane j += lane j + 512, then j + 256, ... , j + 1) until one is left. Missing
// elements count as 0.
//
// This order defines norms and means over blocks of 4096 elements; a long array's total is the lane sum of its blocks'
// sums. Terms are magnitudes or squares, so a lane is never -0 and an absent term changes no bit.
#pragma once

#include <cstddef>

#include "kernels/dispatch.h"

namespace tributary::kernels {

inline constexpr std::size_t kSumLanes = 1024;
inline constexpr std::size_t kSumBlock = 4096;
inline constexpr std::size_t kSumRows = kSumBlock / kSumLanes;

// The second half of the order: what the lanes add up to. Destroys them.
template <class T>
TRIBUTARY_INLINE T fold_lanes(T* lanes) {
  for (std::size_t half = kSumLanes / 2; half > 0; half /= 2) {
    TRIBUTARY_ELEMENTWISE
    for (std::size_t j = 0; j < half; ++j) lanes[j] += lanes[j + half];
  }
  return lanes[0];
}

}  // namespace tributary::kernels
