// A frame as a sender of ours makes it, for the first inputs of fuzz targets.
#pragma once

#include <cstddef>
#include <numeric>
#include <vector>

#include "common/math/encoding.h"
#include "tests/fuzz/fuzz_target.h"

namespace tributary::fuzz {

inline Bytes sample_frame(const Encoding& encoding, std::size_t elements) {
  std::vector<float> values(elements), residual(elements), estimate(elements);
  std::iota(values.begin(), values.end(), -3.5f);
  std::vector<std::uint32_t> scratch(encoding.scratch_words(elements));
  Bytes frame(encoding.bytes(elements));
  if (encoding.is_delta()) {
    encoding.encode_update(values.data(), elements, 0, elements, estimate.data(), frame.data());
  } else {
    encoding.encode(values.data(), elements, 0, elements, residual.data(), frame.data());
    encoding.finish(elements, residual.data(), frame.data(), scratch);
  }
  return frame;
}

}  // namespace tributary::fuzz
